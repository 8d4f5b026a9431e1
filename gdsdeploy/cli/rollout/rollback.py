"""``gdsdeploy rollout rollback``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gdsdeploy.cli import options
from gdsdeploy.cli.rollout.control import carry_out
from gdsdeploy.cli.rollout.start import finish
from gdsdeploy.errors import Interrupted, RolloutRefused
from gdsdeploy.host.io.wording import count
from gdsdeploy.model.events import RollbackBegun
from gdsdeploy.model.rollout import Outcome
from gdsdeploy.rollout import lookup, status
from gdsdeploy.validate.output import require_folder


@click.command()
@options.fleet
@options.reason
@options.yes
@options.events_as_json
@options.html_of_rollout
def command(fleet: Path, reason: str, yes: bool, as_json: bool, html: Path | None) -> None:
    """Roll back every host that FLEET's newest rollout has changed, finished or not.

    Each host is drained, restored from its snapshot, rebooted if necessary, validated and brought back, as many at a
    time as the rollout may have out of work. Hosts that were never started stay unchanged.

    \b
    Exit code:
      0     every host is restored
      50    there is nothing to roll back
      51    a host could not be rolled back, or the rollback halted
      130   it was paused, or not confirmed

    \b
    Examples:
      gdsdeploy rollout rollback fleet.yml
      gdsdeploy rollout rollback fleet.yml --yes --reason 'jobs are 3 % slower' --html rollback.html
    """
    options.require(yes or sys.stdin.isatty(), "standard input isn't a terminal: pass --yes")
    require_folder(html)
    _, events = lookup.find_rollout(fleet, None)
    now = status.fold(events)
    changed = [host for host in now.taking_part() if host.outcome in (Outcome.DONE, Outcome.KEPT, Outcome.LOST)]
    changed += now.under_way()
    if not changed:
        raise RolloutRefused(f"{now.plan.id} has no changed host left to roll back")
    question = f"Roll back {count(len(changed), 'host')} of {now.plan.id}?"
    if not yes and not click.confirm(question, default=False, err=True):
        raise Interrupted("not confirmed; nothing was changed")
    ended = carry_out(fleet, RollbackBegun(reason or "by command"), as_json=as_json)
    if ended is not None:
        finish(ended, html=html, as_json=as_json)
