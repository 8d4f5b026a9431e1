"""``gdsdeploy rollout render``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.lock import lockfile
from gdsdeploy.rollout.carriers import CARRIERS, Carrier, render

_NEXT = {
    "runner": "Next: put the login key into {folder}/env/ssh_key (mode 0600), then "
    "ansible-runner run {folder} -p provision.yml",
    "awx": "Next: commit {folder} (git commit -S) and push it; in AWX, create a project with the inventory source "
    "inventory/hosts.yml",
    "pull": "Next: commit {folder} (git commit -S) and push it; on each host: ansible-pull -U URL "
    "-i inventory/hosts.yml --verify-commit -e gds_lock_digest={digest}",
}


@click.command()
@options.fleet_argument(before="folder")
@click.argument("folder", type=options.FOLDER, required=False, metavar="FOLDER")
@click.option("--for", "carrier", type=click.Choice(CARRIERS), required=True, help="The engine that will run it.")
@click.option("--ask", is_flag=True, help="Ask every machine for its facts, so that it receives a cached build.")
@click.option("--modules-url", metavar="HTTPS_URL", default="", help="pull: where hosts fetch archives of modules.")
@options.as_json("Print one JSON object about the written files.")
def command(fleet: Path, folder: Path, carrier: Carrier, ask: bool, modules_url: str, as_json: bool) -> None:
    """Render everything that provisioning FLEET needs into FOLDER, for an engine that the fleet already has.

    \b
    runner   a private data directory of ansible-runner
    awx      a project with its inventory, which AWX reads from source control
    pull     a project for ansible-pull, which runs on each host

    FOLDER is complete: roles, playbooks, host program, keyrings, variables, and this machine's cached archives of
    modules. It holds no secret. The same fleet and lock give the same bytes. FOLDER must be empty or rendered
    before; your own files beside the rendered ones stay.

    These engines don't have canaries, thresholds or rollbacks: see docs/carriers.md.

    \b
    Examples:
      gdsdeploy rollout render fleet.yml runner/ --for runner
      gdsdeploy rollout render fleet.yml project/ --for awx --json
      gdsdeploy rollout render fleet.yml checkout/ --for pull --modules-url https://files.example/modules
    """
    options.require(not modules_url or carrier == "pull", "--modules-url goes with --for pull only")
    if modules_url and not modules_url.startswith("https://"):
        raise click.BadParameter("modules come over HTTPS: pass an https:// address", param_hint="--modules-url")
    intent, lock = lockfile.fleet_and_lock(fleet)
    result = render(intent, lock, fleet, folder, carrier=carrier, ask=ask, modules_url=modules_url)
    files = result.written
    if as_json:
        console.json(
            {
                "for": result.carrier,
                "folder": str(result.folder),
                "lock_digest": result.lock_digest,
                "machines": dict(result.modules),
                **{key: list(getattr(files, key)) for key in ("changed", "removed", "restored")},
                "notes": list(result.notes),
            }
        )
    for path in files.restored:
        console.warn(f"{folder / path}: it was changed after rendering, and was rendered again")
    for note in result.notes:
        console.warn(note)
    counts = f"{len(files.changed)} files written, {len(files.removed)} removed"
    console.say(f"{folder}: {counts if files.changed or files.removed else 'already up to date'}")
    for name, modules in result.modules.items():
        console.say(f"  {name}: {modules}")
    console.say(_NEXT[carrier].format(folder=folder, digest=lock.digest))
