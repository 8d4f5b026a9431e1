"""The environment that all parts of a text show together: versions, devices, and how the host is set up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, Mapping, Optional, Tuple

from ..model.compat import VERSIONS, holds
from . import signs
from .parts import Line, Part

#: What may follow a version in its longer form.
_CONTINUES = ("", ".", "-", "+", "~")
#: Most values kept of one subject, e.g. GPU models.
VALUES = 8


@dataclass(frozen=True)
class Setting:
    """Subject → value → the first line that shows it.  Several values of one subject are all kept."""

    shown: Mapping[str, Mapping[str, Line]]

    def values(self, subject: str) -> Tuple[str, ...]:
        """What the text shows of a subject, in its order."""
        return tuple(self.shown.get(subject, ()))

    def value(self, subject: str) -> Optional[str]:
        """The one value of a subject; None where the text shows none, or several.

        6.17.0 and 6.17.0-5-generic are one: the longer one has more of it.
        """
        values = self.values(subject)
        longest = max(values, key=len, default="")
        same = all(longest.startswith(value) and longest[len(value) :][:1] in _CONTINUES for value in values)
        return longest if values and same else None

    def meets(self, conditions: Mapping[str, str]) -> Optional[bool]:
        """Whether all conditions hold; None: the text doesn't show one of the subjects."""
        answers = [self._meets(subject, text) for subject, text in conditions.items()]
        return False if False in answers else None if None in answers else True

    def _meets(self, subject: str, text: str) -> Optional[bool]:
        values = self.values(subject)
        if not values:
            return None
        return any(holds(subject, (text,), value) for value in values if value[:1].isdigit() or subject not in VERSIONS)


def setting(parts: Iterable[Part]) -> Setting:
    """Draw the setting from all parts."""
    shown: Dict[str, Dict[str, Line]] = {}
    candidates: Dict[str, signs.Candidates[signs.Fact]] = {}
    for line in (line for part in parts for line in part.lines):
        _look(line, candidates, shown)
    return Setting(shown)


def _look(line: Line, cache: Dict[str, signs.Candidates[signs.Fact]], shown: Dict[str, Dict[str, Line]]) -> None:
    if line.key not in cache:
        # What doesn't fit one line doesn't fit others that differ by numbers alone.
        cache[line.key] = [entry for entry in signs.facts().candidates(line.text) if entry[1].search(line.text)]
    for _, pattern, fact in cache[line.key]:
        if len(shown.get(fact.subject, ())) < VALUES:
            match = pattern.search(line.text)
            if match:
                shown.setdefault(fact.subject, {}).setdefault(fact.value or match["v"].strip(), line)
