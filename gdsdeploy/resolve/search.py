"""Combinations of options in order of preference, and why the refused ones were refused.  Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gdsdeploy.compat import Combination, Rule, Verdict, judge
from gdsdeploy.model.lock import Refused
from gdsdeploy.resolve.options import Option

#: Combinations that are looked at to explain a failure; the nearest are among the first.
EXPLAINED = 5000

Choice = tuple[Option, ...]


@dataclass
class Search:
    """Walks the options of all subjects, newest first, and prunes what a rule refuses as soon as it can be judged."""

    base: Combination
    levels: Sequence[Sequence[Option]]
    rules: Sequence[Rule]
    #: combinations, complete or not, that were passed over before the last choice that was yielded
    against: list[tuple[Choice, Verdict]] = field(default_factory=list)
    #: options that were found not to go together, whatever else is chosen
    dead: list[Choice] = field(default_factory=list)

    def choices(self) -> Iterator[Choice]:
        """Every admitted combination, most preferred first."""
        return self._descend((), dict(self.base), frozenset())

    def _descend(self, chosen: Choice, facts: dict[str, str | None], known: frozenset[str]) -> Iterator[Choice]:
        if len(chosen) == len(self.levels):
            yield chosen
            return
        for option in self.levels[len(chosen)]:
            if self._is_dead((*chosen, option)):
                continue
            here = {**facts, **option.facts}
            # Rules that could be judged before this option was chosen have admitted the choice already.
            new = [rule for rule in self.rules if rule.subjects() <= here.keys() and not rule.subjects() <= known]
            against = [((*chosen, option), verdict) for verdict in judge(here, new) if not verdict.allowed]
            self.against += against
            if not against:
                yield from self._descend((*chosen, option), here, frozenset(here))

    def _is_dead(self, chosen: Choice) -> bool:
        there = {id(option) for option in chosen}
        return any(all(id(option) in there for option in options) for options in self.dead)

    def refused(self, final: Choice) -> list[Refused]:
        """What would have been preferred over ``final``, named by the first option in which it differs."""
        found: dict[tuple[str, str], Refused] = {}
        for choice, verdict in self.against:
            what = next((a.label for a, b in zip(choice, final, strict=False) if a is not b), choice[-1].label)
            found.setdefault((what, verdict.rule), Refused(what=what, rule=verdict.rule, words=verdict.words))
        return list(found.values())

    def facts(self, choice: Choice) -> dict[str, str | None]:
        """Everything that the rules may ask about a combination."""
        facts = dict(self.base)
        for option in choice:
            facts.update(option.facts)
        return facts

    def reasons(self) -> tuple[str, list[str]]:
        """The nearest combination in words, and every rule against the combinations, nearest first.

        A combination is nearer the fewer rules are against it; among equals the preferred one is.
        """
        judged = []
        for number, choice in enumerate(itertools.islice(itertools.product(*self.levels), EXPLAINED)):
            against = [verdict for verdict in judge(self.facts(choice), self.rules) if not verdict.allowed]
            judged.append((len(against), number, choice, against))
        judged.sort(key=lambda item: item[:2])
        words: dict[str, str] = {}
        times: dict[str, int] = {}
        for _, _, _, against in judged:
            for verdict in against:
                words.setdefault(verdict.rule, verdict.words)
                times[verdict.rule] = times.get(verdict.rule, 0) + 1
        nearest = ", ".join(option.label for option in judged[0][2]) if judged else ""
        more = {rule: f" ({n} of {len(judged)} combinations)" if len(judged) > 1 else "" for rule, n in times.items()}
        return nearest, [f"[{rule}] {text}{more[rule]}" for rule, text in words.items()]
