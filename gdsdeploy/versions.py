"""Version expressions, one grammar for the pins of a fleet file and the conditions of compat.yml.

``newest``              anything
``550``                 a branch: 550 itself and whatever follows it after ``.``, ``-``, ``+`` or ``~``
``550.163.01``          likewise, so an exact version where nothing follows
``==550.163.01``        exactly this and nothing that continues it
``>=550, <560``         bounds, all of which hold
``!=2.25.6``            everything but this branch
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gdsdeploy.repo.order import deb

_TERM = re.compile(r"^(?P<operator><=|>=|==|!=|<|>|=)?\s*(?P<version>[0-9][0-9A-Za-z.+~:_-]*)$")
_CONTINUES = (".", "-", "+", "~")


@dataclass(frozen=True)
class Term:
    """One operator and one version; an empty operator asks for a branch."""

    operator: str
    version: str

    def admits(self, names: Sequence[str]) -> bool:
        """Whether a thing with these version names fits; the first name is the one that bounds compare."""
        have = names[0]
        if self.operator in ("", "!="):
            within = any(n == self.version or n.startswith(tuple(self.version + c for c in _CONTINUES)) for n in names)
            return within is (self.operator == "")
        if self.operator in ("=", "=="):
            return self.version in names
        if self.operator == "<":
            return deb(have) < deb(self.version)
        if self.operator == "<=":
            return deb(have) <= deb(self.version)
        if self.operator == ">":
            return deb(have) > deb(self.version)
        return deb(have) >= deb(self.version)


@dataclass(frozen=True)
class Expression:
    """Terms that all have to hold; no terms admit anything."""

    text: str
    terms: tuple[Term, ...]

    def admits(self, *names: str) -> bool:
        """Whether a thing that goes by these version names fits; bounds look at the first name only."""
        return all(term.admits(names) for term in self.terms)

    def __str__(self) -> str:
        return self.text


def parse(text: str) -> Expression:
    """Read an expression; raises ValueError naming the part that is none."""
    if text.strip() == "newest":
        return Expression("newest", ())
    terms = []
    for part in text.split(","):
        match = _TERM.match(part.strip())
        if match is None:
            raise ValueError(f"not a version expression: {part.strip()!r}")
        if match["operator"] and match["operator"] not in ("=", "==", "!="):
            deb(match["version"])  # an order needs a real version
        terms.append(Term(match["operator"] or "", match["version"]))
    return Expression(text.strip(), tuple(terms))
