"""``gdsdeploy inventory``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.converge import cufile_facts, static_inventory
from gdsdeploy.converge.plan_report import supply_words
from gdsdeploy.errors import GdsError
from gdsdeploy.lock import lockfile
from gdsdeploy.model.hostnames import grouped, words


@click.command()
@options.fleet
@click.option("-o", "--output", "folder", type=options.FOLDER, required=True, metavar="DIR", help="Where to write it.")
@options.as_json("Print one JSON object about the written files.")
def command(fleet: Path, folder: Path, as_json: bool) -> None:
    """Write FLEET as a static Ansible inventory, for AWX, ansible-runner, ansible-pull or ansible-playbook.

    DIR gets hosts.yml, every host's variables, provision.yml, remove.yml, the collection with its requirements.yml,
    and the files that they need: keyrings, host keys, and builds that this machine keeps. It names no path of this
    machine and has no secret. The same fleet and lock give the same files. A file in DIR that this command didn't
    write is never replaced.

    Hosts of a profile with `fit` are asked for their facts; others aren't contacted. See docs/inventory.md.

    \b
    Examples:
      gdsdeploy inventory fleet.yml -o inventory/
      ansible-playbook -i inventory/hosts.yml inventory/provision.yml --check
    """
    intent, lock = lockfile.fleet_and_lock(fleet)
    answers = cufile_facts.facts_of(intent, lock, fleet, cufile_facts.names_to_fit(intent, list(intent.everyone())))
    options.raise_last({name: error for name, error in answers.items() if isinstance(error, GdsError)}, fleet)
    fit_targets = {name: fit for name, fit in answers.items() if not isinstance(fit, GdsError)}
    written = static_inventory.write(intent, lock, fleet, folder, fit_targets)
    machines = {name: supply_words(supply) for name, supply in written.supplies.items()}
    if as_json:
        console.json(
            {
                "folder": str(folder),
                "lock_digest": lock.digest,
                "machines": machines,
                "changed": written.changed,
                "removed": written.removed,
                "notes": written.notes,
            }
        )
    for note in written.notes:
        console.warn(note)
    for how, names in grouped(machines.items()).items():
        console.say(f"  {words(names)}: {how}")
    for word, paths in (("wrote", written.changed), ("removed", written.removed)):
        own = [path for path in paths if not path.startswith("collections/")]
        say = console.say_each(len(own))
        for path in own:
            say(f"  {word} {path}")
        if paths:
            console.say(f"{folder}: {word} {len(paths)} files")
    if not written.changed and not written.removed:
        console.say(f"{folder}: nothing to change")
    console.say(f"Next: ansible-playbook -i {folder}/hosts.yml {folder}/provision.yml --check")
