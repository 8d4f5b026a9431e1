"""Ed25519 (RFC 8032) with the standard library alone; see docs/adr.md, 0015.

Signing takes a time that depends on the key: only for a builder, never for a service that signs what strangers send.
Points are (X, Y, Z, T) with x = X/Z, y = Y/Z, xy = T/Z.
"""

from __future__ import annotations

import hashlib
from typing import Optional, Tuple

Point = Tuple[int, int, int, int]
_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)
_NEUTRAL: Point = (0, 1, 1, 0)


def public_key(seed: bytes) -> bytes:
    """The public key, 32 bytes, of the private key ``seed``, 32 bytes."""
    return _encode(_times(_secrets(seed)[0], _BASE))


def sign(seed: bytes, message: bytes) -> bytes:
    """The signature, 64 bytes, of ``message`` by the private key ``seed``."""
    scalar, prefix = _secrets(seed)
    nonce = _number(prefix, message)
    commitment = _encode(_times(nonce, _BASE))
    answer = (nonce + _number(commitment, public_key(seed), message) * scalar) % _ORDER
    return commitment + answer.to_bytes(32, "little")


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether ``signature`` is one of ``message`` by the key ``public``; False for anything malformed."""
    point = _decode(public) if len(signature) == 64 else None
    answer = int.from_bytes(signature[32:], "little")
    if point is None or answer >= _ORDER:
        return False
    x, y, z, t = _times(_number(signature[:32], public, message), point)
    return _encode(_add(_times(answer, _BASE), (-x % _P, y, z, -t % _P))) == signature[:32]


def _secrets(seed: bytes) -> Tuple[int, bytes]:
    if len(seed) != 32:
        raise ValueError("a private key of Ed25519 has 32 bytes")
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    return scalar, digest[32:]


def _number(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % _ORDER


def _add(one: Point, other: Point) -> Point:
    a = (one[1] - one[0]) * (other[1] - other[0]) % _P
    b = (one[1] + one[0]) * (other[1] + other[0]) % _P
    c, d = 2 * one[3] * other[3] * _D % _P, 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(number: int, point: Point) -> Point:
    product = _NEUTRAL
    for bit in bin(number)[2:]:
        product = _add(product, product)
        if bit == "1":
            product = _add(product, point)
    return product


def _encode(point: Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _decode(data: bytes) -> Optional[Point]:
    """The point that ``data`` encodes; None where it encodes none, or isn't the canonical encoding."""
    number = int.from_bytes(data, "little")
    y, odd = number & ((1 << 255) - 1), number >> 255
    if len(data) != 32 or y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if x * x % _P != square:
        x = x * _ROOT % _P
    if x * x % _P != square or (x == 0 and odd):
        return None
    x = x if x & 1 == odd else _P - x
    return x, y, 1, x * y % _P


_BASE_POINT = _decode((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
assert _BASE_POINT is not None
_BASE: Point = _BASE_POINT
