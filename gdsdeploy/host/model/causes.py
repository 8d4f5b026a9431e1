"""Causes that several kinds of evidence show: a line of a log, or what a host is.  The table is data/causes.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
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
    #: subject of a text's setting → the condition on it that denies this cause; ``any``: whatever the text shows
    unless: Mapping[str, str] = field(default_factory=dict, hash=False)
    #: id of the cause that it is then
    instead: str = ""


@lru_cache(maxsize=1)
def _rows() -> Dict[str, KnownCause]:
    return {row.id: row for row in data.rows("causes", KnownCause)}


def has(ident: str) -> bool:
    """Whether the table has this id."""
    return ident in _rows()


def row(ident: str) -> KnownCause:
    """The cause with this id; raises KeyError."""
    return _rows()[ident]
