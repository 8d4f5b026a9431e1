"""What earlier rollouts of a fleet have shown: which was the last one, and how long hosts take."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from gdsdeploy.converge.diff import Disruption, HostPlan
from gdsdeploy.model.rollout import Outcome
from gdsdeploy.rollout import journal, status

#: Seconds for a host, where no earlier rollout of the fleet has shown how long it takes.
GUESS: Mapping[Disruption, float] = {"none": 300.0, "module reload": 600.0, "reboot": 1200.0}
#: Earlier rollouts that are looked at for times.
LOOKED_AT = 10


def newest(fleet_path: Path) -> journal.Summary | None:
    """The fleet's newest rollout; None: there was none.  Raises JournalUnusable."""
    path = journal.path_of(fleet_path)
    if not path.exists():
        return None
    with journal.reading(path) as book:
        return next(reversed(book.rollouts()), None)


def expected(fleet_path: Path, plans: Mapping[str, HostPlan]) -> tuple[dict[str, float], bool]:
    """Host → seconds, from the last time that it was done; else as long as others took; else a guess."""
    own, others = _took(fleet_path)
    found: dict[str, float] = {}
    for name, plan in plans.items():
        if plan.satisfied:
            found[name] = 0.0
        elif (name, plan.disruption) in own:
            found[name] = own[name, plan.disruption]
        elif plan.disruption in others:
            found[name] = statistics.median(others[plan.disruption])
        else:
            found[name] = GUESS[plan.disruption]
    return {name: round(seconds, 1) for name, seconds in found.items()}, bool(others)


def _took(fleet_path: Path) -> tuple[dict[tuple[str, str], float], dict[str, list[float]]]:
    """(host, disruption) → seconds the last time, and disruption → seconds of all; of hosts that were done."""
    path = journal.path_of(fleet_path)
    own: dict[tuple[str, str], float] = {}
    others: dict[str, list[float]] = {}
    if not path.exists():
        return own, others
    with journal.reading(path) as book:
        for summary in book.rollouts()[-LOOKED_AT:]:
            try:
                done = status.fold(book.events(summary.id)).hosts.values()
            except ValueError:
                continue  # of another gdsdeploy; its times are not worth more than a guess
            for host in done:
                disruption = host.facts.disruption
                if host.outcome == Outcome.DONE and disruption:
                    took = host.worked(host.ended or 0.0)
                    own[host.name, disruption] = took
                    others.setdefault(disruption, []).append(took)
    return own, others
