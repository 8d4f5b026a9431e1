"""Files of the controller whose contents are part of desired states."""

from __future__ import annotations

import base64
from typing import Final

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.io import reading

#: Bytes of a keyring or a certificate.
LIMIT: Final = 16 * 1024 * 1024
#: What keyrings have: a line of armour, or as their first byte one of a packet that holds a public key (RFC 9580).
_ARMOUR = b"\n-----BEGIN PGP PUBLIC KEY BLOCK-----"
_PUBLIC_KEY = frozenset(bytes([tag]) for tag in (0x98, 0x99, 0x9A, 0xC6))
_CORRECT_KEYRING = "Correct keyring in the fleet file"


class Files:
    """Reads each file once."""

    def __init__(self) -> None:
        self._read: dict[str, bytes | None] = {}

    def content(self, path: str) -> bytes | None:
        """The bytes of a file, or None if the file doesn't exist.  Raises FleetInvalid where it can't be read."""
        if path not in self._read:
            try:
                self._read[path] = reading.whole(path, LIMIT)
            except FileNotFoundError:
                self._read[path] = None
            except OSError as error:
                raise FleetInvalid(f"{path}: {error.strerror}", hint="Make it readable, and run this again") from None
        return self._read[path]

    def keyring(self, path: str) -> bytes:
        """The content of a keyring.  Raises FleetInvalid where it's missing, or isn't one."""
        content = self.content(path)
        if content is None:
            raise FleetInvalid(f"{path}: the keyring is missing", hint=_CORRECT_KEYRING)
        # It leaves this machine: a fleet file that others wrote must not have any file sent to hosts that it names.
        if _ARMOUR not in b"\n" + content and content[:1] not in _PUBLIC_KEY:
            words = f"{path}: not a keyring: it doesn't begin with an OpenPGP public key"
            raise FleetInvalid(words, hint=_CORRECT_KEYRING)
        return content


class NoFiles(Files):
    """Reads nothing: the roles read what their variables name."""

    def content(self, path: str) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    keyring = content


def encoded(content: bytes) -> str:
    """The content as a desired state has it."""
    return base64.b64encode(content).decode()
