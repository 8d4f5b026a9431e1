"""``gdsdeploy rollout abort``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cli.rollout.control import carry_out
from gdsdeploy.errors import RolloutFailed
from gdsdeploy.model.events import RolloutAborted
from gdsdeploy.model.rollout import Outcome
from gdsdeploy.rollout.report.page import sentence


@click.command()
@options.fleet
@options.reason
@options.events_as_json
def command(fleet: Path, reason: str, as_json: bool) -> None:
    """End FLEET's rollout: start no more hosts, and roll back the hosts in progress.

    Finished hosts keep the new lock; `gdsdeploy rollout rollback FLEET` also rolls those back. If no process runs the
    rollout, this one rolls the hosts back, and ends when they are back in work.

    \b
    Exit code: 0 aborted, and no host is out of work; 51 a host is still out of work; 50 there is nothing to abort.

    \b
    Examples:
      gdsdeploy rollout abort fleet.yml --reason 'CHG-4711 was withdrawn'
      gdsdeploy rollout abort fleet.yml && gdsdeploy rollout start fleet.yml
    """
    status = carry_out(fleet, RolloutAborted(reason or "by command"), as_json=as_json)
    if status is None:
        return
    stuck = [host.name for host in status.taking_part() if host.outcome in (Outcome.KEPT, Outcome.LOST)]
    if stuck or not status.finished:
        problem = f"aborted; still out of work: {', '.join(stuck)}" if stuck else f"{status.phase}: {status.reason}"
        raise RolloutFailed(problem, hint=f"See: gdsdeploy rollout status {fleet}")
    if not as_json:
        console.data(sentence(status))
