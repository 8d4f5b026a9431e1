"""Causes that several kinds of evidence show: a line of a log, or what a host is.  The table is data/causes.json."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Dict, Mapping

from .. import data


@dataclass(frozen=True)
class KnownCause:
    """A row of the table; its schema describes the fields."""

    #: stable, as ``gdsdeploy explain`` prints it
    id: str
    title: str
    fix: str
    #: an official document and its section, or where the fix was measured
    reference: str
    #: root causes first
    rank: int
    #: one command whose output decides whether it is this cause
    decide: str = ""
    #: what I/O does because of it: ``compat``, ``broken``, or empty where it may take any path
    path: str = ""


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
    """The cause with this id, its fix filled with ``values``; raises KeyError."""
    found = _rows()[ident]
    return replace(found, fix=filled(found.fix, values))
