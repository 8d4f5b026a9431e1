"""``gdsdeploy cufile render``."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.converge import cufile_facts
from gdsdeploy.cufile.render import PATH, FitTarget, Variant, render_profile
from gdsdeploy.errors import GdsError, HostUnfit
from gdsdeploy.fleetfile.selection import require_host
from gdsdeploy.host.facts import Unknown
from gdsdeploy.lock import lockfile
from gdsdeploy.validate.output import write


@click.command()
@options.fleet_argument(before="host")
@click.argument("host", metavar="HOST", required=False, shell_complete=options.complete_hosts)
@click.option(
    "--evidence", "--facts", type=options.PATH, metavar="FILE", help="Read evidence saved on HOST; HOST is not asked."
)
@click.option(
    "--variant",
    type=click.Choice(get_args(Variant)),
    default="host",
    show_default=True,
    help="For /etc/cufile.json, or for CUFILE_ENV_PATH_JSON in a container or of one user.",
)
@click.option("--diff", is_flag=True, help=f"Print a diff from {PATH} on HOST instead of the whole file.")
@options.output("Write the file there.")
@options.as_json("Print one JSON object: the text, its values and their sources.")
def command(
    fleet: Path, host: str, evidence: Path | None, variant: str, diff: bool, output: Path | None, as_json: bool
) -> None:
    """Make HOST's cufile.json from FLEET and its lock, as provision does. HOST stays unchanged.

    If the profile has `fit` (docs/fleet.md), HOST is asked for its RDMA interfaces, memory, GPUs and the paths of its
    mounts. With --diff, it is also asked for its file.

    \b
    Examples:
      gdsdeploy cufile render fleet.yml gpu1
      gdsdeploy cufile render fleet.yml gpu1 --diff
      gdsdeploy cufile render fleet.yml gpu1 --evidence gpu1.json --variant container --output image/cufile.json
    """
    intent, lock = lockfile.fleet_and_lock(fleet, signed=False)
    require_host(host, intent.hosts, fleet)
    profile = intent.profiles[intent.hosts[host].profile]
    facts: FitTarget | None = None
    if evidence is not None:
        facts = cufile_facts.facts_from_file(host, evidence)
    elif profile.fit or diff:
        with console.step(f"Asking {host}"):
            answer = cufile_facts.facts_of(intent, lock, fleet, [host])[host]
        if isinstance(answer, GdsError):
            raise answer
        facts = answer
    version = lock.targets[intent.hosts[host].profile].libcufile.version
    result = render_profile(intent.hosts[host].profile, profile, version, facts, variant=cast("Variant", variant))
    for note in result.notes:
        console.warn(note)
    changes = "".join(_differences(facts, result.text)) if diff and facts else None
    if output is not None:
        _write(output, result.text)
    if as_json:
        value = {key: getattr(result, key) for key in ("text", "document", "sources", "notes")}
        difference = {} if changes is None else {"diff": changes}
        console.json({"host": host, "libcufile": version, **value, **difference})
    elif changes is not None:
        console.data(changes.rstrip("\n")) if changes else console.say(f"{PATH} on {host} matches")
    elif output is None:
        console.file(result.text.rstrip("\n"))


def _differences(host: FitTarget, text: str) -> Iterator[str]:
    """A unified diff from the host's file; raises HostUnfit if that could not be read."""
    content = host.facts.document.text(PATH)
    if isinstance(content, Unknown):
        raise HostUnfit(f"{host.name}: {PATH} could not be read: {content.reason}")
    before = (content or "").splitlines(keepends=True)
    return difflib.unified_diff(before, text.splitlines(keepends=True), f"{host.name}:{PATH}", "rendered")


def _write(file: Path, text: str) -> None:
    """Replace ``file`` in one step; raises GdsError."""
    if file.is_file() and file.read_text(encoding="utf-8", errors="replace") == text:
        console.say(f"{file} matches")
        return
    write(file, text)
    console.say(f"Wrote {file}")
