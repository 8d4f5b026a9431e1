"""Patterns that texts of a fleet file have to match, and what to say of them to people."""

from __future__ import annotations

from pydantic import StringConstraints

#: Pattern → what a text that matches it is.
WORDS: dict[str, str] = {}


def matching(pattern: str, words: str) -> StringConstraints:
    """A constraint on a text.  words: what to write, for whoever wrote something else."""
    WORDS[pattern] = words
    return StringConstraints(pattern=pattern)
