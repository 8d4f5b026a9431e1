"""How the machines of a fleet are reached: as the fleet file says, and as OpenSSH's configuration does otherwise.

``ssh -G`` prints the latter: the transport follows it as Ansible does.  Where that configuration treats all hosts
alike, one answer holds for each of them.  In doubt it doesn't: ssh is then asked about that host.  ssh_config(5) has
the format.
"""

from __future__ import annotations

import glob
import os
import pwd
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gdsdeploy import paths
from gdsdeploy.errors import HostUnreachable, ProgramFailed
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.hostnames import grouped
from gdsdeploy.run import cleared, run
from gdsdeploy.ssh.endpoint import Endpoint

#: The only program whose system-wide files are known here, and these files: those of /usr/etc are SUSE's.
_SSH = "/usr/bin/ssh"
_SYSTEM = (Path("/etc/ssh/ssh_config"), Path("/usr/etc/ssh/ssh_config"))
#: Names that ssh prints as they are given; of others, such as ``ops@gpu1`` and ``GPU1``, it changes parts.
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._:-]*")
_LINE = re.compile(r'\s*"?([A-Za-z0-9]+)"?(?:\s*=\s*|\s+|$)(.*)', re.DOTALL)
#: Options that make one host another: ssh looks their results up, or replaces the name.
_OF_ONE_HOST = ("hostname", "canonicalizehostname", "canonicaldomains", "canonicalizepermittedcnames")
#: Options whose tokens (``%h``) are of no concern to a login, or stay as they are in the answer.
_WITH_TOKENS = ("proxycommand", "controlpath")
#: As ssh has it, and bytes of one file.
_DEPTH, _SIZE = 16, 1 << 20


class _DiffersError(Exception):
    """Something in the files may be for some hosts only."""


def common_text(config: Path | None) -> str | None:
    """The lines of the configuration, in lower case, if each of them counts for every host; None: some may not.

    config: the file that replaces the user's and the system's.  Raises nothing: ssh says what is wrong with a file.
    """
    try:
        if os.path.realpath(shutil.which("ssh") or "") != _SSH:
            return None
        user = Path(pwd.getpwuid(os.getuid()).pw_dir, ".ssh")
        files = [(config, user)] if config else [(user / "config", user), *((file, file.parent) for file in _SYSTEM)]
        return "\n".join(line for file, folder in files for line in _lines(file, folder)).lower()
    except (_DiffersError, OSError, KeyError):
        return None


def _lines(file: Path, folder: Path, depth: int = 0) -> Iterator[str]:
    """folder: where the names in Include start."""
    if depth > _DEPTH:
        raise _DiffersError
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(_SIZE + 1)
    except FileNotFoundError:
        return
    if len(text) > _SIZE:
        raise _DiffersError
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise _DiffersError
        option, value = match[1].lower(), match[2].strip()
        _require_common(option, value)
        yield line
        if option == "include":
            for name in (name for pattern in value.split() for name in _matches(pattern, folder)):
                yield from _lines(Path(name), folder, depth + 1)


def _matches(pattern: str, folder: Path) -> list[str]:
    """The files that a word of Include names."""
    if pattern.startswith("~/"):
        # In a user's file only, whose folder is below the home directory.
        pattern = f"{folder.parent}/{pattern[2:]}"
    return sorted(glob.glob(os.path.join(folder, pattern)))  # noqa: PTH118, PTH207 - pathlib takes no absolute pattern


def _require_common(option: str, value: str) -> None:
    if option in _OF_ONE_HOST or (option == "host" and value != "*") or (option == "match" and value.lower() != "all"):
        raise _DiffersError
    if option not in _WITH_TOKENS and ("%" in value or "${" in value):
        raise _DiffersError
    if option == "include" and re.search(r"""["'\\]|~[^/]""", value):
        raise _DiffersError


def ask(name: str, *, port: int | None, user: str | None, config: Path | None) -> Endpoint:
    """What ``ssh name`` would do, given what the fleet file says already.

    config: used instead of the user's and the system's ssh_config, as with ``ssh -F``.
    Raises HostUnreachable when ssh refuses the name or its configuration has an error, MissingProgram without ssh.
    """
    return parse(_answer(name, port=port, user=user, config=config), name, config)


def _answer(name: str, *, port: int | None, user: str | None, config: Path | None) -> str:
    """What ``ssh -G`` prints; raises as :func:`ask`."""
    given = {"-F": config, "-p": port, "-l": user}
    options = [word for option, value in given.items() if value for word in (option, str(value))]
    try:
        doing, hint = f"read the SSH configuration of {name}", "Install OpenSSH's client"
        return run(["ssh", "-T", "-G", *options, "--", name], doing=doing, env=cleared(), hint=hint).stdout
    except ProgramFailed as error:
        raise HostUnreachable(error.message, hint=f"Try: ssh -G {shlex.quote(name)}") from None


