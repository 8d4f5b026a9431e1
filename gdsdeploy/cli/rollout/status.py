"""``gdsdeploy rollout status``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import Interrupted
from gdsdeploy.rollout import journal, lookup
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.report import page
from gdsdeploy.validate.output import require_folder, write

#: Seconds between two reads of the journal.
_PAUSE = 1.0
_READS = 20


@click.command()
@options.fleet
@click.option("--rollout", "name", metavar="ID", help="Another rollout than the newest; see `rollout history`.")
@click.option("-w", "--watch", is_flag=True, help="Follow it until it ends or no process runs it.")
@options.as_json("Print one JSON object; with --watch each event as one line.")
@click.option("--html", type=options.FILE, metavar="FILE", help="Also write a report, one HTML file.")
def command(fleet: Path, name: str | None, watch: bool, as_json: bool, html: Path | None) -> None:
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
    path = lookup.require_journal(fleet)
    summary, events = lookup.find_rollout(fleet, name)
    display = Watch(as_json=as_json)
    live = lookup.has_driver(path) and not summary.finished
    if watch and as_json:
        for event in events:
            display.observe(event)
    else:
        display.replay(events)
    if watch and live:
        if not as_json and not console.is_live():
            console.say("\n".join(display.lines()))
        with display.shown():
            live = _follow(path, summary.id, display)
    assert display.status is not None
    if not as_json:
        console.data("\n".join(display.lines(live=live, whole=True)))
    elif not watch:
        console.data(page.to_json(display.status, live=live))
    if html is not None:
        write(html, page.stream(display.status, live=live))
        console.say(f"The report is in {html}")
    if watch and (error := lookup.final_error(display.status)) is not None:
        raise error


def _follow(path: Path, rollout: str, display: Watch) -> bool:
    """Show events until the rollout or its process ends; False: no process runs it any more."""
    try:
        while True:
            # Opening a journal checks all of it, which is too slow for each read, but useful now and then.
            with journal.reading(path) as book:
                for _ in range(_READS):
                    if not _show_new(book, path, rollout, display):
                        return False
                    time.sleep(_PAUSE)
    except KeyboardInterrupt:
        raise Interrupted("no longer watched; the rollout continues") from None


def _show_new(book: journal.Journal, path: Path, rollout: str, display: Watch) -> bool:
    """Show new events; False: there will be no more."""
    # Check this first, so that the last events are still display.
    live = lookup.has_driver(path)
    assert display.status is not None
    last = display.status.last
    for event in book.events(rollout, after=last.number if last else 0):
        display.observe(event)
    return live and not display.status.finished
