"""A real OpenSSH server on loopback, thrown away after the test."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import socket
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy.cli import sudoers
from gdsdeploy.run import as_root, which
from gdsdeploy.ssh.endpoint import Endpoint

#: Addresses of loopback that fleets give their hosts, each of them another machine.
ADDRESSES = tuple(f"127.0.0.{number}" for number in range(1, 65))
#: Those at which a server of OpenSSH answers: its MAX_LISTEN_SOCKS is 16.
SERVED = ADDRESSES[:16]
#: Has a session see the boot id and machine id of the address that it came to; only root may mount.
_AS_MACHINE = """#!/bin/sh
set -- $SSH_CONNECTION
[ -n "$SSH_ORIGINAL_COMMAND" ] && [ "$(/usr/bin/id -u)" = 0 ] || exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"
exec /usr/bin/unshare --mount --propagation private /bin/sh -c '
  /bin/mount --bind "$0/boot-$1" /proc/sys/kernel/random/boot_id && /bin/mount --bind "$0/machine-$1" /etc/machine-id &&
  exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"' "${0%/*}" "$3"
"""

#: An account without and one with the right to become root; they exist only in the server's view of /etc.
PLAIN, SUDOER = "gdsplain", "gdssudoer"
#: An account with the right to have the installed host program read, and with no other.
READER = "gdsreader"

#: The folder of the audit trail, which is the server's own: what runs behind it as root leaves none on this machine.
TRAIL = "/var/log/gdsdeploy"
#: Has what is made in a folder lie in memory.
_ABOVE = (
    "mount -t tmpfs none /mnt && mkdir /mnt/new /mnt/work && "
    "mount -t overlay -o lowerdir={parent},upperdir=/mnt/new,workdir=/mnt/work none {parent} && "
)


@dataclass
class Sshd:
    """One running server."""

    port: int
    known_hosts: Path
    identity: Path
    folder: Path
    process: subprocess.Popen[bytes]

    def endpoint(self, name: str = "gpu1", *, user: str = "root", known_hosts: Path | None = None) -> Endpoint:
        files = (known_hosts or self.known_hosts,)
        return Endpoint(name, "127.0.0.1", self.port, user, (self.identity,), files)

    def place(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        """Have a file in the server's own view of this machine, whose folder then holds nothing else."""
        folder = Path(path).parent
        if not folder.is_dir():
            # Made above the next folder that this machine has, so that it's gone with the server.
            parent = next(parent for parent in folder.parents if parent.is_dir())
            script = _ABOVE.format(parent=parent) + f"mkdir -p '{folder}' && "
        else:
            script = ""
        script += f"mount -t tmpfs -o mode=755 none '{folder}' && cat > '{path}' && chmod {mode:o} '{path}'"
        self.run(script, content)

    def run(self, script: str, content: str | bytes = b"") -> str:
        """What root's shell prints in the server's own view of this machine."""
        argv = as_root([*self.enter(), "sh", "-c", script])
        data = content.encode() if isinstance(content, str) else content
        return subprocess.run(argv, input=data, check=True, stdout=subprocess.PIPE).stdout.decode()

    def cover(self, path: str, text: str) -> None:
        """Have other content in one file, which is there, in the server's own view of this machine."""
        cover = self.folder / path.strip("/").replace("/", "-")
        cover.write_text(text)
        subprocess.run(as_root([*self.enter(), "mount", "--bind", str(cover), path]), check=True)

    def has_process(self, pid: int) -> bool:
        """Whether a process of a session still exists; ``pid`` is its number there."""
        outer = (self.folder / "outer").read_text().strip()
        return subprocess.run(as_root(["test", "-e", f"/proc/{outer}/root/proc/{pid}"]), check=False).returncode == 0

    def enter(self) -> list[str]:
        """The beginning of a command that root runs on the hosts."""
        pid = (self.folder / "outer").read_text().strip()
        return [which("nsenter"), f"--target={pid}", "--mount", f"--pid=/proc/{pid}/ns/pid_for_children"]

    def stop(self) -> None:
        # unshare blocks other signals; the kernel ends all that has begun inside.
        subprocess.run(as_root(["kill", "-KILL", (self.folder / "outer").read_text().strip()]), check=False)
        self.process.wait(timeout=300)


def free_port() -> int:
    """A port that nothing listens on, and that neither a lab nor a connection of anybody gets meanwhile."""
    while True:
        port = random.randrange(10_000, 22_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def keygen(path: Path, kind: str = "ed25519") -> Path:
    path.unlink(missing_ok=True)
    subprocess.run([which("ssh-keygen"), "-q", "-t", kind, "-N", "", "-f", path], check=True)
    return path


def _accounts(folder: Path) -> list[tuple[Path, Path]]:
    """Copies of the account files with two more users: (copy, the file it stands for)."""
    home = folder / "home"
    home.mkdir()
    home.chmod(0o755)
    added = {
        "passwd": "".join(
            f"{name}:x:{uid}:64000::{home}:/bin/sh\n"
            for name, uid in ((PLAIN, 64001), (SUDOER, 64002), (READER, 64003))
        ),
        "shadow": f"{PLAIN}:*:19000::::::\n{SUDOER}:*:19000::::::\n{READER}:*:19000::::::\n",
        "group": "gdstest:x:64000:\n",
        "sudoers": f"{SUDOER} ALL=(ALL) NOPASSWD: ALL\n{sudoers.rules([READER])}\n",
    }
    pairs = []
    for name, lines in added.items():
        real, copy = Path("/etc", name), folder / name
        text = subprocess.run(as_root(["cat", str(real)]), capture_output=True, check=True, text=True).stdout
        # Root's own start-up files are none of the tests' business.
        text = re.sub(r"(?m)^root:x:0:0:.*", f"root:x:0:0:root:{home}:/bin/sh", text)
        copy.write_text(text.rstrip("\n") + "\n" + lines)
        copy.chmod(0o440 if name == "sudoers" else 0o644)
        pairs.append((copy, real))
    return pairs


def start(folder: Path, *lines: str) -> Sshd:
    """Start a server whose files lie in ``folder``; each of ``lines`` is a line of its configuration."""
    # Accounts that are not root have to read what lies here.
    for place in (folder, *folder.parents):
        if place.stat().st_mode & 0o005 != 0o005:
            place.chmod(0o755)
    host_key, identity, port = keygen(folder / "host_key"), keygen(folder / "id"), free_port()
    shutil.copy(identity.with_suffix(".pub"), folder / "authorized_keys")
    (folder / "authorized_keys").chmod(0o644)
    known_hosts = folder / "known_hosts"
    kind, blob = host_key.with_suffix(".pub").read_text().split()[:2]
    known_hosts.write_text(f"[127.0.0.1]:{port} {kind} {blob}\n")
    for address in SERVED:
        # Other servers are other machines, too.
        (folder / f"boot-{address}").write_text(f"{uuid.uuid4()}\n")
        (folder / f"machine-{address}").write_text(f"{uuid.uuid4().hex}\n")
    as_machine = folder / "as-machine"
    as_machine.write_text(_AS_MACHINE)
    as_machine.chmod(0o755)
    config = folder / "sshd_config"
    config.write_text(
        "\n".join(
            [
                *lines,
                *(f"ListenAddress {address}:{port}" for address in SERVED),
                f"HostKey {host_key}",
                f"AuthorizedKeysFile {folder / 'authorized_keys'}",
                f"PidFile {folder / 'pid'}",
                "StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no",
                "PermitRootLogin prohibit-password\nMaxStartups 100\nLogLevel VERBOSE",
                # The first one is this machine as it is.
                f"Match LocalAddress 127.0.0.0/8,!{ADDRESSES[0]}\nForceCommand {as_machine}\n",
            ]
        )
    )
    binds = " && ".join(f"mount --bind '{copy}' '{real}'" for copy, real in _accounts(folder))
    own = f"mkdir -p /run/sshd {TRAIL} && mount -t tmpfs -o mode=755 none {TRAIL}"
    script = f"{own} && chown 0:0 '{folder}/sudoers' && {binds} && exec {which('sshd')} -D -e -f '{config}'"
    # Its processes are those of its sessions: programs of other tests on this machine aren't its hosts'.
    apart = "--mount --propagation private --pid --fork --kill-child --mount-proc"
    argv = as_root(["sh", "-c", f'echo $$ >"{folder}/outer"; exec unshare {apart} sh -c "$0"', script])
    log = (folder / "log").open("wb")
    process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    server = Sshd(port, known_hosts, identity, folder, process)
    try:
        _wait_for(server)
    except BaseException:
        server.stop()
        raise
    return server


def _wait_for(server: Sshd) -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        assert server.process.poll() is None, (server.folder / "log").read_text()
        with socket.socket() as probe:
            probe.settimeout(60)
            if probe.connect_ex(("127.0.0.1", server.port)) == 0 and probe.recv(4) == b"SSH-":
                return
        time.sleep(0.05)
    raise AssertionError((server.folder / "log").read_text())
