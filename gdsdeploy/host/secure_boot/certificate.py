"""X.509 certificates of keys that sign kernel modules, and whether a signature is by such a key.

RSA with PKCS#1 v1.5 padding (RFC 8017) and ECDSA on P-256 and P-384 (FIPS 186-5); verification has no secret values.

Read DER (ITU-T X.690), as in PKCS#7 and X.509, within bounds: definite lengths, one-byte tags, no recursion.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Tuple

#: Elements in one sequence; a certificate's longest has about 15, a name 10.
_CHILDREN_LIMIT = 256

INTEGER = 0x02
BIT_STRING = 0x03
OCTET_STRING = 0x04
OID = 0x06
SEQUENCE = 0x30
SET = 0x31


class DerError(ValueError):
    """The bytes aren't the expected DER."""


def context(number: int, constructed: bool = True) -> int:
    """The tag ``[number]``."""
    return 0x80 | number | (0x20 if constructed else 0)


class Node(NamedTuple):
    """One element; ``raw`` is all of it, ``body`` its content."""

    tag: int
    raw: bytes
    body: bytes

    def children(self) -> List[Node]:
        """The elements inside, in their order; raises DerError."""
        nodes: List[Node] = []
        rest = self.body
        while rest:
            if len(nodes) >= _CHILDREN_LIMIT:
                raise DerError(f"an element has more than {_CHILDREN_LIMIT} parts")
            nodes.append(first(rest))
            rest = rest[len(nodes[-1].raw) :]
        return nodes

    def expect(self, tag: int) -> Node:
        """The element itself, if it has ``tag``; else raises DerError."""
        if self.tag != tag:
            raise DerError(f"has tag 0x{self.tag:02x} where 0x{tag:02x} should be")
        return self

    def number(self) -> int:
        """An INTEGER's value; raises DerError."""
        if self.tag != INTEGER or not self.body:
            raise DerError("has no INTEGER where one should be")
        return int.from_bytes(self.body, "big", signed=True)

    def oid(self) -> str:
        """An OBJECT IDENTIFIER in dots; raises DerError."""
        if self.tag != OID or not self.body or self.body[-1] & 0x80:
            raise DerError("has no OBJECT IDENTIFIER where one should be")
        numbers: List[int] = []
        value = 0
        for byte in self.body:
            value = value << 7 | byte & 0x7F
            if not byte & 0x80:
                numbers.append(value)
                value = 0
        top = min(numbers[0] // 40, 2)
        return ".".join(map(str, (top, numbers[0] - 40 * top, *numbers[1:])))


def first(data: bytes) -> Node:
    """The element that ``data`` begins with; raises DerError if it's incomplete."""
    if len(data) < 2:
        raise DerError("ends inside an element")
    tag, length, start = data[0], data[1], 2
    if tag & 0x1F == 0x1F:
        raise DerError("has a tag of several bytes")
    if length & 0x80:
        count = length & 0x7F
        if not 0 < count <= 4 or len(data) < 2 + count:
            raise DerError(f"has a length of {count} bytes")
        length, start = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    if len(data) < start + length:
        raise DerError("ends inside an element")
    return Node(tag, data[: start + length], data[start : start + length])


def only(data: bytes) -> Node:
    """The one element that ``data`` consists of; raises DerError."""
    node = first(data)
    if len(node.raw) != len(data):
        raise DerError(f"has {len(data) - len(node.raw)} bytes after its end")
    return node


#: Hash algorithms that the kernel knows in PKCS#7: OID → name in hashlib.
HASHES = {
    "1.3.14.3.2.26": "sha1",
    "2.16.840.1.101.3.4.2.4": "sha224",
    "2.16.840.1.101.3.4.2.1": "sha256",
    "2.16.840.1.101.3.4.2.2": "sha384",
    "2.16.840.1.101.3.4.2.3": "sha512",
    "2.16.840.1.101.3.4.2.8": "sha3_256",
    "2.16.840.1.101.3.4.2.9": "sha3_384",
    "2.16.840.1.101.3.4.2.10": "sha3_512",
}
_RSA, _EC = "1.2.840.113549.1.1.1", "1.2.840.10045.2.1"
_COMMON_NAME, _ORGANIZATION = "2.5.4.3", "2.5.4.10"
_KEY_ID = "2.5.29.14"
#: Larger keys aren't in use, and would cost time.
_RSA_BITS = 16384


class _Curve(NamedTuple):
    """y² = x³ - 3x + b over ``p``, with the generator and its order."""

    p: int
    b: int
    x: int
    y: int
    n: int


_CURVES = {
    "1.2.840.10045.3.1.7": _Curve(
        0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF,
        0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B,
        0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
        0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
        0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    ),
    "1.3.132.0.34": _Curve(
        0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEFFFFFFFF0000000000000000FFFFFFFF,
        0xB3312FA7E23EE7E4988E056BE3F82D19181D9C6EFE8141120314088F5013875AC656398D8A2ED19D2A85C8EDD3EC2AEF,
        0xAA87CA22BE8B05378EB1C71EF320AD746E1D3B628BA79B9859F741E082542A385502F25DBF55296C3A545E3872760AB7,
        0x3617DE4A96262C6F5D9E98BF9292DC29F8F41DBD289A147CE9DA3113B5F0B8C00A60B1CE1D7E819D7A431D7C90EA0E5F,
        0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973,
    ),
}
_Point = Optional[Tuple[int, int]]


@dataclass(frozen=True)
class Certificate:
    """The parts of a certificate that matter for modules."""

    raw: bytes
    #: as DER, as signatures name it
    issuer: bytes
    serial: int
    #: common name of the owner, or the organization
    subject: str
    #: subject key identifier; empty without one
    key_id: bytes
    #: ``(hash, digest, signature) → bool``, or None for an unsupported kind of key
    verify: Optional[Callable[[str, bytes, bytes], bool]]

    @property
    def identities(self) -> FrozenSet[str]:
        """How signatures by this key name it; see :attr:`signature.Signature.identity`."""
        names = {f"{self.issuer.hex()}/{self.serial}"}
        return frozenset(names | ({f"key id {self.key_id.hex()}"} if self.key_id else set()))

    @property
    def fingerprint(self) -> str:
        """How mokutil and the MOK manager's screen show it: SHA-1, pairs of hex digits with colons."""
        digest = hashlib.sha1(self.raw).hexdigest()  # noqa: S324 # nosec B324 # a name, not a proof
        return ":".join(digest[place : place + 2] for place in range(0, len(digest), 2))


def read_certificate(data: bytes) -> Certificate:
    """The certificate that ``data`` (DER) begins with; raises DerError."""
    outer = first(data).expect(SEQUENCE)
    parts = first(outer.body).expect(SEQUENCE).children()
    # The version is left out in those of version 1.
    if parts and parts[0].tag == context(0):
        parts = parts[1:]
    if len(parts) < 6:
        raise DerError(f"has {len(parts)} parts where a certificate has 6 and more")
    serial, _algorithm, issuer, _validity, subject, key = parts[:6]
    return Certificate(
        raw=outer.raw,
        issuer=issuer.expect(SEQUENCE).raw,
        serial=serial.number(),
        subject=name(subject),
        key_id=_key_id(parts[6:]),
        verify=_verifier(key),
    )


def name(node: Node) -> str:
    """The common name in a Name, or its organization; empty when it has neither."""
    values: Dict[str, str] = {}
    for group in node.expect(SEQUENCE).children():
        for pair in (attribute.children() for attribute in group.children()):
            if len(pair) == 2:
                values.setdefault(pair[0].oid(), pair[1].body.decode("utf-8", "replace"))
    return values.get(_COMMON_NAME, values.get(_ORGANIZATION, ""))


def _key_id(parts: Any) -> bytes:
    for part in (part for part in parts if part.tag == context(3)):
        for extension in first(part.body).children():
            fields = extension.children()
            if fields and fields[0].oid() == _KEY_ID:
                return first(fields[-1].expect(OCTET_STRING).body).expect(OCTET_STRING).body
    return b""


def _verifier(key: Node) -> Optional[Callable[[str, bytes, bytes], bool]]:
    algorithm, bits = key.expect(SEQUENCE).children()[:2]
    fields = algorithm.children()
    value = bits.expect(BIT_STRING).body[1:]
    if fields and fields[0].oid() == _RSA:
        numbers = first(value).children()
        modulus, exponent = numbers[0].number(), numbers[1].number()
        if modulus.bit_length() > _RSA_BITS or not 0 < exponent < 1 << 64:
            return None
        return lambda hashed, digest, signature: _rsa(modulus, exponent, hashed, digest, signature)
    if len(fields) > 1 and fields[0].oid() == _EC and fields[1].tag == OID and fields[1].oid() in _CURVES:
        curve = _CURVES[fields[1].oid()]
        size = (curve.p.bit_length() + 7) // 8
        if len(value) == 1 + 2 * size and value[0] == 4:
            point = (int.from_bytes(value[1 : 1 + size], "big"), int.from_bytes(value[1 + size :], "big"))
            return lambda _hashed, digest, signature: _ecdsa(curve, point, digest, signature)
    return None


def _rsa(modulus: int, exponent: int, hashed: str, digest: bytes, signature: bytes) -> bool:
    size = (modulus.bit_length() + 7) // 8
    oid = next(oid for oid, name in HASHES.items() if name == hashed)
    algorithm = _element(SEQUENCE, _encoded(oid) + b"\x05\x00")
    info = _element(SEQUENCE, algorithm + _element(OCTET_STRING, digest))
    if len(signature) != size or size < len(info) + 11:
        return False
    padded = b"\x00\x01" + b"\xff" * (size - len(info) - 3) + b"\x00" + info
    # The complete block is compared, so nothing can hide in unparsed bytes.
    return pow(int.from_bytes(signature, "big"), exponent, modulus).to_bytes(size, "big") == padded


def _ecdsa(curve: _Curve, key: Tuple[int, int], digest: bytes, signature: bytes) -> bool:
    try:
        r, s = (node.number() for node in only(signature).expect(SEQUENCE).children())
    except ValueError:
        return False
    x, y = key
    if not (0 < r < curve.n and 0 < s < curve.n) or (y * y - (x * x * x - 3 * x + curve.b)) % curve.p:
        return False
    value = int.from_bytes(digest, "big") >> max(0, 8 * len(digest) - curve.n.bit_length())
    inverse = pow(s, -1, curve.n)
    left = _times(curve, value * inverse % curve.n, (curve.x, curve.y))
    right = _times(curve, r * inverse % curve.n, key)
    point = _sum(curve, left, right)
    return point is not None and point[0] % curve.n == r


def _times(curve: _Curve, factor: int, point: _Point) -> _Point:
    result: _Point = None
    while factor:
        if factor & 1:
            result = _sum(curve, result, point)
        point = _sum(curve, point, point)
        factor >>= 1
    return result


def _sum(curve: _Curve, left: _Point, right: _Point) -> _Point:
    if left is None or right is None:
        return right if left is None else left
    (x1, y1), (x2, y2) = left, right
    if x1 == x2 and (y1 + y2) % curve.p == 0:
        return None
    rise, run = (3 * (x1 * x1 - 1), 2 * y1) if left == right else (y2 - y1, x2 - x1)
    slope = rise * pow(run, -1, curve.p)
    x = (slope * slope - x1 - x2) % curve.p
    return x, (slope * (x1 - x) - y1) % curve.p


def _element(tag: int, body: bytes) -> bytes:
    return bytes((tag, len(body))) + body


def _encoded(oid: str) -> bytes:
    numbers = list(map(int, oid.split(".")))
    out = b""
    for number in (40 * numbers[0] + numbers[1], *numbers[2:]):
        digits = [number & 0x7F]
        while number > 0x7F:
            number >>= 7
            digits.append(number & 0x7F | 0x80)
        out += bytes(reversed(digits))
    return _element(OID, out)
