"""``gdsdeploy remove``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cli.provision import raise_last, require_flags
from gdsdeploy.converge.provision import provision, summary
from gdsdeploy.fleetfile import selection
from gdsdeploy.lock import lockfile


@click.command(context_settings={"ignore_unknown_options": True})
@options.fleet
@click.argument("ansible", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--limit", required=True, metavar="HOST[,HOST…]", help="These hosts or builders; shell patterns work. Required."
)
@options.as_json("Print one JSON object with every host's changes.")
def command(fleet: Path, ansible: tuple[str, ...], limit: str, as_json: bool) -> None:
    """Take back what provision changed on the hosts of FLEET.

    Removes the files and modules that provision put there, gives the boot default back, and removes the
    packages that were not installed before. What runs keeps running until the next reboot; the running
    kernel's package goes with a second remove after it. --check and --diff show it without doing it.
    """
    require_flags(ansible)
    intent, lock = lockfile.fleet_and_lock(fleet, fresh=False)
    names = selection.select(limit, list(intent.everyone()), fleet)
    with console.step(f"Taking back from {', '.join(names)}"):
        run = provision(intent, lock, fleet, names=names, extra=ansible, playbook="remove", progress=console.say)
    if as_json:
        console.data(summary(run))
    raise_last(run.failures())
    console.say("Reboot the hosts to unload what still runs.")
