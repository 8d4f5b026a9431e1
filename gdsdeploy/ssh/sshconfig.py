"""How OpenSSH's own configuration reaches a host, as ``ssh -G`` prints it: the transport follows it as Ansible does."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from gdsdeploy import paths
from gdsdeploy.errors import HostUnreachable, ProgramFailed
from gdsdeploy.run import cleared, run
from gdsdeploy.ssh.endpoint import Endpoint


def ask(name: str, *, port: int | None, user: str | None, config: Path | None) -> Endpoint:
    """What ``ssh name`` would do, given what the fleet file says already.

    config: used instead of the user's and the system's ssh_config, as with ``ssh -F``.
    Raises HostUnreachable when ssh refuses the name or its configuration has an error, MissingProgram without ssh.
    """
    argv: list[str | Path] = ["ssh", "-T", "-G"]
    argv += ["-F", config] if config else []
    argv += ["-p", str(port)] if port else []
    argv += ["-l", user] if user else []
    try:
        doing, hint = f"read the SSH configuration of {name}", "Install OpenSSH's client"
        result = run([*argv, "--", name], doing=doing, env=cleared(), hint=hint)
    except ProgramFailed as error:
        raise HostUnreachable(error.message, hint=f"Try: ssh -G {shlex.quote(name)}") from None
    return parse(result.stdout, config)


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
