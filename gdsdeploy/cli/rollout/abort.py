"""``gdsdeploy rollout abort``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cli.rollout.control import carry_out
from gdsdeploy.errors import RolloutFailed
from gdsdeploy.model.rollout import Kind, Outcome
from gdsdeploy.rollout.report.page import sentence


@click.command()
@options.fleet
@options.reason
@options.as_json("Print each new event as one line of JSON.")
def command(fleet: Path, reason: str, as_json: bool) -> None:
    """End the rollout of FLEET: begin no more hosts, and take back those that are under way.

    Hosts that are done keep the new lock; `gdsdeploy rollout rollback` takes those back, too. Where no process works on
    the rollout, this one takes the hosts back, and ends when they are in work again.

    \b
    Exit code: 0 aborted, and no host is left out of work; 51 some host is; 50 there is nothing to abort.

    \b
    Examples:
      gdsdeploy rollout abort fleet.yml --reason 'CHG-4711 was withdrawn'
      gdsdeploy rollout abort fleet.yml && gdsdeploy rollout start fleet.yml
    """
    found = carry_out(fleet, Kind.ABORTED, {"reason": reason or "by command"}, as_json=as_json)
    if found is None:
        return
    stuck = [host.name for host in found.taking_part() if host.outcome in (Outcome.KEPT, Outcome.LOST)]
    if stuck or not found.finished:
        raise RolloutFailed(
            f"aborted; out of work stay {', '.join(stuck)}" if stuck else f"{found.phase}: {found.reason}",
            hint=f"See: gdsdeploy rollout status {fleet}",
        )
    if not as_json:
        console.data(sentence(found))
