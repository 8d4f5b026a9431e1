"""The JSON dialect of cufile.json, read as libcufile's own parser reads it, with the place of everything.

Every release from 1.4 to 1.20 contains the same parser: JsonCpp's ``Json::Reader`` with its default features, fed
through ``std::getline`` (the messages of the libraries name it).  It accepts ``//`` and ``/* */`` comments, repeated
keys of which the last counts, numbers such as ``007``, ``-`` and ``1.``, and any text after the closing brace.  It
refuses a trailing comma, and aborts the process over values deeper than 1,000.

docs/adr.md, 0008, says why no other parser is used.  Nothing here recurses, so no document is too deep.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["object", "array", "text", "int", "real", "bool", "null"]
Scalar = str | int | float | bool | None

#: ``Json::Reader`` throws over a value at a greater depth than this, and libcufile does not catch it.
DEEPEST = 1000
#: libcufile passes EOF to std::getline as the end of the line; as a char it is this byte.
END_OF_TEXT = b"\xff"

_BLANK = re.compile(r"[ \t\r\n]*")
#: The group that matches names the kind of a token.  A bad one is consumed as far as the library's parser does.
_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
    (?P<mark>[{}\[\],:])
    |(?P<text>"[^"\\]*(?:\\.[^"\\]*)*")
    # The parser looks for the end of a comment no further than the last character, and takes a lone slash there.
    |(?P<comment>//[^\r\n]*(?:\r\n|\r|\n)?|/\*.*?\*/|/\*.*/\Z)
    |(?P<number>[-0-9][0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?)
    |(?P<word>true|false|null)
    # Its end of text is the character NUL, wherever that stands.
    |(?P<end>\0|\Z)
    |(?P<open>"|/\*).*
    |(?P<error>/.?|.)
    )""",
    re.DOTALL | re.VERBOSE,
)
_OPEN = {'"': "this text has no closing quote", "/*": "this comment does not end"}
_HEX = "[0-9A-Fa-f]"
#: Both halves of a surrogate pair, another code, or a letter.
_ESCAPE = re.compile(rf"\\u([dD][89abAB]{_HEX}{{2}})\\u({_HEX}{{4}})|\\u({_HEX}{{4}})|\\(.)", re.DOTALL)
_ESCAPED = {'"': '"', "/": "/", "\\": "\\", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS: dict[str, tuple[Kind, bool | None]] = {"true": ("bool", True), "false": ("bool", False), "null": ("null", None)}
_MIN_INT, _MAX_UINT = -(2**63), 2**64 - 1


class Place(NamedTuple):
    """A position: line and column count from 1, the column in characters."""

    line: int
    column: int


class DocumentInvalid(Exception):
    """Text that the library's parser refuses, or (``aborts``) that ends the reading process."""

    def __init__(self, message: str, place: Place, *, aborts: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.aborts = aborts


@dataclass(slots=True)
class Node:
    """A value that begins at ``start`` of the text; ``value`` is that of a scalar."""

    kind: Kind
    start: int
    value: Scalar = None
    #: of an object, as written: repeated names too
    members: list[Member] = field(default_factory=list)
    #: of an array
    items: list[Node] = field(default_factory=list)

    def last(self, name: str) -> Member | None:
        """The member that counts: the last one of that name."""
        return next((member for member in reversed(self.members) if member.name == name), None)


@dataclass(frozen=True, slots=True)
class Member:
    """One ``"name": value`` of an object; the name begins at ``start``."""

    name: str
    start: int
    value: Node


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed text.  ``ignored``: offset of the first text after its end that is neither blank nor a comment."""

    root: Node
    ignored: int | None
    _lines: list[int]

    def place(self, offset: int) -> Place:
        """Line and column of an offset into ``text``."""
        return _place(self._lines, offset)


def read(data: bytes) -> Document:
    """Parse the content of a file; raises DocumentInvalid with the first error and its place."""
    text = data.split(END_OF_TEXT, 1)[0].decode("utf-8", "surrogateescape")
    lines = [0, *(newline.end() for newline in re.finditer("\n", text))]
    reader = _Reader(text)
    try:
        root = reader.read()
    except _Refused as refused:
        message, offset, aborts = refused.args
        raise DocumentInvalid(message, _place(lines, offset), aborts=aborts) from None
    rest = reader.past_comments().start
    return Document(root, rest if rest < len(text) else None, lines)


def _place(lines: list[int], offset: int) -> Place:
    line = bisect.bisect_right(lines, offset)
    return Place(line, offset - lines[line - 1] + 1)


class _Refused(Exception):
    """Message, offset, and whether the process aborts."""


class _Token(NamedTuple):
    #: one of ``{}[],:``, or the name of a group of _TOKEN
    kind: str
    start: int
    end: int
    #: of one that is bad in itself
    message: str


class _Reader:
    """The parser's state: the text, where it is, and the objects and arrays that are open."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = 0
        self.open: list[Node] = []

    def read(self) -> Node:
        root = self._value()
        while self.open:
            container = self.open[-1]
            if container.kind == "object":
                self._member(container)
            else:
                self._element(container)
        return root

    def _token(self) -> _Token:
        match = _TOKEN.match(self.text, self.offset)
        # Some alternative takes anything, and each has its group.
        assert match is not None
        assert match.lastgroup is not None
        kind, word, start = match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)
        self.offset = match.end()
        message = _OPEN.get(word, "expected a value" if word.startswith("/") else "")
        return _Token(word if kind == "mark" else kind, start, self.offset, message)

    def past_comments(self) -> _Token:
        token = self._token()
        while token.kind == "comment":
            token = self._token()
        return token

    def _value(self) -> Node:
        """Read a scalar, or open an object or array."""
        if len(self.open) >= DEEPEST:
            raise _Refused(f"more than {DEEPEST} objects and lists lie in one another", self.offset, True)
        token = self.past_comments()
        node = Node("null", token.start)
        match token.kind:
            case "{" | "[":
                node.kind = "object" if token.kind == "{" else "array"
                self.open.append(node)
            case "text":
                node.kind, node.value = "text", self._unescaped(token)
            case "number":
                node.kind, node.value = self._number(token)
            case "word":
                node.kind, node.value = _WORDS[self.text[token.start : token.end]]
            case _:
                raise _Refused(self._unexpected(token, "a value"), token.start, False)
        return node

    def _member(self, node: Node) -> None:
        """Read the next member of the object, or its end."""
        if node.members:
            token = self._token()
            if token.kind not in {",", "}", "comment"}:
                raise _Refused(self._unexpected(token, "',' or '}'"), token.start, False)
            # After a comment the parser takes any one token for the comma.
            while token.kind == "comment":
                token = self._token()
            if token.kind == "}":
                self.open.pop()
                return
        token = self.past_comments()
        # A comma after a member with an empty name is taken: the parser asks that name whether there was one.
        if token.kind == "}" and not (node.members and node.members[-1].name):
            self.open.pop()
            return
        if token.kind != "text":
            expected = "a name in double quotes" + ("" if node.members else " or '}'")
            raise _Refused(self._unexpected(token, expected), token.start, False)
        name = self._unescaped(token)
        colon = self._token()
        if colon.kind != ":":
            expected = f"':' after {_shortened(name)}"
            raise _Refused(self._unexpected(colon, expected), colon.start, False)
        node.members.append(Member(name, token.start, self._value()))

    def _element(self, node: Node) -> None:
        """Read the next item of the array, or its end."""
        if node.items:
            token = self.past_comments()
            if token.kind not in {",", "]"}:
                raise _Refused(self._unexpected(token, "',' or ']'"), token.start, False)
            if token.kind == "]":
                self.open.pop()
                return
        else:
            self.offset = _BLANK.match(self.text, self.offset).end()  # type: ignore[union-attr]  # it also matches nothing
            if self.text.startswith("]", self.offset):
                self.offset += 1
                self.open.pop()
                return
        node.items.append(self._value())

    def _unexpected(self, token: _Token, expected: str) -> str:
        """The problem with a token, and its usual cause."""
        if token.message and token.kind in {"open", "error"}:
            return token.message
        if token.kind == "end":
            at_end = token.start >= len(self.text)
            opened = f": {'{' if self.open[-1].kind == 'object' else '['} is not closed" if self.open else ""
            return ("the text ends here" if at_end else "NUL ends the text here") + f"; expected {expected}{opened}"
        before = self.text[: token.start].rstrip()
        if token.kind in {"}", "]"} and before.endswith(","):
            return f"expected {expected}: the comma before {token.kind!r} is one too many"
        if token.kind == "comment":
            return f"expected {expected}; no comment is allowed here"
        if self.text.startswith("\ufeff", token.start):
            return "this is a byte-order mark; save the file as UTF-8 without one"
        actual = self.text[token.start : max(token.end, token.start + 1)]
        actual = re.match(r"\w*", self.text[token.start : token.start + 20])[0] or actual  # type: ignore[index]  # see above
        return f"expected {expected} (found {_shortened(actual)})"

    def _number(self, token: _Token) -> tuple[Kind, int | float]:
        text = self.text[token.start : token.end]
        digits = text.removeprefix("-")
        significant = digits.lstrip("0")
        # Longer numbers don't fit into 64 bits, and int() refuses thousands of digits.
        if (digits.isdigit() or not digits) and len(significant) <= 20:
            whole = int(significant or "0") * (-1 if text.startswith("-") else 1)
            if _MIN_INT <= whole <= _MAX_UINT:
                return "int", whole
        try:
            real = float(text)
        except ValueError:
            raise _Refused(f"not a number: {_shortened(text)}", token.start, False) from None
        if real in {float("inf"), float("-inf")}:
            raise _Refused(f"too large a number: {_shortened(text)}", token.start, False)
        return "real", real

    def _unescaped(self, token: _Token) -> str:
        begin, text = token.start + 1, self.text[token.start + 1 : token.end - 1]

        def character(escape: re.Match[str]) -> str:
            high, low, code, letter = escape.groups()
            if high:
                # The second half of a pair isn't validated.
                return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))
            if code and not 0xD800 <= int(code, 16) <= 0xDBFF:
                return chr(int(code, 16))
            if letter in _ESCAPED:
                return _ESCAPED[letter]
            place, message = escape.start(), f"\\{letter} isn't an escape sequence"
            if code and not text.startswith("\\u", escape.end()):
                message = "the second half of a surrogate pair is missing"
            elif code or letter == "u":
                place, message = escape.end() if code else place, "\\u takes four hexadecimal digits"
            raise _Refused(message, begin + place, False)

        return _ESCAPE.sub(character, text)


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "…")
