"""Keys, known hosts and the SSH client of a lab; known_hosts has a host's key before the host first starts."""

from __future__ import annotations

import shlex
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gdsdeploy import run
from gdsdeploy.errors import HostKeyMismatch, HostUnreachable

#: ssh's exit status for every failed connection.
SSH_FAILED = 255


def make_key(private: Path, comment: str) -> None:
    """Make an ed25519 key pair without passphrase at ``private`` and ``private``.pub, unless both exist."""
    public = private.with_name(f"{private.name}.pub")
    if private.is_file() and public.is_file():
        return
    with tempfile.TemporaryDirectory(prefix=".key-", dir=private.parent) as folder:
        key = Path(folder) / "key"
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(key)]
        run.run(argv, doing="make an SSH key")
        key.with_name("key.pub").replace(public)
        key.replace(private)


def known_hosts(keys: Mapping[int, str]) -> str:
    """The known_hosts file for loopback ``port → public key``."""
    return "".join(f"[127.0.0.1]:{port} {' '.join(key.split()[:2])}\n" for port, key in sorted(keys.items()))


def config(directory: Path, user: str, ports: Mapping[str, int]) -> str:
    """An ssh_config with which `ssh -F FILE HOST` reaches each host of ``name → port``."""
    if not ports:
        return ""
    common = (
        f"Host {' '.join(ports)}\n"
        "  HostName 127.0.0.1\n"
        f"  User {user}\n"
        f'  IdentityFile "{directory / "id_ed25519"}"\n'
        "  IdentitiesOnly yes\n"
        f'  UserKnownHostsFile "{directory / "known_hosts"}"\n'
        "  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
        "  BatchMode yes\n"
        # ssh's post-quantum default takes an emulated processor half a second longer.
        "  KexAlgorithms curve25519-sha256\n"
        # QEMU accepts connections while its guest still boots, and sends nothing.
        "  ConnectTimeout 15\n"
        "  ServerAliveInterval 15\n"
    )
    return common + "".join(f"\nHost {name}\n  Port {port}\n" for name, port in ports.items())


def command(config_file: Path, host: str, argv: Sequence[str], options: Iterable[str] = ()) -> list[str]:
    """The ssh command that runs ``argv`` on ``host`` with each word unchanged."""
    return ["ssh", "-F", str(config_file), *options, host, *(["--", shlex.join(argv)] if argv else [])]


def execute(
    config_file: Path,
    host: str,
    argv: Sequence[str],
    *,
    input: str | bytes | None = None,  # noqa: A002 - subprocess's word
    ok: Sequence[int] = (0,),
    timeout: float | None = None,
) -> run.Completed:
    """Run ``argv`` on ``host`` to its end.

    Raises HostKeyMismatch or HostUnreachable without a connection, ProgramFailed for a status that isn't in ``ok``.
    """
    words = command(config_file, host, argv, ("-T",))
    doing = f"run {argv[0]} on {host}" if argv else f"log in to {host}"
    done = run.run(words, doing=doing, input=input, ok=(*ok, SSH_FAILED), timeout=timeout)
    if done.status == SSH_FAILED and SSH_FAILED not in ok:
        raise connection_error(host, done.stderr)
    return done


def greets(port: int, patience: float = 3.0) -> bool:
    """Whether an SSH server on loopback ``port`` greets within ``patience`` seconds.

    A connection alone proves nothing: QEMU accepts one long before its guest does.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=patience) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def connection_error(host: str, stderr: str) -> HostUnreachable | HostKeyMismatch:
    """The error for ssh's message about a failed connection."""
    reason = " ".join(stderr.split()) or "no reason given"
    if "Host key verification failed" in stderr or "HOST IDENTIFICATION HAS CHANGED" in stderr:
        return HostKeyMismatch(
            f"{host} presented another host key than the lab recorded",
            hint="Another program listens on the lab's port; make a new lab: gdsdeploy lab down, then gdsdeploy lab up",
        )
    return HostUnreachable(f"cannot reach {host}: {reason}", hint="See which hosts run: gdsdeploy lab list")
