"""Earlier rollouts of a fleet: the newest one, and how long hosts took."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path

from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.model.rollout import Outcome
from gdsdeploy.rollout import journal, status

#: Seconds for a host without an earlier rollout.
GUESS: Mapping[str, float] = {"none": 300.0, "module reload": 600.0, "reboot": 1200.0}
#: Earlier rollouts that count.
LOOKED_AT = 10


def newest(fleet_path: Path) -> journal.Summary | None:
    """The fleet's newest rollout; None: there was none.  Raises JournalUnusable."""
    path = journal.path_of(fleet_path)
    if not path.exists():
        return None
    with journal.reading(path) as book:
        return next(reversed(book.rollouts()), None)


def expected(fleet_path: Path, plans: Mapping[str, HostPlan]) -> tuple[dict[str, float], bool]:
    """(host → seconds, whether any were measured): its last time, else the median of other hosts, else a guess."""
    own, others = _measured_times(fleet_path)
    medians: dict[str, float] = {**GUESS, **{key: statistics.median(times) for key, times in others.items()}}
    seconds = {
        name: 0.0 if plan.satisfied else own.get((name, plan.disruption), medians[plan.disruption])
        for name, plan in plans.items()
    }
    return {name: round(value, 1) for name, value in seconds.items()}, bool(others)


def _measured_times(fleet_path: Path) -> tuple[dict[tuple[str, str], float], dict[str, list[float]]]:
    """(host, disruption) → seconds the last time, and disruption → all seconds; of hosts that came to DONE."""
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
                continue  # written by another gdsdeploy
            for host in done:
                disruption = host.facts.disruption
                if host.outcome == Outcome.DONE and disruption:
                    took = host.worked(host.ended or 0.0)
                    own[host.name, disruption] = took
                    others.setdefault(disruption, []).append(took)
    return own, others
