"""``gdsdeploy rollout resume``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cli.rollout.control import carry_out
from gdsdeploy.cli.rollout.start import finish
from gdsdeploy.model.rollout import Kind
from gdsdeploy.rollout import session, status
from gdsdeploy.validate.validate import require_folder


@click.command()
@options.fleet
@click.option("--accept", multiple=True, metavar="HOST", help="This host's failure no longer counts; repeatable.")
@options.as_json("Print each new event as one line of JSON.")
@options.html_of_rollout
def command(fleet: Path, accept: tuple[str, ...], as_json: bool, html: Path | None) -> None:
    """Go on with the newest rollout of FLEET: paused, halted, or left by a controller that was killed.

    It goes on with the lock and the fleet file that it was planned with. Steps that nobody has seen the end of are
    begun again, which they are made for: no host reboots twice or returns without a validation. Hosts that were lost
    are asked again whether they are back.

    A rollout that halted for too many failures halts again at once; --accept takes a host's failure out of the count,
    once you have looked at it. A host that was kept out of work stays so: bring it back yourself when it is good.

    \b
    Exit code: as `rollout start`. Where another process works on it, 0.

    \b
    Examples:
      gdsdeploy rollout resume fleet.yml
      gdsdeploy rollout resume fleet.yml --accept gpu7 --accept gpu9
    """
    require_folder(html)
    path = session.require_journal(fleet)
    _, events = session.chosen(path, None)
    data = session.reconsidered(status.fold(events), fleet, accept)
    found = carry_out(fleet, Kind.RESUMED, {"reason": "by command", **data}, as_json=as_json)
    if found is None:
        if html is not None:
            console.warn("no report is written here: another process works on the rollout")
        return
    finish(found, html=html, as_json=as_json)
