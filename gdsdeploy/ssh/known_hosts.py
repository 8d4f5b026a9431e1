"""OpenSSH's known_hosts files: which keys are on record for a host, and on which line.

Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT": plain and hashed names, ``*`` and ``?``, ``!`` and the two markers.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gdsdeploy.errors import HostKeyMismatch
from gdsdeploy.host.io import reading
from gdsdeploy.ssh.endpoint import Endpoint

#: Bytes of a file: keys of some hundred thousand hosts.
LIMIT: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class KnownKey:
    """One line that speaks about a host."""

    file: Path
    line: int
    #: e.g. ``ssh-ed25519``
    type: str
    blob: bytes
    #: empty, ``revoked`` or ``cert-authority``
    marker: str = ""

    def place(self) -> str:
        return f"{self.file}:{self.line}"


def record_name(host: Endpoint) -> str:
    """The name under which a host is on record: the port is part of it unless it is 22 or the name is an alias."""
    return host.host_key_alias or (host.address if host.port == 22 else f"[{host.address}]:{host.port}")


def known_keys(host: Endpoint) -> list[KnownKey]:
    """Every line of the known_hosts files about ``host``, in order.  Raises OSError for an unreadable file."""
    name = record_name(host).lower()
    return [key for file in host.known_hosts if file.exists() for key in _lines(file, name)]


def fingerprint(blob: bytes) -> str:
    """As ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def is_recorded(keys: Sequence[KnownKey], blob: bytes) -> bool:
    """Whether exactly this key is on record and not revoked."""
    markers = {key.marker for key in keys if key.blob == blob}
    return "" in markers and "revoked" not in markers


def refusal(host: Endpoint, keys: Sequence[KnownKey], kind: str, blob: bytes) -> HostKeyMismatch:
    """Why the key that ``host`` presented is not accepted, where to look, and how to find out which one is right."""
    presented = f"{kind} {fingerprint(blob)}"
    word = next((word for word in ("ed25519", "ecdsa", "rsa") if word in kind), "*")
    verify = f"`ssh-keygen -l -f /etc/ssh/ssh_host_{word}_key.pub` on the host's own console"
    revoked = [key for key in keys if key.blob == blob and key.marker == "revoked"]
    if revoked:
        words = f"{host.where()}: it presented the key {presented}, which {revoked[0].place()} revokes"
        return HostKeyMismatch(words, hint="Give the host new keys and put one of them on record")
    others = [key for key in keys if key.type == kind and not key.marker]
    if others:
        return HostKeyMismatch(
            f"{host.where()}: its host key changed: it presented {presented}, "
            f"but {others[0].place()} has {fingerprint(others[0].blob)}",
            hint="Another machine may be in between. If the host was installed again, "
            f"compare with {verify}, then replace line {others[0].line} of {others[0].file}",
        )
    files = " or ".join(str(file) + ("" if file.exists() else " (no such file)") for file in host.known_hosts)
    places = ", ".join(f"{key.place()} ({key.marker or key.type})" for key in keys)
    line = f"{record_name(host)} {kind} {base64.b64encode(blob).decode()}"
    return HostKeyMismatch(
        f"{host.where()}: its host key is not known: {presented} is not in {files}"
        + (f"; for this host there is only {places}" if places else ""),
        hint=f"Compare with {verify}, then add this line to {host.known_hosts[0]}:\n  {line}",
    )


def _lines(file: Path, name: str) -> Iterator[KnownKey]:
    for number, text in enumerate(reading.whole(str(file), LIMIT).decode(errors="replace").splitlines(), start=1):
        fields = text.split()
        marker = fields.pop(0)[1:] if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or not _speaks_of(fields[0], name):
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except ValueError:
            continue
        yield KnownKey(file, number, fields[1], blob, marker)


def _speaks_of(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        return _hashed(patterns, name)
    matching = [pattern for pattern in patterns.lower().split(",") if _matches(pattern.removeprefix("!"), name)]
    return bool(matching) and not any(pattern.startswith("!") for pattern in matching)


def _hashed(text: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in text.split("|")[2:4])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


def _matches(pattern: str, name: str) -> bool:
    """``*`` and ``?`` are the only wildcards; brackets belong to a name with a port."""
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
