"""``gdsdeploy cufile render``."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

import click

from gdsdeploy import atomic, console
from gdsdeploy.cli import options
from gdsdeploy.converge import fitted_hosts
from gdsdeploy.cufile.fit import Host
from gdsdeploy.cufile.render import PATH, Rendered, Variant, rendered
from gdsdeploy.errors import GdsError, HostUnfit
from gdsdeploy.fleetfile import selection
from gdsdeploy.host.facts import Unknown
from gdsdeploy.lock import lockfile


@click.command()
@options.fleet
@click.argument("host", metavar="HOST")
@click.option(
    "--evidence",
    "--facts",
    type=options.PATH,
    metavar="FILE",
    help="Read evidence that was saved on HOST; it is not asked.",
)
@click.option(
    "--variant",
    type=click.Choice(get_args(Variant)),
    default="host",
    show_default=True,
    help="For /etc/cufile.json, or for CUFILE_ENV_PATH_JSON in a container or of one user.",
)
@click.option("--diff", is_flag=True, help=f"Print how {PATH} on HOST differs, instead of the whole file.")
@click.option("--output", type=options.FILE, metavar="FILE", help="Write it there.")
@options.as_json("Print one JSON object: the text, its values and their sources.")
def command(
    fleet: Path, host: str, evidence: Path | None, variant: str, diff: bool, output: Path | None, as_json: bool
) -> None:
    """Make the cufile.json of HOST from FLEET and its lock, as provision does. Nothing is changed on the host.

    The host is asked only where its profile has `fit` (docs/fleet.md), for its RDMA interfaces, memory, GPUs and the
    paths of its mounts; and with --diff, for the file that it has.

    \b
    Examples:
      gdsdeploy cufile render fleet.yml gpu1
      gdsdeploy cufile render fleet.yml gpu1 --diff
      gdsdeploy cufile render fleet.yml gpu1 --evidence gpu1.json --variant container --output image/cufile.json
    """
    intent, lock = lockfile.fleet_and_lock(fleet)
    if host not in intent.hosts:
        raise selection.no_host(str(fleet), host, intent.hosts)
    profile = intent.profiles[intent.hosts[host].profile]
    known: Host | None = None
    if evidence is not None:
        known = fitted_hosts.read(host, evidence)
    elif profile.fit or diff:
        with console.step(f"Asking {host}"):
            answer = fitted_hosts.ask(intent, lock, fleet, [host])[host]
        if isinstance(answer, GdsError):
            raise answer
        known = answer
    version = lock.targets[intent.hosts[host].profile].libcufile.version
    made = rendered(intent.hosts[host].profile, profile, version, known, variant=cast("Variant", variant))
    for note in made.notes:
        console.warn(note)
    changes = "".join(_differences(known, made.text)) if diff and known else None
    if output is not None:
        _write(output, made.text)
    if as_json:
        console.data(_json(host, version, made, changes))
    elif changes is not None:
        console.data(changes.rstrip("\n")) if changes else console.say(f"{PATH} on {host} is as rendered")
    elif output is None:
        console.file(made.text.rstrip("\n"))


def _json(name: str, version: str, made: Rendered, changes: str | None) -> str:
    found = {
        "host": name,
        "libcufile": version,
        "text": made.text,
        "document": made.document,
        "sources": made.sources,
        "notes": made.notes,
        **({} if changes is None else {"diff": changes}),
    }
    return json.dumps(found, indent=2, ensure_ascii=False)


def _differences(host: Host, text: str) -> Iterator[str]:
    """A unified diff from the file of the host; raises HostUnfit when that could not be read."""
    there = host.facts.document.text(PATH)
    if isinstance(there, Unknown):
        raise HostUnfit(f"{host.name}: {PATH} could not be read: {there.reason}")
    before = (there or "").splitlines(keepends=True)
    return difflib.unified_diff(before, text.splitlines(keepends=True), f"{host.name}:{PATH}", "rendered")


def _write(file: Path, text: str) -> None:
    """Replace ``file`` in one step; raises GdsError."""
    if file.is_file() and file.read_text(encoding="utf-8", errors="replace") == text:
        console.say(f"{file} is as rendered")
        return
    try:
        atomic.write(file, text)
    except OSError as caught:
        raise GdsError(f"{file}: cannot be written: {caught.strerror}") from None
    console.say(f"Wrote {file}")
