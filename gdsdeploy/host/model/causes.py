"""Causes that several kinds of evidence show: a line of a log, or what a host is.  The table is data/causes.json."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Dict, Mapping, Tuple

from .. import data

#: Of a cause, or of a message of the kernel: its id, and what it follows from.
Link = Tuple[str, Tuple[str, ...]]


@dataclass(frozen=True)
class KnownCause:
    """A row of the table; its schema describes the fields."""

    #: stable, as ``gdsdeploy explain`` prints it
    id: str
    title: str
    fix: str
    #: an official document and its section, or where the fix was measured
    reference: str = ""
    #: of one that a log shows: root causes first
    rank: int = 999
    #: one command whose output decides whether it is this cause
    decide: str = ""
    #: what I/O does because of it: ``compat``, ``broken``, or empty where it may take any path
    path: str = ""
    #: subject of a text's setting → the condition on it that denies this cause; ``any``: whatever the text shows
    unless: Mapping[str, str] = field(default_factory=dict, hash=False)
    #: id of the cause that it is then
    instead: str = ""
    #: causes that it usually follows from: their ids, or what these begin with, up to a dot or hyphen
    follows: Tuple[str, ...] = ()

    @property
    def link(self) -> Link:
        return self.id, self.follows


def is_after(consequence: Link, cause: Link) -> bool:
    """Whether the first follows from the second; not where each may follow from the other."""
    return _names(consequence[1], cause[0]) and not _names(cause[1], consequence[0]) and consequence[0] != cause[0]


def _names(follows: Tuple[str, ...], ident: str) -> bool:
    return any(ident == name or (name[-1] in ".-" and ident.startswith(name)) for name in follows)


@lru_cache(maxsize=1)
def _rows() -> Dict[str, KnownCause]:
    return {row.id: row for row in data.rows("causes", KnownCause)}


def has(ident: str) -> bool:
    """Whether the table has this id."""
    return ident in _rows()


_PLACE = re.compile(r"\{(\w+)(?:\|([^}]*))?\}")


def filled(text: str, values: Mapping[str, str]) -> str:
    """``{name|words}`` in a text of a table: the value of ``name``, or the words where it's missing or empty."""
    return _PLACE.sub(lambda place: values.get(place[1]) or place[2] or "", text)


def row(ident: str, values: Mapping[str, str] = MappingProxyType({})) -> KnownCause:
    """The cause with this id, its title and fix filled with ``values``; raises KeyError."""
    found = _rows()[ident]
    return replace(found, title=filled(found.title, values), fix=filled(found.fix, values))
