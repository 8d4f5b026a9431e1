"""``gdsdeploy rollout``, and its ``status``, ``history`` and ``pause``, which need little of what runs a rollout."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cli.verbs import Verbs, below
from gdsdeploy.errors import GdsError, Interrupted
from gdsdeploy.files.output import require_folder, write_each
from gdsdeploy.host.io import streams
from gdsdeploy.host.io.wording import aligned, joined, span
from gdsdeploy.model.events import RolloutPaused
from gdsdeploy.rollout import control, display, journal, machine, page, progress
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.machine import Status

#: Verb → what it does, in the order of use.
VERBS = {
    "start": "Show the plan, ask, and bring the fleet to its lock, wave by wave",
    "status": "Show a rollout's progress; --watch follows it, --html writes its report",
    "pause": "Start no more hosts; hosts in progress finish their step",
    "resume": "Continue a rollout that was paused, has halted, or whose controller died",
    "abort": "Roll back the hosts in progress, and start no more",
    "rollback": "Roll back every host of the rollout to its earlier state",
    "history": "List the rollouts of a fleet",
}


#: Verb → its module.
_MODULES = dict.fromkeys(("start", "resume", "abort", "rollback"), "rollout_run")


@click.group(cls=Verbs, verbs=below("gdsdeploy.cli", VERBS, _MODULES, "rollout"))
def command() -> None:
    """Move a fleet from the lock that its hosts have to the one beside the fleet file.

    Canaries go first, then waves. A host is drained, changed, rebooted if necessary, validated in that boot, and only
    then brought back. A failed host is rolled back. See docs/rollout.md.
    """


#: Seconds between two reads of the journal, and reads before it is opened, and so checked, again.
_PAUSE = 1.0
_READS = 20


@click.command("status")
@options.fleet
@click.option("--rollout", "name", metavar="ID", help="Another rollout than the newest; see `rollout history`.")
@click.option("-w", "--watch", is_flag=True, help="Follow it until it ends or no process runs it.")
@options.as_json("Print one JSON object; with --watch each event as one line.")
@click.option("--html", type=options.FILE, metavar="FILE", help="Also write a report, one HTML file.")
def show(fleet: Path, name: str | None, watch: bool, as_json: bool, html: Path | None) -> None:
    """Show the progress of FLEET's newest rollout: waves, hosts by state, time left, failures and the last event.

    It reads the journal, even while a rollout writes it, and asks no host. --watch --json prints all events from the
    first, then each as it happens.

    \b
    Exit code: 0 if it was shown; with --watch as `rollout start`: 0, 51 or 130.

    \b
    Examples:
      gdsdeploy rollout status fleet.yml
      gdsdeploy rollout status fleet.yml --watch
      gdsdeploy rollout status fleet.yml --json | jq '.hosts | map_values(.state)'
      gdsdeploy rollout status fleet.yml --rollout 20261121T1054-7f3a --html rollout.html
    """
    require_folder(html)
    path = display.require_journal(fleet)
    # Looked at first: what its process writes before it ends is then among the events.
    live = display.has_driver(path)
    summary, journaled = display.find_rollout(fleet, name)
    live = live and not summary.finished
    view = Watch(as_json=as_json)
    if watch and as_json:
        for event in journaled:
            view.observe(event)
    else:
        view.replay(journaled)
    if watch and live:
        if not as_json and not console.is_live():
            for line in view.lines():
                console.say(line)
        with view.shown():
            live = _follow(path, summary.id, view)
    assert view.status is not None
    unwritten = write_report(view.status, html, live=live)
    if not as_json:
        console.data(joined(view.lines(live=live, whole=True)))
    elif not watch:
        console.data(page.to_json(view.status, live=live))
    options.end_with([*unwritten, display.final_error(view.status) if watch else None])


def write_report(status: Status, html: Path | None, *, live: bool) -> list[GdsError]:
    """Write the page about a rollout, if it has a file; returns the error if it can't be written."""
    unwritten = write_each([(html, lambda: page.stream(status, live=live))])
    if html is not None and not unwritten:
        console.say(f"The report is in {html}")
    return [*unwritten.values()]


def _follow(path: Path, rollout: str, view: Watch) -> bool:
    """Show events until the rollout or its process ends; False: no process runs it any more."""
    try:
        while True:
            # Opening a journal checks all of it, which is too slow for each read, but useful now and then.
            with journal.reading(path) as book:
                for _ in range(_READS):
                    if not _show_new(book, path, rollout, view):
                        return False
                    time.sleep(_PAUSE)
    except KeyboardInterrupt:
        raise Interrupted("no longer watched; the rollout continues") from None


def _show_new(book: journal.Journal, path: Path, rollout: str, view: Watch) -> bool:
    """Show new events; False: there will be no more."""
    # Check this first, so that the last events are still shown.
    live = display.has_driver(path)
    assert view.status is not None
    for event in book.events(rollout, after=view.status.number):
        view.observe(event)
    return live and not view.status.finished and not streams.lost()


@click.command("history")
@options.fleet
@options.as_json("Print one JSON array instead of text.")
def list_rollouts(fleet: Path, as_json: bool) -> None:
    """List the rollouts of FLEET, the newest last: time, state and number of hosts.

    \b
    Examples:
      gdsdeploy rollout history fleet.yml
      gdsdeploy rollout history fleet.yml --json | jq -r '.[-1].rollout'
    """
    path = display.journal_of(fleet)
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
        console.data(joined(aligned(rows)))


def _rollouts(path: Path) -> Iterator[dict[str, Any]]:
    live = display.has_driver(path)
    with journal.reading(path) as book:
        summaries = book.rollouts()
        for summary in summaries:
            try:
                folded = machine.fold(book.events(summary.id))
            except ValueError as error:
                console.warn(f"{summary.id}: {error}")
                continue
            yield {
                "rollout": summary.id,
                "began": progress.stamp(summary.begun),
                "seconds": round(folded.lapse, 3),
                "state": progress.phase(folded, live=live and summary is summaries[-1]),
                "finished": summary.finished,
                "outcomes": progress.outcomes(folded),
                "counts": dict(folded.outcomes()),
                "lock": folded.plan.lock_digest,
                "reason": folded.reason,
                "events": summary.events,
            }


@click.command()
@options.fleet
@options.reason
@options.as_json("Print one JSON object about the pause.")
def pause(fleet: Path, reason: str, as_json: bool) -> None:
    """Start no more hosts of FLEET's rollout; hosts in progress finish their step.

    The process that runs it then ends with exit code 130. Ctrl-C in its terminal does the same.

    \b
    Exit code: 0 paused; 50 there is nothing to pause; 52 the process that runs it doesn't answer.

    \b
    Examples:
      gdsdeploy rollout pause fleet.yml --reason 'the file server is slow'
      gdsdeploy rollout resume fleet.yml
    """
    path = display.require_journal(fleet)
    event, by_driver = control.tell(path, RolloutPaused(reason or "by command"))
    if as_json:
        console.data(json.dumps({"event": event.as_json(), "by_driver": by_driver}))
    else:
        console.say(progress.sentence(event))
        console.say(f"Next: gdsdeploy rollout resume {fleet}")


commands = {"status": show, "history": list_rollouts, "pause": pause}
