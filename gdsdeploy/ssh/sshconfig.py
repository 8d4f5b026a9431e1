"""What OpenSSH's own configuration says about a host: asked from ``ssh -G``, so that nobody reads ssh_config(5) twice.

Ansible connects with ssh and so follows the user's configuration; this makes the one-round-trip transport follow it
too: aliases, ports, keys, jump hosts, and under which name a host's key is on record.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import paths
from gdsdeploy.errors import HostUnreachable, ProgramFailed
from gdsdeploy.run import cleared, run


@dataclass(frozen=True)
class Settings:
    """The options of one host that matter to us, with nothing left open."""

    address: str
    port: int
    user: str
    #: existing private keys, in the order in which they are tried
    identity_files: tuple[Path, ...]
    #: keys of an agent are not tried
    identities_only: bool
    known_hosts: tuple[Path, ...]
    #: name in known_hosts that stands for this host whatever its port; empty: the address is
    host_key_alias: str
    #: command whose standard input and output are the connection; empty: a TCP connection
    proxy: tuple[str, ...]


def ask(name: str, *, port: int | None, user: str | None, config: Path | None) -> Settings:
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
        done = run([*argv, "--", name], doing=doing, env=cleared(), hint=hint)
    except ProgramFailed as error:
        raise HostUnreachable(error.message, hint=f"Try: ssh -G {shlex.quote(name)}") from None
    return parse(done.stdout, config)


def parse(text: str, config: Path | None = None) -> Settings:
    """Read the output of ``ssh -G``: a line ``option value`` for each option, in lower case."""
    options: dict[str, list[str]] = {}
    for line in text.splitlines():
        option, _, value = line.partition(" ")
        options.setdefault(option, []).append(value)

    def one(option: str) -> str:
        value = options.get(option, [""])[0]
        return "" if value == "none" else value

    address, port, user = one("hostname"), int(one("port") or 22), one("user")
    files = [paths.locate(Path(), value) for value in options.get("identityfile", [])]
    known = [word for option in ("userknownhostsfile", "globalknownhostsfile") for word in one(option).split()]
    return Settings(
        address=address,
        port=port,
        user=user,
        identity_files=tuple(file for file in files if file.is_file()),
        identities_only=one("identitiesonly") == "yes",
        known_hosts=tuple(paths.locate(Path(), word) for word in known),
        host_key_alias=one("hostkeyalias"),
        proxy=_jump(one("proxyjump"), address, port, config)
        or _command(one("proxycommand"), {"%h": address, "%p": str(port), "%r": user, "%n": options["host"][0]}),
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
