"""The tutorial as somebody new follows it: every command of ``docs/tutorial.md``, in one shell, as a fresh user.

    sudo python -m tests.newcomer.tutorial [--keep]

It makes a user who may use sudo, copies this checkout to that user's home, types each command, holds exit codes and
output against the page, and prints the minutes.  The user and the lab are removed in the end.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.unit.docs_blocks import executed, missing

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
#: How this machine reaches packages: the new user reaches them the same way.
_REACH = re.compile(r"(PIP_.*|SSL_CERT_.*|(https?|no)_proxy)", re.IGNORECASE)
_PIP = Path(".config/pip/pip.conf")


class Shell:
    """A login shell of the new user, which stays open between commands."""

    def __init__(self, user: str) -> None:
        reach = {name: value for name, value in os.environ.items() if _REACH.fullmatch(name)}
        environment = {"PATH": f"/usr/sbin:/sbin:{os.defpath}", "LANG": "C.UTF-8", "TERM": "dumb", **reach}
        self._shell = subprocess.Popen(
            ["runuser", "--login", user, "--shell", "/bin/bash", f"--whitelist-environment={','.join(reach)}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )  # fmt: skip

    def type(self, text: str) -> tuple[int, str]:
        """Run a line; its exit code and what it printed."""
        mark = secrets.token_hex(8)
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{text} </dev/null\nstatus=$?; echo; echo {mark} $status\n")
        self._shell.stdin.flush()
        lines = []
        for line in self._shell.stdout:
            if line.startswith(mark):
                return int(line.split()[1]), "".join(lines)
            lines.append(line)
            sys.stdout.write(f"    {line}")
            sys.stdout.flush()
        raise SystemExit(f"the shell ended during: {text}")

    def close(self) -> None:
        """Leave the shell."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(60)


def make_user(name: str) -> Path:
    """A user who may use sudo, with this checkout in the home folder."""
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", name], check=True)
    Path(f"/etc/sudoers.d/{name}").write_text(f"{name} ALL=(ALL) NOPASSWD: ALL\n")
    home = Path(pwd.getpwnam(name).pw_dir)
    subprocess.run(["git", "clone", "--quiet", ROOT, home / "gdsdeploy"], check=True)
    if (Path.home() / _PIP).is_file():
        (home / _PIP).parent.mkdir(parents=True)
        shutil.copy(Path.home() / _PIP, home / _PIP)
    subprocess.run(["chown", "--recursive", f"{name}:", home], check=True)
    return home


def remove_user(name: str) -> None:
    """Remove the user with all files, and processes that are left."""
    subprocess.run(["pkill", "--signal", "KILL", "--uid", name], check=False)
    Path(f"/etc/sudoers.d/{name}").unlink(missing_ok=True)
    home = pwd.getpwnam(name).pw_dir
    subprocess.run(["userdel", name], check=False)
    # A lab's host has files of other users.
    shutil.rmtree(home, ignore_errors=True)


def follow(user: str) -> None:
    """Type every command; raises SystemExit at the first that doesn't do what the page says."""
    shell, begun = Shell(user), time.monotonic()
    shell.type("cd gdsdeploy")
    for command in executed(PAGE.read_text(encoding="utf-8")):
        print(f"$ {command.text}", flush=True)
        start = time.monotonic()
        status, output = shell.type(command.text)
        print(f"  [{time.monotonic() - start:.0f} s]", flush=True)
        if status != command.status:
            raise SystemExit(f"{command.text}: exit code {status}; the page says {command.status}")
        if line := missing(command.shown, output):
            raise SystemExit(f"{command.text}: the page shows a line that wasn't printed: {line}")
    shell.close()
    print(f"The tutorial took {(time.monotonic() - begun) / 60:.1f} minutes.")


@contextmanager
def newcomer(keep: bool = False) -> Iterator[str]:
    """The name of a fresh user, who is removed in the end together with the tutorial's lab, unless ``keep``."""
    user = f"newcomer{secrets.randbelow(10_000)}"
    make_user(user)
    try:
        yield user
    finally:
        if not keep:
            down = "~/gdsdeploy-venv/bin/gdsdeploy lab down --lab tutorial"
            subprocess.run(["runuser", "--login", user, "--command", down], check=False, capture_output=True)
            remove_user(user)


def main() -> None:
    """Make the user, follow the tutorial, and clean up."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--keep", action="store_true", help="leave the user and the lab as they are in the end")
    with newcomer(parser.parse_args().keep) as user:
        follow(user)


if __name__ == "__main__":
    main()
