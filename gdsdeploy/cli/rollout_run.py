"""``gdsdeploy rollout start``, ``resume``, ``abort`` and ``rollback``.

If a process runs the rollout, it does the work; else this one does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cli.provision import say_plans
from gdsdeploy.cli.rollout import write_report
from gdsdeploy.converge.plan_fleet import PLAN_TIMEOUT
from gdsdeploy.errors import Busy, Interrupted, RolloutFailed, RolloutRefused
from gdsdeploy.files.output import require_folder
from gdsdeploy.fleetfile.load import TRUSTED
from gdsdeploy.host.io.wording import count
from gdsdeploy.lock import lockfile, releases
from gdsdeploy.model.events import Payload, RollbackBegun, RolloutAborted
from gdsdeploy.model.rollout import Outcome, Plan
from gdsdeploy.rollout import control, display, journal, machine, page, preconditions, preview, progress, session
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.driver import Effects
from gdsdeploy.rollout.machine import Status
from gdsdeploy.rollout.preconditions import RolloutPreview, choose_participants, newest_rollout


@click.command()
@options.combined(options.without("--dry-run", "--html"))
@options.fleet
@options.limit
@options.listed("--exclude", "All but these hosts; shell patterns and node[1-3,7] work.")
@click.option(
    "--from", "since", type=options.FILE, metavar="LOCK", help="The hosts' current lock, if it isn't kept here."
)
@click.option(
    "--enrol-keys", is_flag=True, help="Reboot hosts without the key of their modules; people are at their consoles."
)
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@options.yes
@options.timeout(PLAN_TIMEOUT, "Seconds for each host.")
@options.at_once
@options.allow_older_lock
@options.as_json("Print each event as one line of JSON; with --dry-run the plan.")
@options.html_of_rollout
def start(
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
    intent, lock = lockfile.fleet_and_lock(fleet, TRUSTED, any_serial=allow_older_lock)
    if not dry_run:
        _require_no_unfinished(fleet)
    chosen = choose_participants(intent, fleet, limit, exclude)
    before = lockfile.read_signed(since, intent, fleet) if since else None
    with console.step(f"Asking {len(chosen.names)} machines") as step:
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
        step.failure = "the rollout can't begin" if outlook.reasons else ""
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
    newest = newest_rollout(fleet)
    if newest is None or newest.finished:
        return
    if display.has_driver(journal.path_of(fleet)):
        raise Busy(f"the rollout {newest.id} is running", hint=f"Watch it: gdsdeploy rollout status {fleet} --watch")
    raise RolloutRefused(
        f"the rollout {newest.id} is not finished",
        hint=f"Continue it: gdsdeploy rollout resume {fleet}; or end it: gdsdeploy rollout abort {fleet}",
    )


def _run(outlook: RolloutPreview, fleet: Path, *, as_json: bool) -> Status:
    effects = session.RealEffects(outlook.plan)
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
    unwritten = write_report(ended, html, live=False)
    error = display.final_error(ended)
    if error is None and not as_json:
        console.data(page.sentence(ended))
    options.end_with([*unwritten, error])


@click.command()
@options.fleet
@click.option("--accept", multiple=True, metavar="HOST", help="Don't count this host's failure; repeatable.")
@options.events_as_json
@options.html_of_rollout
def resume(fleet: Path, accept: tuple[str, ...], as_json: bool, html: Path | None) -> None:
    """Continue FLEET's newest rollout: paused, halted, or left by a killed controller.

    It continues with the lock and the fleet file of its plan. Interrupted steps start again, which is safe: no host
    reboots twice or returns without a validation. Lost hosts are asked again whether they are back.

    A rollout that halted for too many failures halts again at once. After you have examined a host, --accept removes
    its failure from the count. A host that was kept out of work stays so: bring it back yourself when it is good.

    \b
    Exit code: as `rollout start`; 0 if another process runs it.

    \b
    Examples:
      gdsdeploy rollout resume fleet.yml
      gdsdeploy rollout resume fleet.yml --accept gpu7 --accept gpu9
    """
    require_folder(html)
    _, journaled = display.find_rollout(fleet, None)
    current = machine.fold(journaled)
    releases.require_signed(fleet, current.plan.lock_digest, current.plan.fleet_digest)
    ended = carry_out(fleet, session.resumption(current, accept, "by command"), as_json=as_json)
    if ended is not None:
        finish(ended, html=html, as_json=as_json)
    elif html is not None:
        console.warn("no report is written here: another process runs the rollout")


@click.command()
@options.fleet
@options.reason
@options.events_as_json
def abort(fleet: Path, reason: str, as_json: bool) -> None:
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
    ended = carry_out(fleet, RolloutAborted(reason or "by command"), as_json=as_json)
    if ended is None:
        return
    stuck = [host.name for host in ended.hosts.values() if host.outcome in (Outcome.KEPT, Outcome.LOST)]
    if stuck or not ended.finished:
        problem = f"aborted; still out of work: {', '.join(stuck)}" if stuck else f"{ended.phase}: {ended.reason}"
        raise RolloutFailed(problem, hint=f"See: gdsdeploy rollout status {fleet}")
    if not as_json:
        console.data(page.sentence(ended))


@click.command()
@options.fleet
@options.reason
@options.yes
@options.events_as_json
@options.html_of_rollout
def rollback(fleet: Path, reason: str, yes: bool, as_json: bool, html: Path | None) -> None:
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
    _, journaled = display.find_rollout(fleet, None)
    now = machine.fold(journaled)
    changed = [host for host in now.hosts.values() if host.outcome in (Outcome.DONE, Outcome.KEPT, Outcome.LOST)]
    changed += now.under_way()
    if not changed:
        raise RolloutRefused(f"{now.plan.id} has no changed host left to roll back")
    question = f"Roll back {count(len(changed), 'host')} of {now.plan.id}?"
    if not yes and not click.confirm(question, default=False, err=True):
        raise Interrupted("not confirmed; nothing was changed")
    ended = carry_out(fleet, RollbackBegun(reason or "by command"), as_json=as_json)
    if ended is not None:
        finish(ended, html=html, as_json=as_json)


def carry_out(fleet: Path, payload: Payload, *, as_json: bool) -> Status | None:
    """Make ``payload`` happen to the newest rollout of ``fleet``, and run it here; None: another process runs it.

    Raises RolloutRefused if it cannot become that, Busy if the process that runs it doesn't answer, and as session.run.
    """
    path = display.require_journal(fleet)
    watch = Watch(as_json=as_json)
    try:
        with journal.writing(path, doing=f"rollout {payload.kind}") as writer:
            return _run_here(fleet, writer, payload, watch)
    except Busy:
        event, by_driver = control.tell(path, payload)
    if not by_driver:
        # The other process has ended in between, and the request is in the journal.
        with journal.writing(path, doing=f"rollout {payload.kind}") as writer:
            return _run_here(fleet, writer, None, watch)
    console.say(f"Done by the process that runs the rollout: {progress.sentence(event)}")
    console.say(f"Watch it: gdsdeploy rollout status {fleet} --watch")
    return None


def _run_here(fleet: Path, writer: journal.Writer, payload: Payload | None, watch: Watch) -> Status:
    newest = writer.newest()
    if newest is None:
        raise RolloutRefused("there is no rollout of this fleet", hint=f"Start one: gdsdeploy rollout start {fleet}")
    plan = writer.go_on(newest)
    watch.replay(writer.events(newest))
    # Check that the planned lock and fleet file still exist before anything is written.
    effects = _effects(plan, payload, watch)
    if payload is not None:
        watch.observe(control.write(writer, payload))
    return session.run(writer, plan, watch, effects)


def _effects(plan: Plan, payload: Payload | None, watch: Watch) -> Effects:
    try:
        return session.RealEffects(plan)
    except RolloutRefused as error:
        # An abort without hosts in progress touches no host; refusing it would block every later rollout.
        if not isinstance(payload, RolloutAborted) or watch.status is None or watch.status.under_way():
            raise
        return session.RefusingEffects(error)


commands = {"start": start, "resume": resume, "abort": abort, "rollback": rollback}
