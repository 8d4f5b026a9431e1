"""Combinations of options in order of preference, and why the refused ones were refused.  Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

from gdsdeploy.lock.compat import Combination, Rule, Verdict, judge
from gdsdeploy.lock.resolve.offer import Option
from gdsdeploy.model.lock import RefusedChoice

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
        yield from self._descend((), dict(self.base), frozenset())

    def _descend(
        self, chosen: Choice, facts: dict[str, str | None], subjects: frozenset[str]
    ) -> Generator[Choice, None, frozenset[int] | None]:
        """Yields the admitted completions of ``chosen``; returns which levels are to blame if there are none.

        A level that is not to blame need not be tried with its other options: NVIDIA's repository keeps every version
        that there ever was, and the product of all of them would take hours (conflict-directed backjumping).
        """
        level, success, blamed = len(chosen), False, frozenset[int]()
        if level == len(self.levels):
            yield chosen
            return None
        for option in self.levels[level]:
            picked = (*chosen, option)
            dead = self._dead(picked)
            if dead is not None:
                blamed |= dead - {level}
                continue
            if lack := option.without(chosen):
                self.against.append((picked, lack))
                blamed |= {0}
                continue
            all_facts = {**facts, **option.facts}
            # Rules that could be judged before this option was chosen have admitted the choice already.
            new = [rule for rule in self.rules if rule.looks_at <= all_facts.keys() and not rule.looks_at <= subjects]
            against = [verdict for verdict in judge(all_facts, new) if not verdict.allowed]
            if against:
                self.against += ((picked, verdict) for verdict in against)
                blamed |= min((self._levels_of(verdict, new) for verdict in against), key=sorted) - {level}
                continue
            below = yield from self._descend(picked, all_facts, frozenset(all_facts))
            if below is None:
                success = True
            elif level not in below:
                return below
            else:
                blamed |= below - {level}
        return None if success else blamed

    def _levels_of(self, verdict: Verdict, rules: Sequence[Rule]) -> frozenset[int]:
        """The levels whose options a rule looked at."""
        (subjects,) = (rule.looks_at for rule in rules if rule.id == verdict.rule)
        return frozenset(i for i, options in enumerate(self.levels) if options and subjects & options[0].facts.keys())

    def _dead(self, chosen: Choice) -> frozenset[int] | None:
        """The levels of options that were found not to go together, if these are among ``chosen``."""
        level_of = {id(option): level for level, option in enumerate(chosen)}
        for options in self.dead:
            if all(id(option) in level_of for option in options):
                return frozenset(level_of[id(option)] for option in options)
        return None

    def refused(self, final: Choice) -> list[RefusedChoice]:
        """What would have been preferred over ``final``, named by the first option in which it differs."""
        refused: dict[tuple[str, str], RefusedChoice] = {}
        for choice, verdict in self.against:
            what = next((a.label for a, b in zip(choice, final, strict=False) if a is not b), choice[-1].label)
            refused.setdefault((what, verdict.rule), RefusedChoice(what=what, rule=verdict.rule, words=verdict.words))
        return list(refused.values())

    def facts(self, choice: Choice) -> dict[str, str | None]:
        """Everything that the rules may test in a combination."""
        return {**self.base, **{key: value for option in choice for key, value in option.facts.items()}}

    def reasons(self) -> tuple[str, list[str]]:
        """The nearest combination in words, and every rule against the combinations, nearest first.

        A combination is nearer the fewer rules are against it; among equals the preferred one is.
        """
        ranking = []
        for number, choice in enumerate(itertools.product(*_at_most(self.levels, EXPLAINED))):
            lacks = [lack for place, option in enumerate(choice) if (lack := option.without(choice[:place]))]
            against = lacks + [verdict for verdict in judge(self.facts(choice), self.rules) if not verdict.allowed]
            ranking.append((len(against), number, choice, against))
        ranking.sort(key=lambda combination: combination[:2])
        verdicts = [verdict for *_, against in ranking for verdict in against]
        words = {verdict.rule: verdict.words for verdict in reversed(verdicts)}
        times = Counter(verdict.rule for verdict in verdicts)
        nearest = ", ".join(option.label for option in ranking[0][2]) if ranking else ""
        more = {rule: f" ({n} of {len(ranking)} combinations)" if len(ranking) > 1 else "" for rule, n in times.items()}
        for rule in self.rules:
            if rule.fixed and rule.id in more:
                more[rule.id] += f" Fixed in {rule.fixed}."
        return nearest, [f"[{rule}] {words[rule]}{more[rule]}" for rule in times]


def _at_most(levels: Sequence[Sequence[Option]], number: int) -> list[list[Option]]:
    """The most preferred options of each level, so that there are no more than ``number`` combinations."""
    shortlist = [list(options) for options in levels]
    while math.prod(map(len, shortlist)) > number:
        longest = max(shortlist, key=len)
        del longest[(len(longest) + 1) // 2 :]
    return shortlist
