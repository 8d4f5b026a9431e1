"""``gdsdeploy support-bundle``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.fleetfile import selection
from gdsdeploy.lock import lockfile
from gdsdeploy.validate.support_bundle import pack_fleet
from gdsdeploy.validate.validate import TIMEOUT, require_folder, write


@click.command()
@options.fleet
@click.option(
    "-o",
    "--output",
    type=options.FILE,
    required=True,
    help="The file to write (.tar.gz).",
)
@options.limit
@click.option("--hide-names", is_flag=True, help="Replace the hosts' names, too.")
@options.timeout(TIMEOUT)
def command(fleet: Path, output: Path, limit: str | None, hide_names: bool, timeout: float) -> None:
    """Pack what the hosts of FLEET say of themselves into one file that may be given to others.

    Each host is asked as validate asks it, and nothing is changed on it. Into the file go that evidence, what the host
    was held against and what came of it, fleet file and lock, and the end of the last provision's log.

    Before, the fleet file loses its comments, and its webhooks, token files, commands, signing keys and SSH logins,
    addresses and files are masked. Everywhere, addresses of networks and devices, DNS domains of the hosts, UUIDs,
    serial numbers, login names and what looks like a secret are replaced, and with --hide-names the hosts' names.
    What was replaced is counted in it and here. Patterns don't find every secret: look through it before you give it
    away. Only you can read the file.

    A host that cannot be asked is in it with the reason.

    \b
    Examples:
      gdsdeploy support-bundle fleet.yml -o case-4711.tar.gz --limit gpu7
      gdsdeploy validate --evidence case-4711.tar.gz
    """
    intent, lock = lockfile.fleet_and_lock(fleet)
    names = selection.select(limit, list(intent.hosts), fleet)
    require_folder(output)
    with console.step(f"Asking {', '.join(names)}"):
        data, taken_out = pack_fleet(
            intent, lock, fleet, names, hide_names=hide_names, timeout=timeout, progress=console.say
        )
    write(output, data, mode=0o600)
    console.say(f"Replaced: {', '.join(f'{number} {kind}' for kind, number in taken_out.items()) or 'nothing'}")
    console.data(str(output))
