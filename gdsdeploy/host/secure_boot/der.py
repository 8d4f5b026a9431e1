"""Read DER (ITU-T X.690), as in PKCS#7 and X.509, within bounds: definite lengths, one-byte tags, no recursion."""

from __future__ import annotations

from typing import List, NamedTuple

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
