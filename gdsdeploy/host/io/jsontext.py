"""Untrusted JSON, with bounds on size, nesting and numbers that hold before it is parsed.  Pure."""

from __future__ import annotations

import contextlib
import json
import math
import re
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

#: Characters.  The evidence of a host has less than a tenth of it.
LIMIT = 8 * 1024 * 1024
#: Items for which there is always room, and characters for each beyond: small items take more memory than their text.
_ITEMS, _SPARSE = 100_000, 8
#: Digits of what 64 bits hold.
_DIGITS = 20
#: Characters of a long text that are read at once.
_PIECE = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
#: Of lists and objects in each other.
_DEPTH = 64
_TOO_DEEP = f"it is nested more than {_DEPTH} deep"
#: Half of a surrogate pair in ASCII, which no program can write again; it begins as it is found fast in a long text.
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class NotJsonError(ValueError):
    """A text that isn't JSON at all."""


def loads(text: str, *, limit: int = LIMIT, items: int = 0, more: bool = False) -> Any:
    """The value that the JSON ``text`` is; half of a surrogate pair becomes U+FFFD.

    limit: in characters.  items: at most; 0: as its size allows.
    more: something else may follow the value.
    Raises ValueError: larger or deeper, with a number of more than 64 bits, or with a key twice; NotJsonError.
    """
    if len(text) > limit:
        raise ValueError(f"it has more than {limit} characters")
    _require_few(text, items)
    text = text.lstrip()
    try:
        value, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        raise NotJsonError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if not more and text[end:].strip():
        raise NotJsonError(f"not JSON: more after character {end}")
    return _checked(value, text)


def _checked(value: Any, text: str) -> Any:
    """The ``value`` of ``text``, which is not too deep, as one that can be written."""
    level = _containers([value])
    for _ in range(_DEPTH):
        level = [inner for outer in level for inner in _containers(outer)]
    if level:
        raise ValueError(_TOO_DEEP)
    return value if text.isascii() and not _HALF.search(text) else _without_surrogates(value)


def _require_few(text: str, items: int = 0) -> None:
    if sum(map(text.count, ",[{")) > (items or max(_ITEMS, len(text) // _SPARSE)):
        raise ValueError("it has too many items for its size")


def members(read: Callable[[int], str], inside: str) -> Iterator[Tuple[Tuple[str, ...], Any]]:
    """Each member of a JSON object, and of the object that its member ``inside`` is: (name,) or (inside, name), value.

    read: gives at most so many of the next characters, none at the end.  A value is within the bounds of :func:`loads`;
    how many there are is up to the caller.  Raises what it raises, and what ``read`` raises.
    """
    yield from _members(_Stream(read), (), inside)


def _members(stream: _Stream, above: Tuple[str, ...], inside: str) -> Iterator[Tuple[Tuple[str, ...], Any]]:
    names: Set[str] = set()
    stream.require("{")
    while stream.next() != "}":
        if names:
            stream.require(",")
        name = str(stream.value()) if stream.next() == '"' else ""
        stream.require(":")
        if name in names:
            raise ValueError("an object has a key twice")
        names.add(name)
        if (*above, name) == (inside,) and stream.next() == "{":
            yield from _members(stream, (inside,), inside)
        else:
            yield (*above, name), stream.value()
    stream.require("}")
    if not above and stream.next():
        stream.require("its end")


class _Stream:
    """What is read of a text, and a place in it."""

    def __init__(self, read: Callable[[int], str]) -> None:
        self._read = read
        self._text, self._at = "", 0

    def next(self) -> str:
        """The next character that isn't white space; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def require(self, words: str) -> None:
        """Step over this character; raises NotJsonError with the words for what should be here."""
        if self.next() != words:
            # Without what stands here: it may be a line of a file with secrets.
            raise NotJsonError(f"not JSON: {words} is missing")
        self._at += 1

    def value(self) -> Any:
        """The value that begins here."""
        self.next()
        while len(self._text) - self._at <= LIMIT:
            with contextlib.suppress(json.JSONDecodeError, RecursionError):
                value, end = _DECODER.raw_decode(self._text, self._at)
                # Before anything else, a number may go on.
                if self._text[end : end + 1] in tuple(",}]: \t\r\n"):
                    text, self._at = self._text[self._at : end], end
                    return _checked(value, text)
            if not self._more():
                break
        # Which says why.
        text, self._at = self._text[self._at :], len(self._text)
        return loads(text)

    def _more(self) -> bool:
        """Whether there was more to read; what was read before this place is forgotten."""
        text = self._read(_PIECE)
        self._text, self._at = self._text[self._at :] + text, 0
        _require_few(self._text)
        return bool(text)


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > _DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _fraction(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_DIGITS]} is no number that can be used")
    return value


def _containers(value: Any) -> List[Any]:
    return [
        inner for inner in (value.values() if isinstance(value, dict) else value) if isinstance(inner, (dict, list))
    ]


def _without_surrogates(value: Any) -> Any:
    """``value`` with every string as one that can be written."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return _object([(_without_surrogates(key), _without_surrogates(inner)) for key, inner in value.items()])
    return [_without_surrogates(inner) for inner in value] if isinstance(value, list) else value


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a key twice")
    return members


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_fraction
)
