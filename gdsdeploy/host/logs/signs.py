"""Lines and what they show: data/log_signs.json, and what other tables say about the same kinds of lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import (
    Callable,
    Dict,
    FrozenSet,
    Generic,
    Iterable,
    Iterator,
    List,
    Mapping,
    Pattern,
    Sequence,
    Tuple,
    TypeVar,
)

from .. import data
from ..facts.kernel_messages import meanings as kernel_meanings
from .parts import CUFILE, KERNEL

_WORD = re.compile("[a-z]{4,}")


@dataclass(frozen=True)
class Sign:
    """A row of the table; its schema describes the fields."""

    id: str
    part: str
    pattern: str
    sample: str
    means: str
    cause: str = ""
    others: Tuple[str, ...] = ()
    harmless: bool = False
    when: Mapping[str, str] = field(default_factory=dict, hash=False)
    source: str = ""
    certainty: str = ""
    own: bool = False


@dataclass(frozen=True)
class Fact:
    """A row of log_facts.json."""

    subject: str
    pattern: str
    sample: str
    value: str = ""


Row = TypeVar("Row")
#: (place in the table, pattern, row) of each row that may match.
Candidates = Sequence[Tuple[int, Pattern[str], Row]]


class Index(Generic[Row]):
    """Finds the rows whose pattern may match a line, by a word or a text that each line of the pattern has."""

    def __init__(self, rows: Iterable[Row], pattern_of: Callable[[Row], str]) -> None:
        self._by_word: Dict[str, List[Tuple[int, Pattern[str], Row]]] = {}
        self._by_text: List[Tuple[str, Tuple[int, Pattern[str], Row]]] = []
        for place, row in enumerate(rows):
            pattern = pattern_of(row)
            entry = (place, re.compile(pattern), row)
            words = {choice: key_word(choice) for choice in choices(pattern)}
            for choice, word in words.items():
                if word:
                    self._by_word.setdefault(word, []).append(entry)
                else:
                    self._by_text.append((max(literals(choice), key=len, default="").lower(), entry))
        self._words: FrozenSet[str] = frozenset(self._by_word)

    def candidates(self, line: str) -> Candidates[Row]:
        """Patterns that may match, in the order of the table."""
        lower = line.lower()
        by_place = {entry[0]: entry for text, entry in self._by_text if text in lower}
        for word in self._words.intersection(_WORD.findall(lower)):
            by_place.update((entry[0], entry) for entry in self._by_word[word])
        return [by_place[place] for place in sorted(by_place)]


def choices(pattern: str) -> List[str]:
    """The alternatives of a pattern: what ``|`` separates outside of groups and sets."""
    pieces, depth, at, start = [], 0, 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "[":
            at = _end_of_set(pattern, at)
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            pieces.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*pieces, pattern[start:]]


def key_word(pattern: str) -> str:
    """The longest word that every line has which the pattern matches; empty where none is certain.

    Only whole words count: a letter beside a group, a set or the pattern's end may continue in the line.
    """
    words = [
        word for piece in _literals(pattern) for word in re.findall("(?<=[^a-z])[a-z]{4,}(?=[^a-z])", piece.lower())
    ]
    return max(words, key=len, default="")


def literals(pattern: str) -> List[str]:
    """The pieces of text that every match has, for tests that compare them with the programs' own strings."""
    return [piece.strip("\n") for piece in _literals(pattern) if piece.strip()]


def _literals(pattern: str) -> Iterator[str]:
    depth, piece, at = 0, "", 0
    pieces: List[str] = []
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            escaped = pattern[at + 1 : at + 2]
            at += 2
            if escaped.isalnum():
                pieces, piece = [*pieces, piece], ""
            elif depth == 0:
                piece += escaped
            continue
        if char == "[":
            at = _end_of_set(pattern, at)
            pieces, piece = [*pieces, piece], ""
        elif char in "()":
            depth += 1 if char == "(" else -1
            pieces, piece = [*pieces, piece], ""
        elif char == "|" and depth == 0:
            return
        elif char in "?*{":
            pieces, piece = [*pieces, piece[:-1]], ""
            at = pattern.find("}", at) if char == "{" else at
        elif char in "^$":
            piece += "\n"
        elif char in ".+":
            pieces, piece = [*pieces, piece], ""
        elif depth == 0:
            piece += char
        at += 1
    yield from (text for text in [*pieces, piece] if text)


def _end_of_set(pattern: str, start: int) -> int:
    at = start + 1
    at += pattern[at : at + 1] == "^"
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at


@lru_cache(maxsize=1)
def signs() -> Tuple[Sign, ...]:
    """Rows of log_signs.json."""
    return data.rows("log_signs", Sign)


@lru_cache(maxsize=64)
def index(kind: str, faults: bool) -> Index[Sign]:
    """The signs that are looked for in lines of a kind: first those of the kind, then all others, but for a cufile.log.

    faults: for lines that libcufile itself calls a fault; broad signs are for these alone.  The kernel's messages that
    explain HOST knows come after the table's.
    """
    kernel = (
        Sign(
            "kernel." + row.id,
            KERNEL,
            row.pattern,
            row.sample,
            row.what,
            certainty="" if row.fault else "likely",
            harmless=not row.fault and row.cause != "application",
        )
        for row in kernel_meanings()
    )
    fitting = [sign for sign in (*signs(), *kernel) if not sign.own or (faults and sign.part == kind)]
    own = [sign for sign in fitting if sign.part == kind]
    others = [sign for sign in fitting if sign.part != kind]
    return Index(own if kind == CUFILE else [*own, *others], lambda sign: sign.pattern)


@lru_cache(maxsize=1)
def facts() -> Index[Fact]:
    """What shows the environment."""
    return Index(data.rows("log_facts", Fact), lambda fact: fact.pattern)
