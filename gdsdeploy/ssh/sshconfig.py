"""How OpenSSH's own configuration reaches a host, as ``ssh -G`` prints it: the transport follows it as Ansible does."""

from __future__ import annotations

import os
import re
import shlex
import threading
from pathlib import Path

from gdsdeploy import paths
from gdsdeploy.errors import HostUnreachable, ProgramFailed
from gdsdeploy.run import cleared, run
from gdsdeploy.ssh import alike
from gdsdeploy.ssh.endpoint import Endpoint


def ask(name: str, *, port: int | None, user: str | None, config: Path | None) -> Endpoint:
    """What ``ssh name`` would do, given what the fleet file says already.

    config: used instead of the user's and the system's ssh_config, as with ``ssh -F``.
    Raises HostUnreachable when ssh refuses the name or its configuration has an error, MissingProgram without ssh.
    """
    return parse(_answer(name, port=port, user=user, config=config), config)


def _answer(name: str, *, port: int | None, user: str | None, config: Path | None) -> str:
    """What ``ssh -G`` prints; raises as :func:`ask`."""
    argv: list[str | Path] = ["ssh", "-T", "-G"]
    argv += ["-F", config] if config else []
    argv += ["-p", str(port)] if port else []
    argv += ["-l", user] if user else []
    try:
        doing, hint = f"read the SSH configuration of {name}", "Install OpenSSH's client"
        return run([*argv, "--", name], doing=doing, env=cleared(), hint=hint).stdout
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
                self._texts[config] = alike.common_text(config)
            text = self._texts[config]
            is_common = text is not None and alike.is_common(text, name)
            if is_common and config not in self._common:
                self._common[config] = _answer(name, port=None, user=None, config=config)
        if not is_common:
            return ask(name, port=port, user=user, config=config)
        return parse(_as_of(self._common[config], name, port, user), config)


def _as_of(answer: str, name: str, port: int | None, user: str | None) -> str:
    """An answer about any machine as the one about ``name``."""
    values = {"host": name, "hostname": name, "port": port, "user": user}
    for option, value in values.items():
        if value:
            answer = re.sub(rf"(?m)^{option} .*$", f"{option} {value}", answer)
    return answer


def parse(text: str, config: Path | None = None) -> Endpoint:
    """Read the output of ``ssh -G``: a line ``option value`` for each option, in lower case."""
    options: dict[str, list[str]] = {}
    for line in text.splitlines():
        option, _, value = line.partition(" ")
        options.setdefault(option, []).append(value)

    def first(option: str) -> str:
        value = options.get(option, [""])[0]
        return "" if value == "none" else value

    address, port, user = first("hostname"), int(first("port") or 22), first("user")
    files = [paths.locate(Path(), value) for value in options.get("identityfile", [])]
    known_hosts = [word for option in ("userknownhostsfile", "globalknownhostsfile") for word in first(option).split()]
    return Endpoint(
        host=options["host"][0],
        address=address,
        port=port,
        user=user,
        identity_files=tuple(file for file in files if file.is_file()),
        agent=first("identitiesonly") != "yes",
        known_hosts=tuple(paths.locate(Path(), word) for word in known_hosts),
        host_key_alias=first("hostkeyalias"),
        proxy=_jump(first("proxyjump"), address, port, config)
        or _command(first("proxycommand"), {"%h": address, "%p": str(port), "%r": user, "%n": options["host"][0]}),
    )


def _jump(hosts: str, address: str, port: int, config: Path | None) -> tuple[str, ...]:
    """The command that ssh itself makes of ProxyJump; the jump hosts' keys are checked by ssh."""
    if not hosts:
        return ()
    *before, last = hosts.split(",")
    argv = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
    argv += ["-F", str(config)] if config else []
    argv += ["-J", ",".join(before)] if before else []
    # user@host:port is ProxyJump's own spelling; as a destination ssh takes a port in a URI only.
    destination = last if "://" in last else f"ssh://{last}"
    return (*argv, "-W", f"[{address}]:{port}", destination)


def _command(text: str, tokens: dict[str, str]) -> tuple[str, ...]:
    """ProxyCommand as ssh runs it: by the user's shell, with its tokens put in (TOKENS in ssh_config(5))."""
    if not text:
        return ()
    parts = text.split("%%")
    for token, value in tokens.items():
        parts = [part.replace(token, value) for part in parts]
    return (os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {'%'.join(parts)}")
