"""Causes that pasted logs show as well: their fixes and references are rows of data/causes.json."""

from __future__ import annotations

from typing import Tuple

from ..model import causes
from .cause import Cause


def cause(ident: str, evidence: Tuple[str, ...] = (), what: str = "") -> Cause:
    """The cause with this id; ``what``: what this host adds to the row's title, or says instead."""
    row = causes.row(ident)
    return Cause(ident, what or row.title, row.fix, evidence, row.reference)
