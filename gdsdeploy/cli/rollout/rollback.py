"""``gdsdeploy rollout rollback``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gdsdeploy.cli import options
from gdsdeploy.cli.rollout.control import carry_out
from gdsdeploy.cli.rollout.start import finish
from gdsdeploy.errors import Interrupted, RolloutRefused
from gdsdeploy.model.rollout import Kind, Outcome
from gdsdeploy.rollout import session, status
from gdsdeploy.rollout.report.events import count
from gdsdeploy.validate.validate import require_folder


@click.command()
@options.fleet
@options.reason
@options.yes
@options.as_json("Print each new event as one line of JSON.")
@options.html_of_rollout
def command(fleet: Path, reason: str, yes: bool, as_json: bool, html: Path | None) -> None:
    """Take back every host that the newest rollout of FLEET has changed, finished or not.

    Each is drained, made what its snapshot says it was, rebooted if it has to be, validated and brought back, as many
    at a time as the rollout may have out of work. Hosts that were never begun are left alone.

    \b
    Exit code:
      0     every host is what it was before
      50    there is nothing that could be taken back
      51    some host could not be taken back, or the rollback halted
      130   it was paused, or not confirmed

    \b
    Examples:
      gdsdeploy rollout rollback fleet.yml
      gdsdeploy rollout rollback fleet.yml --yes --reason 'jobs are 3 % slower' --html rollback.html
    """
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: standard input is no terminal; give --yes")
    require_folder(html)
    _, events = session.chosen(session.require_journal(fleet), None)
    now = status.fold(events)
    changed = [host for host in now.taking_part() if host.outcome in (Outcome.DONE, Outcome.KEPT, Outcome.LOST)]
    changed += now.under_way()
    if not changed:
        raise RolloutRefused(f"{now.plan.id} has changed no host that is not taken back already")
    question = f"Take back {count(len(changed), 'host')} of {now.plan.id}?"
    if not yes and not click.confirm(question, default=False, err=True):
        raise Interrupted("not confirmed; nothing was done")
    found = carry_out(fleet, Kind.ROLLBACK, {"reason": reason or "by command"}, as_json=as_json)
    if found is not None:
        finish(found, html=html, as_json=as_json)
