"""``gdsdeploy rollout resume``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cli.rollout.control import carry_out
from gdsdeploy.cli.rollout.start import finish
from gdsdeploy.lock import releases
from gdsdeploy.rollout import lookup, session, status
from gdsdeploy.validate.output import require_folder


@click.command()
@options.fleet
@click.option("--accept", multiple=True, metavar="HOST", help="Don't count this host's failure; repeatable.")
@options.events_as_json
@options.html_of_rollout
def command(fleet: Path, accept: tuple[str, ...], as_json: bool, html: Path | None) -> None:
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
    _, events = lookup.find_rollout(fleet, None)
    current = status.fold(events)
    releases.require_signed(fleet, current.plan.lock_digest, current.plan.fleet_digest)
    ended = carry_out(fleet, session.resumption(current, fleet, accept, "by command"), as_json=as_json)
    if ended is not None:
        finish(ended, html=html, as_json=as_json)
    elif html is not None:
        console.warn("no report is written here: another process runs the rollout")
