"""X.509 certificates of keys that sign kernel modules.

Read DER (ITU-T X.690), as in PKCS#7 and X.509, within bounds: definite lengths, one-byte tags, no recursion.
"""

from __future__ import annotations

import hashlib
from typing import Any, FrozenSet, List, NamedTuple

#: Elements in one sequence; a certificate's longest has about 15, a name 10.
_CHILDREN_LIMIT = 256

INTEGER = 0x02
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
_COMMON_NAME, _ORGANIZATION = "2.5.4.3", "2.5.4.10"
_KEY_ID = "2.5.29.14"


class Certificate(NamedTuple):
    """The parts of a certificate that matter for modules."""

    raw: bytes
    #: as DER, as signatures name it
    issuer: bytes
    serial: int
    #: common name of the owner, or the organization
    subject: str
    #: subject key identifier; empty without one
    key_id: bytes

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
    serial, _algorithm, issuer, _validity, subject = parts[:5]
    return Certificate(
        raw=outer.raw,
        issuer=issuer.expect(SEQUENCE).raw,
        serial=serial.number(),
        subject=name(subject),
        key_id=_key_id(parts[6:]),
    )


def name(node: Node) -> str:
    """The common name in a Name, or its organization; empty when it has neither."""
    pairs = [each.children() for group in node.expect(SEQUENCE).children() for each in group.children()]
    # Of two with one name, the first counts.
    named = [(pair[0].oid(), pair[1].body.decode("utf-8", "replace")) for pair in pairs if len(pair) == 2]
    values = dict(reversed(named))
    return values.get(_COMMON_NAME, values.get(_ORGANIZATION, ""))


def _key_id(parts: Any) -> bytes:
    for part in (part for part in parts if part.tag == context(3)):
        for extension in first(part.body).children():
            fields = extension.children()
            if fields and fields[0].oid() == _KEY_ID:
                return first(fields[-1].expect(OCTET_STRING).body).expect(OCTET_STRING).body
    return b""
