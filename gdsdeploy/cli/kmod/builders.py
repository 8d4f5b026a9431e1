"""``gdsdeploy kmod builders``: the keys of the machines that build."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.builds.builder_keys import BuilderKeys
from gdsdeploy.cli import options
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.fleetfile.load import load_fleet


@click.command()
@options.fleet
@click.option("--accept", metavar="NAME", help="Record the key that this machine presented, and that was refused.")
@options.as_json()
def command(fleet: Path, accept: str | None, as_json: bool) -> None:
    """Show the keys with which machines of FLEET sign the modules that they build for others.

    A key is recorded when its machine first delivers modules; from then on, other keys are refused. Compare a refused
    key with the machine's own (openssl pkey -pubin -in /var/lib/gdsdeploy/builder.pub -outform DER | tail -c 32 |
    sha256sum), and accept it if the machine was reinstalled. The file shown with a key is the public key.

    \b
    Examples:
      gdsdeploy kmod builders fleet.yml
      gdsdeploy kmod builders fleet.yml --accept build1
    """
    machines = load_fleet(fleet).everyone()
    keys = BuilderKeys.of(fleet)
    if accept is not None:
        if accept not in machines:
            raise FleetInvalid(f"{fleet}: there is no host or builder {accept!r}", hint="Correct --accept")
        console.say(f"{accept}: {keys.accept(accept)} is recorded now")
    builders = [
        {"name": name, "key": key, "refused": keys.refused(name), "file": str(keys.path(name))}
        for name, key in keys.fingerprints().items()
    ]
    if as_json:
        console.json({"fleet": str(fleet), "builders": builders})
        return
    for builder in builders:
        refused = f"  refused: {builder['refused']}" if builder["refused"] else ""
        console.data(f"{builder['name']}  {builder['key']}  {builder['file']}{refused}")
    if not builders:
        console.say(f"No key is recorded in {keys.folder}: a builder presents its key when it first delivers modules")
