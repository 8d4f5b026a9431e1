"""Rows of text as a table: columns aligned, two spaces between them."""

from __future__ import annotations

from typing import List, Sequence


def aligned(rows: Sequence[Sequence[str]], indent: str = "") -> List[str]:
    """A line for each row.  All rows have the same number of cells; ``indent`` is put before each line."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [(indent + "  ".join(c.ljust(w) for c, w in zip(row, widths))).rstrip() for row in rows]