class Answers:
    """What ssh says about the machines of one command; threads may share it.

    ssh runs once for all machines that its configuration treats alike, and once for each other one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: configuration → its text, if it is common to all machines
        self._texts: dict[Path | None, str | None] = {}
        self._common: dict[Path | None, str] = {}

    def ask(self, name: str, *, port: int | None, user: str | None, config: Path | None) -> Endpoint:
        """As the function :func:`ask`."""
        with self._lock:
            if config not in self._texts:
                self._texts[config] = common_text(config)
            text = self._texts[config]
            # A name that occurs anywhere there may not be as every other: a jump host is reached without itself.
            is_common = text is not None and _PLAIN.fullmatch(name) is not None and name not in text
            if is_common and config not in self._common:
                self._common[config] = _answer(name, port=None, user=None, config=config)
        if not is_common:
            return ask(name, port=port, user=user, config=config)
        return parse(_as_of(self._common[config], name, port, user), name, config)


def _as_of(answer: str, name: str, port: int | None, user: str | None) -> str:
    """An answer about any machine as the one about ``name``."""
    values = {"hostname": name, "port": port, "user": user}
    for option, value in values.items():
        if value:
            answer = re.sub(rf"(?m)^{option} .*$", f"{option} {value}", answer)
    return answer


def parse(text: str, name: str, config: Path | None = None) -> Endpoint:
    """Read the output of ``ssh -G name``: a line ``option value`` for each option, in lower case.

    Which options it prints depends on its release: tests/cases/programs.yml has what supported ones print.
    """
    lines = (line.partition(" ") for line in text.splitlines())
    options = grouped((value, option) for option, _, value in lines)

    def first(option: str) -> str:
        value = options.get(option, [""])[0]
        return "" if value == "none" else value

    address, port, user = first("hostname") or name, int(first("port") or 22), first("user")
    files = [paths.locate(Path(), value) for value in options.get("identityfile", [])]
    known_hosts = [word for option in ("userknownhostsfile", "globalknownhostsfile") for word in first(option).split()]
    return Endpoint(
        host=name,
        address=address,
        port=port,
        user=user,
        # As ssh does: a key that isn't there, or is another user's, is none.
        identity_files=tuple(file for file in files if os.access(file, os.R_OK)),
        agent=first("identitiesonly") != "yes",
        known_hosts=tuple(paths.locate(Path(), word) for word in known_hosts),
        host_key_alias=first("hostkeyalias"),
        proxy=_jump(first("proxyjump"), address, port, config)
        or _command(first("proxycommand"), {"%h": address, "%p": str(port), "%r": user, "%n": name}),
    )


def _jump(hosts: str, address: str, port: int, config: Path | None) -> tuple[str, ...]:
    """The command that ssh itself makes of ProxyJump; the jump hosts' keys are checked by ssh."""
    if not hosts:
        return ()
    *before, last = hosts.split(",")
    return (
        *("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"),
        *(("-F", str(config)) if config else ()),
        *(("-J", ",".join(before)) if before else ()),
        *("-W", f"[{address}]:{port}"),
        # user@host:port is ProxyJump's own spelling; as a destination ssh takes a port in a URI only.
        last if "://" in last else f"ssh://{last}",
    )


def _command(text: str, tokens: dict[str, str]) -> tuple[str, ...]:
    """ProxyCommand as ssh runs it: by the user's shell, with its tokens put in (TOKENS in ssh_config(5))."""
    if not text:
        return ()
    parts = text.split("%%")
    for token, value in tokens.items():
        parts = [part.replace(token, value) for part in parts]
    return (os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {'%'.join(parts)}")


#: Runs of ``ssh -G`` at the same time, some milliseconds each.
CONFIGURATIONS_AT_ONCE = 8


class Reach(NamedTuple):
    """A host, and what finds out how to reach it: that may start a program, so a thread that connects does it."""

    host: str
    find: Callable[[], Endpoint]


def reaches(fleet: Fleet, fleet_dir: Path, names: Sequence[str]) -> list[Reach]:
    """For each of the machines ``names`` of the fleet; relative file names start at ``fleet_dir``.

    What the fleet file leaves open is as OpenSSH's configuration has it.  ``find`` raises HostUnreachable where that
    is broken, and MissingProgram without ssh.
    """
    in_fleet, answers = partial(paths.locate, fleet_dir), Answers()

    def find(name: str) -> Endpoint:
        ssh = fleet.connection(name)
        assert ssh.address is not None
        config = in_fleet(ssh.config) if ssh.config else None
        end = answers.ask(ssh.address, port=ssh.port, user=ssh.user, config=config)
        end = replace(end, host=name, reads_installed=ssh.read_only == "installed")
        if ssh.identity_file:
            end = replace(end, identity_files=(in_fleet(ssh.identity_file),))
        return replace(end, known_hosts=(in_fleet(ssh.known_hosts),)) if ssh.known_hosts else end

    return [Reach(name, partial(find, name)) for name in names]


def endpoints(fleet: Fleet, fleet_dir: Path, names: Sequence[str]) -> list[Endpoint]:
    """How to reach each of the machines, all at once; arguments and errors as of :func:`reaches`."""
    with ThreadPoolExecutor(CONFIGURATIONS_AT_ONCE) as pool:
        return list(pool.map(lambda reach: reach.find(), reaches(fleet, fleet_dir, names)))
