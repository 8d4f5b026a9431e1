"""Phrases that several messages share."""

from __future__ import annotations

from typing import Sequence


def first_of(texts: Sequence[str], most: int, between: str = ", ", rest: str = " and {} more") -> str:
    """The first ``most`` of ``texts``, and how many more there are."""
    more = len(texts) - most
    return between.join(texts[:most]) + (rest.format(more) if more > 0 else "")
