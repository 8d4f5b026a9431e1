"""Damaged and hostile inputs made from good ones: the same seed of the random numbers gives the same inputs."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

#: Texts that have broken readers: of terminals, templates, shells, paths, formats, and of types that they are not.
TEXTS = (
    *("", "\0", "\x1b]0;x\x07", "\u202e", "\ud800", "\ufeff", "\n", "\r\n---\n", "a" * 5000, "é" * 300),
    *("{{ 1/0 }}", "${x}", "$(id)", "../../etc/passwd", "<script>", "%s%n", "{0.__class__}"),
    *("-1", "0", "9" * 30, "9" * 5000, "0x" + "f" * 5000, "1e999", "nan", "2026-02-30", "0000-00-00T00:00:00Z"),
    *("true", "null", "~", "? [a]", "@", "`", "%", "builde[rs", "(x", ":", ": ", "'", '"', "!!binary ="),
    *("[" * 70, "[" * 3000, "{" * 70, "(" * 3000, "- " * 70, '{"a":' * 3000),
    *("&a [*a]", "*a", "&a", "<<: *a", "!!int x"),
)
DEEP: list[Any] = []
for _ in range(80):
    DEEP = [DEEP]
#: What JSON may have in place of anything.
VALUES = (
    *(None, True, False, 0, -1, 2**63, 2**64, 10**30, 1.5, 1e308, float("nan")),
    *([], {}, [None], {"": None}, [[]], {"a": {"b": []}}, [1, "a"], DEEP, ["x"] * 300),
    *TEXTS,
)
_WORD = re.compile(rb"[A-Za-z0-9._:/+-]+")


def damaged(data: bytes, random: Random) -> bytes:
    """``data`` with one to four things wrong with it."""
    for _ in range(random.randint(1, 4)):
        data = random.choice(_WAYS)(data, random)
    return data


def _flip(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data) or 1)
    return data[:place] + bytes([random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))]) + data[place + 1 :]


def _cut(data: bytes, random: Random) -> bytes:
    begin, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    return random.choice((data[:begin], data[end:], data[:begin] + data[end:], data[:end] + data[begin:]))


def _insert(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + _text(random) + data[place:]


def _word(data: bytes, random: Random) -> bytes:
    """Another word in place of one."""
    words = list(_WORD.finditer(data, 0, 1 << 18))
    if not words:
        return data
    word = random.choice(words)
    return data[: word.start()] + _text(random) + data[word.end() :]


def _lines(data: bytes, random: Random) -> bytes:
    """Lines gone, doubled, moved, or further in."""
    lines = data.split(b"\n")
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    way = random.randrange(4)
    if way == 0:
        del lines[one]
    elif way == 1:
        lines.insert(other, lines[one])
    elif way == 2:
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines[one] = b"  " + lines[one] if random.random() < 0.5 else lines[one].lstrip()
    return b"\n".join(lines)


def _text(random: Random) -> bytes:
    return random.choice(TEXTS).encode("utf-8", "surrogatepass")


_WAYS: tuple[Callable[[bytes, Random], bytes], ...] = (_flip, _cut, _insert, _word, _word, _lines, _lines)


def damaged_json(data: bytes, random: Random) -> bytes:
    """Likewise, of a JSON document, mostly so that it still is one."""
    if random.random() < 0.2:
        return damaged(data, random)
    return json.dumps(changed(json.loads(data), random)).encode()


def changed(value: Any, random: Random) -> Any:
    """A document of which one to four parts were exchanged, taken out, or named otherwise; ``value`` itself may be."""
    for _ in range(random.randint(1, 4)):
        places = list(_places(value))
        if not places or random.random() < 0.01:
            return copy.deepcopy(random.choice(VALUES))
        inner, key = random.choice(places)
        way = random.randrange(5)
        if way == 0:
            del inner[key]
        elif way == 1 and isinstance(inner, dict):
            inner[random.choice(TEXTS)] = inner.pop(key)
        elif way == 2:
            other, at = random.choice(places)
            with_other = other[at] if (at in other if isinstance(other, dict) else at < len(other)) else None
            inner[key] = json.loads(json.dumps(with_other))
        else:
            inner[key] = copy.deepcopy(random.choice(VALUES))
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(list or object, index or key) of everything in a document."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
