"""``gdsdeploy provision``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import image as images
from gdsdeploy.cli import options
from gdsdeploy.converge import ansible as converge
from gdsdeploy.converge.provision import provision, summary
from gdsdeploy.host.io.wording import count
from gdsdeploy.model.hostnames import grouped
from gdsdeploy.report import model


@click.command(context_settings={"ignore_unknown_options": True})
@options.fleet_argument(before="ansible")
@click.argument("ansible", nargs=-1, type=click.UNPROCESSED)
@options.limit_with_builders
@options.root
@options.at_once
@click.option("--force-roles", is_flag=True, help="Run the roles on every host, even one without changes.")
@options.allow_older_lock
@options.as_json("Print one JSON object with every host's changes.")
def command(
    fleet: Path,
    ansible: tuple[str, ...],
    limit: str | None,
    root: Path | None,
    force_roles: bool,
    allow_older_lock: bool,
    as_json: bool,
) -> None:
    """Converge the hosts of FLEET to its lock.

    \b
    In this order, on every machine at its own pace:
      preflight   operating system, free space, no half-installed package
      pin         the locked repositories; nothing else may move the driver
      install     driver userland, the locked kernel, libcufile, gds-tools
      build       nvidia, nvidia-peermem, nvidia-fs: once on the builder, or on each host
      audit       vermagic and symbol versions, before anything is put in place
      configure   cufile.json, module order, nouveau kept out
      reboot      if the kernel or a loaded module is not the locked one; proven by boot id

    Every host is asked once beforehand, as `gdsdeploy plan` does. Hosts that match the lock are skipped; if all
    match, Ansible doesn't start. --force-roles runs the roles anyway. A host that is refused stays unchanged, and the
    others continue.

    Other flags are passed to ansible-playbook: --check, --diff, --tags, --forks, -v, -e … With a flag other than
    -v, --forks or --timeout, the roles run on every host, as with Ansible.

    With --root DIR it prepares the root folder of an image: hosts that boot from it have the state of
    the host that --limit names. It starts no service, loads no module and reboots nothing; the gate judges the first
    boot. It needs root.

    \b
    Examples:
      gdsdeploy provision fleet.yml
      gdsdeploy provision fleet.yml --limit gpu1 --force-roles
      gdsdeploy provision fleet.yml --check --diff
      sudo gdsdeploy provision fleet.yml --root /mnt/image --limit gpu1
    """
    require_flags(ansible, root)
    with (
        images.selected(fleet, root, limit, any_serial=allow_older_lock) as (intent, lock, names, image),
        console.step(f"Provisioning {images.where(names, image)}"),
    ):
        run = provision(
            intent, lock, fleet, names=names, extra=ansible, force_roles=force_roles, progress=console.say, image=image
        )
    if as_json:
        console.data(summary(run, image.to_json(lock) if image is not None else None))
    failures = run.failures()
    if set(names) == set(run.satisfied):
        console.say("Nothing to change: every host matches the lock")
    results = {name: run.outcome.hosts.get(name) for name in names if name not in {*failures, *run.satisfied}}
    changes = grouped((name, len(result.changed) if result else 0) for name, result in results.items())
    for number, hosts in changes.items():
        console.say(f"  {model.on(hosts)}: {count(number, 'change') if number else 'nothing to change'}")
    options.raise_last(failures, fleet)
    console.say(images.left(image, lock) or f"Next: gdsdeploy validate {fleet}")


def require_flags(ansible: tuple[str, ...], root: Path | None) -> None:
    """End with a usage error, before a host is asked, unless ansible-playbook accepts these flags; --root has none."""
    no_flags = "--root goes without flags for ansible-playbook: to preview it, use gdsdeploy plan"
    options.require(root is None or not ansible, no_flags)
    problem = converge.refused_flags(ansible)
    if problem:
        hint = "Flags that gdsdeploy doesn't have go to ansible-playbook; see: ansible-playbook --help"
        raise click.UsageError(f"{problem}\n{hint}", click.get_current_context())
