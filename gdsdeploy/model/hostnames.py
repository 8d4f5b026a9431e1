"""Names of hosts in few words: ``node[1-3,7]``.  Folding and expanding, natural order, groups of alike hosts.

A name's numbers are its runs of the digits 0-9.  A range keeps the width of its first number: ``node[08-11]`` is
node08 to node11, ``node[8-11]`` is node8 to node11.  A group is the product of its ranges, so names that differ in two
numbers share a group only where every combination is a name.
"""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, TypeVar

K = TypeVar("K", bound=Hashable)
N = TypeVar("N")
#: Columns for the names of a group of hosts.
WIDTH: Final = 100
#: Names that one text may expand to.
MOST: Final = 100_000
_NUMBER: Final = re.compile(r"([0-9]+)")
_BRACKETS: Final = re.compile(r"(\[[^\[\]]*\])")
#: Of one number alone, brackets are a shell pattern: ``gpu[12]``.
_RANGES: Final = re.compile(r"\[((?![0-9]+\])[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*)\]")


@functools.lru_cache(2 * MOST)
def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key to sort by: numbers by value, ``rack9`` before ``rack10``; the text itself decides between 01 and 1."""
    parts = filter(None, _NUMBER.split(text))
    return (*((int(part), "") if _NUMBER.fullmatch(part) else (-1, part) for part in parts), (-2, text))


def fold(names: Iterable[str]) -> str:
    """Each of ``names`` once, in natural order and as few groups: ``gpu[1-2].rack1, login``."""
    return _fold(tuple(sorted(set(names), key=natural)))


# A report names the same hosts in its table, in headings and in commands.
@functools.lru_cache(64)
def _fold(names: tuple[str, ...]) -> str:
    groups = [tuple(_NUMBER.split(name)) for name in names]
    places = range(1, max(map(len, groups), default=0), 2)
    # Which number is folded first decides how many groups are left.
    fewest = min((_merge(groups, order) for order in (places, places[::-1])), key=len)
    return ", ".join(map("".join, fewest))


def _merge(groups: list[tuple[str, ...]], places: range) -> list[tuple[str, ...]]:
    """The groups after those that differ at one place only became one, place by place."""
    for place in places:
        alike: dict[tuple[str, ...], list[str]] = {}
        for group in groups:
            alike.setdefault((*group[:place], "", *group[place + 1 :]), []).append("".join(group[place : place + 1]))
        groups = [(*rest[:place], _ranges(values), *rest[place + 1 :]) for rest, values in alike.items()]
    return groups


def _ranges(numbers: list[str]) -> str:
    """``[1-3,7]``; a single number, and what isn't a number any more, as it is."""
    if len(numbers) == 1:
        return numbers[0]
    rest, parts = dict.fromkeys(numbers), []
    for first in numbers:
        if first in rest:
            last = first
            while (following := str(int(last) + 1).zfill(len(first))) in rest:
                del rest[following]
                last = following
            parts.append(first if last == first else f"{first}-{last}")
    return f"[{','.join(parts)}]"


def split(text: str) -> list[str]:
    """The groups of a folded text, which commas separate."""
    groups = [""]
    for at, part in enumerate(_BRACKETS.split(text)):
        first, *others = [part] if at % 2 else part.split(",")
        groups[-1] += first
        groups += others
    return [group.strip() for group in groups]


def expand(text: str) -> list[str]:
    """The names that a folded text stands for, in its order.  Raises ValueError for more than MOST."""
    names: list[str] = []
    for group in split(text):
        parts = [tuple(_values(part)) if at % 2 else (part,) for at, part in enumerate(_RANGES.split(group))]
        names += ("".join(values) for values in itertools.islice(itertools.product(*parts), MOST + 1))
        if len(names) > MOST:
            raise ValueError(f"{text[:80]} has more than {MOST} names")
    return names


def _values(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        yield from (str(number).zfill(len(first)) for number in numbers[: MOST + 1])


def words(names: Iterable[str], width: int = WIDTH) -> str:
    """The names folded; where that takes more than ``width`` columns, the first ones and how many more there are.

    width: 0: all of them.
    """
    ordered = sorted(set(names), key=natural)
    whole = fold(ordered)
    if not width or len(whole) <= width:
        return whole
    fitting = bisect_right(range(1, len(ordered)), width, key=lambda number: len(fold(ordered[:number]))) or 1
    return f"{fold(ordered[:fitting])} and {len(ordered) - fitting} more"


def grouped(values: Iterable[tuple[N, K]]) -> dict[K, list[N]]:
    """Value → the names, or other things, that have it; the most of them first, otherwise in the values' order."""
    groups: dict[K, list[N]] = {}
    for name, value in values:
        groups.setdefault(value, []).append(name)
    return dict(sorted(groups.items(), key=lambda group: -len(group[1])))
