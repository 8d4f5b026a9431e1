"""Phrases that several messages share."""

from __future__ import annotations

from typing import Sequence


def first_few(words: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first ``most`` of ``words``, and how many more there are."""
    rest = len(words) - most
    gap = " " if separator == ", " else separator
    return separator.join(words[:most]) + (f"{gap}and {rest} more" if rest > 0 else "")
