"""Keyrings of OpenPGP keys: without armour, and the fingerprints of their primary keys.  Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from typing import Final

_ARMOUR: Final = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL
)
#: Tag of a packet with a primary key, and the version of keys whose fingerprint is 40 digits (RFC 9580, 5.5).
_PRIMARY, _VERSION = 6, 4


def without_armour(keyring: bytes) -> bytes:
    """The keyring as gpgv reads it."""
    blocks = _ARMOUR.findall(keyring)
    if not blocks:
        return keyring
    packets = b""
    for block in blocks:
        # Header lines end at the first empty line; the line that starts with "=" is a checksum.
        _, _, body = block.replace(b"\r", b"").partition(b"\n\n")
        lines = (body or block).splitlines()
        packets += base64.b64decode(b"".join(line for line in lines if not line.startswith(b"=") and b":" not in line))
    return packets


def fingerprints(keyring: bytes) -> tuple[str, ...]:
    """The 40 digits of each primary key, in their order; empty for what isn't a keyring, or holds newer keys only."""
    try:
        packets = list(_packets(without_armour(keyring)))
    except (binascii.Error, ValueError, IndexError):
        return ()
    # RFC 9580, 5.5.4: SHA-1 over 0x99, the length in two bytes, and the packet's content.
    digests = [
        hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper()
        for tag, body in packets
        if tag == _PRIMARY and body[:1] == bytes([_VERSION]) and len(body) < 1 << 16
    ]
    return tuple(dict.fromkeys(digests))


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, content) of each packet; raises ValueError and IndexError where the data is cut or no packet."""
    at = 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise ValueError("no packet of OpenPGP")
        size, length = _length(data, at, is_new=bool(head & 0x40))
        begin = at + 1 + size
        if begin + length > len(data):
            raise ValueError("the last packet is cut")
        yield (head & 0x3F if head & 0x40 else (head & 0x3C) >> 2), data[begin : begin + length]
        at = begin + length


def _length(data: bytes, at: int, *, is_new: bool) -> tuple[int, int]:
    """(bytes of the length's field, the length) of the packet at ``at`` (RFC 9580, 4.2)."""
    if not is_new:
        size = (1, 2, 4, 0)[data[at] & 0x03]
        if size == 0:
            raise ValueError("a packet of no certain length")
        return size, int.from_bytes(data[at + 1 : at + 1 + size], "big")
    first = data[at + 1]
    if first < 192:
        return 1, first
    if first < 224:
        return 2, ((first - 192) << 8) + data[at + 2] + 192
    if first == 255:
        return 5, int.from_bytes(data[at + 2 : at + 6], "big")
    raise ValueError("a packet in parts")
