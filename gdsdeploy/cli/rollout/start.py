"""``gdsdeploy rollout start``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.converge import plan_report
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.plan_fleet import TIMEOUT
from gdsdeploy.errors import Busy, GdsError, Interrupted, RolloutRefused
from gdsdeploy.lock import lockfile, releases
from gdsdeploy.rollout import durations, journal, preconditions, session
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.preconditions import Outlook
from gdsdeploy.rollout.report import page as page
from gdsdeploy.rollout.report import preview as shown
from gdsdeploy.rollout.status import Status
from gdsdeploy.validate.validate import require_folder, write


@click.command()
@options.fleet
@options.limit
@click.option("--exclude", metavar="HOST[,HOST…]", help="All but these hosts; shell patterns work.")
@click.option(
    "--from", "since", type=options.FILE, metavar="LOCK", help="The lock that hosts have, where it is not kept here."
)
@click.option("--dry-run", is_flag=True, help="Show the plan, and end.")
@options.yes
@options.timeout(TIMEOUT, "Seconds to ask each host in.")
@options.as_json("Print each event as one line of JSON; with --dry-run the plan.")
@options.html_of_rollout
def command(
    fleet: Path,
    limit: str | None,
    exclude: str | None,
    since: Path | None,
    dry_run: bool,
    yes: bool,
    timeout: float,
    as_json: bool,
    html: Path | None,
) -> None:
    """Show the plan, ask, and bring the hosts of FLEET to its lock, wave by wave.

    Every host is asked once beforehand. The rollout is refused, with all reasons, if a host cannot be read or could
    not be taken back, if a kernel or driver was never tried (gdsdeploy kmod preflight), if the scheduler does not
    let hosts be drained, or if another rollout is not finished.

    Ctrl-C pauses: steps under way are finished. A second one stops at once. Both can be resumed, and so can a
    rollout whose controller was killed.

    \b
    Exit code:
      0     every host that takes part has the lock
      50    it was not begun; the reasons are listed
      51    it halted, was aborted, or ended with hosts that do not have the lock
      52    another process works on a rollout of this fleet
      130   it was paused, or not confirmed

    \b
    Examples:
      gdsdeploy rollout start fleet.yml --dry-run
      gdsdeploy rollout start fleet.yml --limit 'gpu1*' --html rollout.html
      gdsdeploy rollout start fleet.yml --yes --json | jq -r .text
    """
    if not (yes or dry_run) and not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: standard input is no terminal; look at --dry-run, give --yes")
    require_folder(html)
    intent, lock = lockfile.fleet_and_lock(fleet)
    if not dry_run:
        _require_none(fleet)
    chosen = preconditions.choose(intent, fleet, limit, exclude)
    before = lockfile.read(since) if since else None

    def said(found: HostPlan | GdsError, name: str, seconds: float) -> None:
        console.say(f"  {plan_report.line(name, found)} ({seconds:.1f} s)")

    with console.step(f"Asking {len(chosen.names)} machines"):
        found = preconditions.prepare(intent, lock, fleet, chosen, since=before, timeout=timeout, progress=said)
    if dry_run:
        console.data(shown.to_json(found) if as_json else shown.text(found, time.time()))
        found.require()
        return
    (console.say if as_json else console.data)(shown.text(found, time.time()))
    found.require()
    if not found.pending:
        console.say("Nothing to do: every host that takes part has the lock")
        return
    if not yes and not click.confirm("Begin?", default=False, err=True):
        raise Interrupted("not confirmed; nothing was done")
    if since is not None:
        releases.add(fleet, since, intent)
    releases.store(fleet, lock)
    ended = _run(found, fleet, as_json=as_json)
    finish(ended, html=html, as_json=as_json)


def _require_none(fleet: Path) -> None:
    """Better now than after all hosts were asked."""
    newest = durations.newest(fleet)
    if newest is None or newest.finished:
        return
    if session.worked_on(journal.path_of(fleet)):
        raise Busy(f"the rollout {newest.id} is under way", hint=f"Watch it: gdsdeploy rollout status {fleet} --watch")
    raise RolloutRefused(
        f"the rollout {newest.id} is not finished",
        hint=f"Go on: gdsdeploy rollout resume {fleet}; or end it: gdsdeploy rollout abort {fleet}",
    )


def _run(found: Outlook, fleet: Path, *, as_json: bool) -> Status:
    effects = session.real(found.plan)
    watch = Watch(as_json=as_json)
    with journal.writing(journal.path_of(fleet), doing="rollout start") as writer:
        newest = next(reversed(writer.rollouts()), None)
        if newest is not None and not newest.finished:
            raise RolloutRefused(f"the rollout {newest.id} was begun meanwhile", hint="See: gdsdeploy rollout status")
        watch.observe(writer.begin(found.plan))
        return session.run(writer, found.plan, watch, effects)


def finish(ended: Status, *, html: Path | None, as_json: bool) -> None:
    """Say how a rollout ended, write its report, and raise the error that the command ends in, if there is one."""
    if html is not None:
        write(html, page.render(ended, live=False))
        console.say(f"The report is in {html}")
    error = session.outcome(ended)
    if error is not None:
        raise error
    if not as_json:
        console.data(page.sentence(ended))
