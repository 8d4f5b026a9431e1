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
@click.option(
    "--accept", metavar="NAME", help="Put the key on record that this machine has shown, and that was refused."
)
@options.as_json()
def command(fleet: Path, accept: str | None, as_json: bool) -> None:
    """Show the keys with which machines of FLEET sign the modules that they build for others.

    A key is put on record when its machine hands modules over for the first time. Another key is refused from then on:
    compare it with what the machine itself says (openssl pkey -pubin -in /var/lib/gdsdeploy/builder.pub -outform DER |
    tail -c 32 | sha256sum), and accept it where the machine was installed anew. The file that is shown with a key
    is the public key: `gdsdeploy verify` takes it in a policy.

    \b
    Examples:
      gdsdeploy kmod builders fleet.yml
      gdsdeploy kmod builders fleet.yml --accept build1
    """
    known = load_fleet(fleet).everyone()
    keys = BuilderKeys.of(fleet)
    if accept is not None:
        if accept not in known:
            raise FleetInvalid(f"{fleet}: there is no host or builder {accept!r}", hint="Correct --accept")
        console.say(f"{accept}: {keys.accept(accept)} is on record now")
    found = [
        {"name": name, "key": key, "refused": keys.refused(name), "file": str(keys.path(name))}
        for name, key in keys.fingerprints().items()
    ]
    if as_json:
        console.json({"fleet": str(fleet), "builders": found})
        return
    for item in found:
        refused = f"  refused: {item['refused']}" if item["refused"] else ""
        console.data(f"{item['name']}  {item['key']}  {item['file']}{refused}")
    if not found:
        console.say(f"No key is on record in {keys.folder}: a builder shows its key when it first hands modules over")
