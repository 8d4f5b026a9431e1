"""``gdsdeploy remove``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import image as images
from gdsdeploy.cli import options
from gdsdeploy.cli.provision import require_flags
from gdsdeploy.converge.provision import provision, summary


@click.command(context_settings={"ignore_unknown_options": True})
@options.fleet_argument(before="ansible")
@click.argument("ansible", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--limit",
    required=True,
    metavar="HOST[,HOST…]",
    shell_complete=options.complete_hosts,
    help="These hosts or builders; shell patterns and node[1-3,7] work.",
)
@options.root
@options.allow_older_lock
@options.as_json("Print one JSON object with every host's changes.")
def command(
    fleet: Path, ansible: tuple[str, ...], limit: str, root: Path | None, allow_older_lock: bool, as_json: bool
) -> None:
    """Undo what provision changed on the hosts of FLEET.

    It removes the files and modules that provision put there, restores the boot default, and removes the packages
    that weren't installed before. Packages that left for the lock come back, and those of the lock that were there
    before return, in the version that they had. The host's repositories must still offer it, and nothing that stays
    may conflict with it. The other packages are named.

    Loaded modules keep running until the next reboot; a second remove after it deletes the running kernel's package.
    --check and --diff preview it.

    With --root DIR it works in the root folder of an image.
    """
    require_flags(ansible, root)
    with (
        images.selected(fleet, root, limit, fresh=False, any_serial=allow_older_lock) as (intent, lock, names, image),
        console.step(f"Removing from {images.where(names, image)}"),
    ):
        run = provision(
            intent, lock, fleet, names=names, extra=ansible, playbook="remove", progress=console.say, image=image
        )
    if as_json:
        console.data(summary(run, {"root": str(image.root.path), "left": []} if image is not None else None))
    options.raise_last(run.failures(), fleet)
    if image is None and not {"--check", "-C"} & set(ansible):
        console.say("Reboot the hosts to unload modules that still run.")
