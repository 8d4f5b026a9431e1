"""``gdsdeploy rollout start``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cli.plan import say_plans
from gdsdeploy.converge.plan_fleet import TIMEOUT
from gdsdeploy.errors import Busy, Interrupted, RolloutRefused
from gdsdeploy.lock import lockfile, releases
from gdsdeploy.rollout import durations, journal, lookup, participants, preconditions, session
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.preconditions import RolloutPreview
from gdsdeploy.rollout.report import page, preview
from gdsdeploy.rollout.status import Status
from gdsdeploy.validate.output import require_folder, write


@click.command()
@options.fleet
@options.limit
@click.option("--exclude", metavar="HOST[,HOST…]", help="All but these hosts; shell patterns and node[1-3,7] work.")
@click.option(
    "--from", "since", type=options.FILE, metavar="LOCK", help="The hosts' current lock, if it isn't kept here."
)
@click.option(
    "--enrol-keys", is_flag=True, help="Reboot hosts without the key of their modules; people are at their consoles."
)
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@options.yes
@options.timeout(TIMEOUT, "Seconds for each host.")
@options.at_once
@options.allow_older_lock
@options.as_json("Print each event as one line of JSON; with --dry-run the plan.")
@options.html_of_rollout
def command(
    fleet: Path,
    limit: str | None,
    exclude: str | None,
    since: Path | None,
    enrol_keys: bool,
    allow_older_lock: bool,
    dry_run: bool,
    yes: bool,
    timeout: float,
    as_json: bool,
    html: Path | None,
) -> None:
    """Show the plan, ask, and bring the hosts of FLEET to its lock, wave by wave.

    Every host is asked once beforehand. The rollout is refused, with all reasons, if a host can't be read or couldn't
    be rolled back, or if a kernel or driver is untested (gdsdeploy kmod preflight). It is also refused if the
    scheduler doesn't allow draining, or another rollout isn't finished.

    With Secure Boot, hosts whose firmware lacks the key of their modules are refused, too. With --enrol-keys they are
    the last waves, as many at a time as rollout.console.hosts says: each is drained, rebooted, and waits for a person
    who enrols the key at its console.

    Ctrl-C pauses the rollout after the current steps. A second Ctrl-C stops it at once. In both cases, and after a
    killed controller, you can resume it.

    \b
    Exit code:
      0     every host that takes part has the lock
      50    it did not start; the reasons are listed
      51    it halted, was aborted, or ended with hosts that don't have the lock
      52    another process runs a rollout of this fleet
      130   it was paused, or not confirmed

    \b
    Examples:
      gdsdeploy rollout start fleet.yml --dry-run
      gdsdeploy rollout start fleet.yml --limit 'gpu1*' --html rollout.html
      gdsdeploy rollout start fleet.yml --yes --json | jq -r .text
    """
    terminal = "standard input isn't a terminal: pass --yes, or preview with --dry-run"
    options.require(yes or dry_run or sys.stdin.isatty(), terminal)
    require_folder(html)
    intent, lock = lockfile.fleet_and_lock(fleet, any_serial=allow_older_lock)
    if not dry_run:
        _require_no_unfinished(fleet)
    chosen = participants.choose(intent, fleet, limit, exclude)
    before = lockfile.read(since) if since else None
    with console.step(f"Asking {len(chosen.names)} machines"):
        outlook = preconditions.prepare(
            intent,
            lock,
            fleet,
            chosen,
            since=before,
            enrol_keys=enrol_keys,
            timeout=timeout,
            progress=say_plans(len(chosen.names)),
        )
    if dry_run:
        console.data(preview.to_json(outlook) if as_json else preview.text(outlook, time.time()))
        outlook.require()
        return
    (console.say if as_json else console.data)(preview.text(outlook, time.time()))
    outlook.require()
    if not outlook.pending:
        console.say("Nothing to do: every host that takes part has the lock")
        return
    if not yes and not click.confirm("Begin?", default=False, err=True):
        raise Interrupted("not confirmed; nothing was changed")
    if since is not None:
        releases.add(fleet, since, intent)
    releases.store(fleet, lock)
    ended = _run(outlook, fleet, as_json=as_json)
    finish(ended, html=html, as_json=as_json)


def _require_no_unfinished(fleet: Path) -> None:
    """Raise Busy or RolloutRefused for an unfinished rollout, before any host is asked."""
    newest = durations.newest(fleet)
    if newest is None or newest.finished:
        return
    if lookup.has_driver(journal.path_of(fleet)):
        raise Busy(f"the rollout {newest.id} is running", hint=f"Watch it: gdsdeploy rollout status {fleet} --watch")
    raise RolloutRefused(
        f"the rollout {newest.id} is not finished",
        hint=f"Continue it: gdsdeploy rollout resume {fleet}; or end it: gdsdeploy rollout abort {fleet}",
    )


def _run(outlook: RolloutPreview, fleet: Path, *, as_json: bool) -> Status:
    effects = session.real(outlook.plan)
    watch = Watch(as_json=as_json)
    with journal.writing(journal.path_of(fleet), doing="rollout start") as writer:
        newest = next(reversed(writer.rollouts()), None)
        if newest is not None and not newest.finished:
            hint = f"See: gdsdeploy rollout status {fleet}"
            raise RolloutRefused(f"the rollout {newest.id} was started meanwhile", hint=hint)
        watch.observe(writer.begin(outlook.plan))
        return session.run(writer, outlook.plan, watch, effects)


def finish(ended: Status, *, html: Path | None, as_json: bool) -> None:
    """Write a rollout's report and print its end; raise the error that the command ends in, if there is one."""
    if html is not None:
        write(html, page.stream(ended, live=False))
        console.say(f"The report is in {html}")
    error = lookup.final_error(ended)
    if error is not None:
        raise error
    if not as_json:
        console.data(page.sentence(ended))
