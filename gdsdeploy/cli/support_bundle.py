"""``gdsdeploy support-bundle``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.fleetfile import selection
from gdsdeploy.lock import lockfile
from gdsdeploy.model.hostnames import words
from gdsdeploy.ssh.endpoint import TIMEOUT
from gdsdeploy.validate.output import require_folder, write
from gdsdeploy.validate.support_bundle import pack_fleet


@click.command()
@options.fleet
@options.output("The file to write (.tar.gz).", "-o", required=True)
@options.limit
@click.option("--hide-names", is_flag=True, help="Also replace the hosts' names.")
@options.timeout(TIMEOUT)
@options.at_once
def command(fleet: Path, output: Path, limit: str | None, hide_names: bool, timeout: float) -> None:
    """Pack evidence from the hosts of FLEET into one file that you can give to others.

    Each host is asked as by validate, and stays unchanged. The file holds that evidence, the expected state and the
    verdicts, fleet file and lock, and the end of the last provision's log.

    The fleet file loses its comments, and its webhooks, token files, commands, signing keys and SSH logins, addresses
    and files are masked. Everywhere, addresses of networks and devices, DNS domains of the hosts, UUIDs, serial
    numbers, login names and apparent secrets are replaced; with --hide-names also the hosts' names. The file and this
    command count the replacements. Patterns don't find every secret: read the file before you share it. Only you can
    read the file.

    For a host that can't be asked, the file has the reason.

    \b
    Examples:
      gdsdeploy support-bundle fleet.yml -o case-4711.tar.gz --limit gpu7
      gdsdeploy validate --evidence case-4711.tar.gz
    """
    intent, lock = lockfile.fleet_and_lock(fleet, signed=False)
    names = selection.select(limit, list(intent.hosts), fleet)
    require_folder(output)
    with console.step(f"Asking {words(names)}"):
        data, replaced = pack_fleet(
            intent, lock, fleet, names, hide_names=hide_names, timeout=timeout, progress=console.say_each(len(names))
        )
    write(output, data, mode=0o600)
    console.say(f"Replaced: {', '.join(f'{number} {kind}' for kind, number in replaced.items()) or 'nothing'}")
    console.data(str(output))
