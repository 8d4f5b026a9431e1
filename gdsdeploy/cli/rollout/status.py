"""``gdsdeploy rollout status``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import Interrupted
from gdsdeploy.rollout import journal, session
from gdsdeploy.rollout.display import Watch
from gdsdeploy.rollout.report import page as page
from gdsdeploy.validate.validate import require_folder, write

#: Seconds between two looks at the journal.
_PAUSE = 1.0
_LOOKS = 20


@click.command()
@options.fleet
@click.option("--rollout", "name", metavar="ID", help="Another rollout than the newest; see history.")
@click.option("-w", "--watch", is_flag=True, help="Follow it until it ends or nobody works on it.")
@options.as_json("Print one JSON object; with --watch each event as one line.")
@click.option("--html", type=options.FILE, metavar="FILE", help="Also write a report with the timeline, one HTML file.")
def command(fleet: Path, name: str | None, watch: bool, as_json: bool, html: Path | None) -> None:
    """Say how far the newest rollout of FLEET is: waves, hosts by state, time left, failures and the last event.

    It reads the journal, which may be written meanwhile, and asks no host. --watch --json prints all events from the
    first one, then each as it happens.

    \b
    Exit code: 0 when it could be shown; with --watch as `rollout start`: 0, 51 or 130.

    \b
    Examples:
      gdsdeploy rollout status fleet.yml
      gdsdeploy rollout status fleet.yml --watch
      gdsdeploy rollout status fleet.yml --json | jq '.hosts | map_values(.state)'
      gdsdeploy rollout status fleet.yml --rollout 20261121T1054-7f3a --html rollout.html
    """
    require_folder(html)
    path = session.require_journal(fleet)
    summary, events = session.chosen(path, name)
    shown = Watch(as_json=as_json)
    live = session.worked_on(path) and not summary.finished
    if watch and as_json:
        for event in events:
            shown.observe(event)
    else:
        shown.known(events)
    if watch and live:
        if not as_json and not console.is_live():
            console.say("\n".join(shown.lines()))
        with shown.shown():
            live = _follow(path, summary.id, shown)
    assert shown.status is not None
    if not as_json:
        console.data("\n".join(shown.lines(live=live, whole=True)))
    elif not watch:
        console.data(page.to_json(shown.status, live=live))
    if html is not None:
        write(html, page.render(shown.status, live=live))
        console.say(f"The report is in {html}")
    if watch and (error := session.outcome(shown.status)) is not None:
        raise error


def _follow(path: Path, rollout: str, shown: Watch) -> bool:
    """Show events until the end of the rollout or of whoever works on it; False: nobody does any more."""
    try:
        while True:
            # A journal is checked whole when it is opened, which is too much for each look, and right now and then.
            with journal.reading(path) as book:
                for _ in range(_LOOKS):
                    if not _look(book, path, rollout, shown):
                        return False
                    time.sleep(_PAUSE)
    except KeyboardInterrupt:
        raise Interrupted("no longer watched; the rollout goes on") from None


def _look(book: journal.Journal, path: Path, rollout: str, shown: Watch) -> bool:
    """Show what is new; False: nothing more will be."""
    # Asked first: what was written before its end is still shown.
    live = session.worked_on(path)
    assert shown.status is not None
    last = shown.status.last
    for event in book.events(rollout, after=last.number if last else 0):
        shown.observe(event)
    return live and not shown.status.finished
