"""``gdsdeploy rollout history``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.host.io.wording import aligned, span
from gdsdeploy.rollout import journal, lookup, status
from gdsdeploy.rollout.report import progress
from gdsdeploy.rollout.report.events import stamp


@click.command()
@options.fleet
@options.as_json("Print one JSON array instead of text.")
def command(fleet: Path, as_json: bool) -> None:
    """List the rollouts of FLEET, the newest last: time, state and number of hosts.

    \b
    Examples:
      gdsdeploy rollout history fleet.yml
      gdsdeploy rollout history fleet.yml --json | jq -r '.[-1].rollout'
    """
    path = lookup.journal_of(fleet)
    if path is None:
        console.say(f"There is no rollout of {fleet} yet")
    rollouts = list(_rollouts(path)) if path is not None else []
    if as_json:
        console.json(rollouts)
    elif rollouts:
        rows = [("rollout", "began (UTC)", "took", "state", "hosts")]
        for rollout in rollouts:
            began = str(rollout["began"])[:16].replace("T", " ")
            rows.append((rollout["rollout"], began, span(rollout["seconds"]), rollout["state"], rollout["outcomes"]))
        console.data("\n".join(aligned(rows)))


def _rollouts(path: Path) -> Iterator[dict[str, Any]]:
    live = lookup.has_driver(path)
    with journal.reading(path) as book:
        summaries = book.rollouts()
        for summary in summaries:
            try:
                folded = status.fold(book.events(summary.id))
            except ValueError as error:
                console.warn(f"{summary.id}: {error}")
                continue
            yield {
                "rollout": summary.id,
                "began": stamp(summary.begun),
                "seconds": round(folded.lapse, 3),
                "state": progress.phase(folded, live=live and summary is summaries[-1]),
                "finished": summary.finished,
                "outcomes": progress.outcomes(folded),
                "counts": dict(folded.counts()),
                "lock": folded.plan.lock_digest,
                "reason": folded.reason,
                "events": summary.events,
            }
