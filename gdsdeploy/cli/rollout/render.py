"""``gdsdeploy rollout render``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.lock import lockfile
from gdsdeploy.rollout.carriers import CARRIERS, Carrier, Rendered, render

_NEXT = {
    "runner": "Next: put the key to log in with into {folder}/env/ssh_key (mode 0600), then "
    "ansible-runner run {folder} -p provision.yml",
    "awx": "Next: commit {folder} (git commit -S) and push it; in AWX: a project of it, with the inventory source "
    "inventory/hosts.yml",
    "pull": "Next: commit {folder} (git commit -S) and push it; on each host: ansible-pull -U URL "
    "-i inventory/hosts.yml --verify-commit -e gds_lock_digest={digest}",
}


@click.command()
@options.fleet
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--for", "carrier", type=click.Choice(CARRIERS), required=True, help="The engine that is going to run it."
)
@click.option("--ask", is_flag=True, help="Ask every machine what it is, so that it receives the kept build that fits.")
@click.option(
    "--modules-url", metavar="HTTPS_URL", default="", help="pull: hosts fetch archives of modules from there."
)
@options.as_json("Print one JSON object about what was written.")
def command(fleet: Path, folder: Path, carrier: Carrier, ask: bool, modules_url: str, as_json: bool) -> None:
    """Render all that provisioning FLEET needs into FOLDER, for an engine that the fleet has already.

    \b
    runner   a private data directory of ansible-runner
    awx      a project with its inventory, for AWX to take from source control
    pull     a project for ansible-pull, which each host runs for itself

    FOLDER stands alone: roles, playbooks, host program, keyrings, variables, and the archives of modules that
    this machine has kept; no secret is in it. The same fleet and lock give the same bytes. Only an empty folder,
    or one that was rendered before, is written to, and what you put beside the rendered files stays.

    None of these engines makes canaries, thresholds or rollbacks of it: see docs/carriers.md.

    \b
    Examples:
      gdsdeploy rollout render fleet.yml runner/ --for runner
      gdsdeploy rollout render fleet.yml checkout/ --for awx --json
      gdsdeploy rollout render fleet.yml checkout/ --for pull --modules-url https://files.example/modules
    """
    if modules_url and carrier != "pull":
        raise click.UsageError("--modules-url goes with --for pull only")
    if modules_url and not modules_url.startswith("https://"):
        raise click.BadParameter("modules come over HTTPS: give an https:// address", param_hint="--modules-url")
    intent, lock = lockfile.fleet_and_lock(fleet)
    found = render(intent, lock, fleet, folder, carrier=carrier, ask=ask, modules_url=modules_url)
    if as_json:
        console.data(summary(found))
    for path in found.written.restored:
        console.warn(f"{folder / path}: it was changed since it was rendered; it is as rendered again")
    for note in found.notes:
        console.warn(note)
    counts = f"{len(found.written.changed)} files written, {len(found.written.removed)} removed"
    console.say(f"{folder}: {counts if found.written.changed or found.written.removed else 'it was so already'}")
    for name, how in found.modules.items():
        console.say(f"  {name}: {how}")
    console.say(_NEXT[carrier].format(folder=folder, digest=lock.digest))


def summary(found: Rendered) -> str:
    """One JSON object about the rendering, for machines."""
    value = {
        "for": found.carrier,
        "folder": str(found.folder),
        "lock_digest": found.lock_digest,
        "machines": dict(found.modules),
        "changed": list(found.written.changed),
        "removed": list(found.written.removed),
        "restored": list(found.written.restored),
        "notes": list(found.notes),
    }
    return json.dumps(value, indent=2)
