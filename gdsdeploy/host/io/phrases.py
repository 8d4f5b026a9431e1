"""Phrases that several messages share."""

from __future__ import annotations

from typing import Sequence


def first_few(words: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first ``most`` of ``words``, and how many more there are."""
    rest = len(words) - most
    gap = " " if separator == ", " else separator
    return separator.join(words[:most]) + (f"{gap}and {rest} more" if rest > 0 else "")


def span(seconds: float) -> str:
    """Seconds in words: ``8 s``, ``12 min``, ``1 h 05 min``, ``2 d 3 h``."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def count(number: int, noun: str) -> str:
    """``1 host``, ``2 hosts``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
