"""``gdsdeploy plan``, ``provision``, ``remove`` and ``inventory``.

With ``--root DIR``, the first three take the root of an image in place of hosts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.converge import ansible as converge, plan_report, static_inventory
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.image import Image, open_image
from gdsdeploy.converge.machine import Machine
from gdsdeploy.converge.plan_fleet import PLAN_TIMEOUT, FleetPlan, facts_to_fit, names_to_fit, plan_fleet
from gdsdeploy.converge.plan_report import supply_words
from gdsdeploy.converge.provision import provision, summary
from gdsdeploy.errors import ChangesPending, ChecksUnknown, GdsError, HostUnfit
from gdsdeploy.fleetfile import selection
from gdsdeploy.fleetfile.load import TRUSTED
from gdsdeploy.fleetfile.rules import rules_of
from gdsdeploy.host.io.wording import count, joined
from gdsdeploy.lock import compat, lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.hostnames import grouped, words
from gdsdeploy.model.lock import Lock
from gdsdeploy.preflight.record import cautions
from gdsdeploy.report import model


@contextlib.contextmanager
def selected_machines(
    fleet: Path,
    folder: Path | None,
    limit: str | None,
    *,
    changes: bool = True,
    fresh: bool = True,
    any_serial: bool = False,
) -> Iterator[tuple[Fleet, Lock, list[str], Image | None]]:
    """The fleet, its lock, the machines of ``limit``, and the image in ``folder`` that stands for the one of them.

    changes: whether the verb may change them.  fresh, any_serial: of fleet_and_lock.
    Ends with a usage error unless an image has one machine.
    """
    intent, lock = lockfile.fleet_and_lock(fleet, TRUSTED, fresh=fresh, signed=changes, any_serial=any_serial)
    options.require(
        folder is None or limit is not None, "--root needs --limit HOST: the host whose state the image gets"
    )
    names = selection.select(limit, list(intent.everyone()), fleet)
    if folder is None:
        yield intent, lock, names, None
        return
    options.require(len(names) == 1, f"--root needs one host, and --limit names {len(names)}: {', '.join(names)}")
    with open_image(intent, lock, names[0], folder, changes=changes) as image:
        yield image.fleet, lock, names, image


def place(names: list[str], image: Image | None) -> str:
    """What a verb works on, in words."""
    return words(names) if image is None else f"{image.root.path} as {image.name}"


def left_out(image: Image | None, lock: Lock) -> str:
    """What isn't done in an image, as a paragraph; empty: nothing."""
    left = image.left(Machine(image.fleet, lock, image.name)) if image is not None else []
    lines = [f"  - {entry.words}" for entry in left]
    return joined(["Left out of the image:", *lines]) if lines else ""


@click.command()
@options.combined(options.alone("--root", "--limit", "--verbose", "--json"))
@options.fleet
@options.limit_with_builders
@options.root
@options.timeout(PLAN_TIMEOUT)
@options.at_once
@options.verbose
@options.as_json()
def plan(fleet: Path, limit: str | None, root: Path | None, timeout: float, verbose: bool, as_json: bool) -> None:
    """Show what provision would change on each host of FLEET, and why, without touching it.

    All hosts are asked at the same time. For each host it lists the changes in the order of the roles, with the found
    and the expected state, and their effect on running work: nothing, a module reload, or a reboot. What couldn't be
    read is "unknown"; such a host never counts as unchanged.

    With --root DIR it plans for the root folder of an image, and also says what is left to the first boot.

    \b
    Exit code, the first of these that applies:
      32            provision would change a host
      20, 21, 22    a host could not be asked, or would be refused
      31            the plan of a host is incomplete
      0             no host needs a change

    \b
    Examples:
      gdsdeploy plan fleet.yml
      gdsdeploy plan fleet.yml --limit 'gpu*' --json | jq '.hosts[].actions[].what'
      gdsdeploy plan fleet.yml; [ $? -ne 32 ] || gdsdeploy provision fleet.yml
      sudo gdsdeploy plan fleet.yml --root /mnt/image --limit gpu1
    """
    with selected_machines(fleet, root, limit, changes=False) as (intent, lock, names, image):
        with console.step(f"Planning {place(names, image)}") as step:
            result = plan_fleet(
                intent, lock, fleet, names, timeout=timeout, progress=say_plans(len(names)), image=image
            )
            step.failure = model.failures_in(result.hosts)
        profiles = sorted({intent.machine(name).profile for name in names})
        rules = rules_of(intent)
        warnings = [(name, verdict) for name in profiles for verdict in cautions(lock.targets[name], rules)]
        if as_json:
            about = image.to_json(lock) if image is not None else None
            text = plan_report.to_json(
                result.hosts, result.seconds, fleet=str(fleet), lock_digest=lock.digest, image=about, warnings=warnings
            )
        else:
            text = "\n\n".join(filter(None, [plan_report.text(result.hosts, whole=verbose), left_out(image, lock)]))
    for line in compat.lines(warnings):
        console.warn(line)
    console.data(text)
    options.end_with([plan_outcome(result)])


def say_plans(number: int) -> Callable[[HostPlan | GdsError, str, float], None]:
    """What prints a line about each of ``number`` hosts that was asked, where they are few."""
    say = console.say_each(number)
    return lambda plan, name, seconds: say(f"  {plan_report.line(name, plan)} ({seconds:.1f} s)")


def plan_outcome(result: FleetPlan) -> GdsError | None:
    """The error that a run with this plan ends in; for pending changes it has no message, because they are shown."""
    errors = {name: plan for name, plan in result.hosts.items() if isinstance(plan, GdsError)}
    plans = [plan for plan in result.hosts.values() if isinstance(plan, HostPlan)]
    if any(plan.changes and not plan.refusal for plan in plans):
        return ChangesPending("")
    if errors:
        kind = type(next(iter(errors.values())))
        return kind(f"could not ask {words(errors)}", hint="See the reasons above")
    if refused := [plan.host for plan in plans if plan.refusal]:
        return HostUnfit(f"provision would refuse {words(refused)}", hint="See the reasons above")
    if unknown := [plan.host for plan in plans if plan.unknown]:
        return ChecksUnknown(f"the plan is incomplete for {words(unknown)}", hint="See the reasons above")
    return None


@click.command(context_settings={"ignore_unknown_options": True})
@options.combined(options.alone("--root", "--limit", "--allow-older-lock", "--json"))
@options.fleet_argument(before="ansible")
@click.argument("ansible", nargs=-1, type=click.UNPROCESSED)
@options.limit_with_builders
@options.root
@options.at_once
@click.option("--force-roles", is_flag=True, help="Run the roles on every host, even one without changes.")
@options.allow_older_lock
@options.as_json("Print one JSON object with every host's changes.")
def provision_hosts(
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
    -v, --forks or --timeout, the roles run on every host, as with Ansible. -l is --limit. A host on which Ansible did
    nothing, because no task has the tag for instance, counts as not provisioned.

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
    flags, limit = require_flags(ansible, limit, root)
    with (
        selected_machines(fleet, root, limit, any_serial=allow_older_lock) as (intent, lock, names, image),
        console.step(f"Provisioning {place(names, image)}") as step,
    ):
        run = provision(
            intent, lock, fleet, names=names, flags=flags, force_roles=force_roles, progress=console.say, image=image
        )
        step.failure = model.failures_in({**dict.fromkeys(names), **run.failures()})
    if as_json:
        console.data(summary(run, image.to_json(lock) if image is not None else None))
    failures = run.failures()
    if set(names) == set(run.satisfied):
        console.say("Nothing to change: every host matches the lock")
    played = [(name, result) for name, result in run.outcome.hosts.items() if name not in failures]
    changes = grouped((name, len(result.changed)) for name, result in played)
    for number, hosts in changes.items():
        console.say(f"  {model.on(hosts)}: {count(number, 'change') if number else 'nothing to change'}")
    options.raise_last(failures, fleet)
    console.say(left_out(image, lock) or f"Next: gdsdeploy validate {fleet}")


def require_flags(words: tuple[str, ...], limit: str | None, root: Path | None) -> tuple[converge.Flags, str | None]:
    """The flags for ansible-playbook, and the limit, which may be among them.

    Ends with a usage error, before a host is asked, unless ansible-playbook accepts the flags; --root has none.
    """
    try:
        flags = converge.flags(words)
    except converge.FlagsRefused as problem:
        hint = "Flags that gdsdeploy doesn't have go to ansible-playbook; see: ansible-playbook --help"
        raise click.UsageError(f"{problem}\n{hint}", click.get_current_context()) from None
    no_flags = "--root goes without flags for ansible-playbook: to preview it, use gdsdeploy plan"
    options.require(root is None or flags.given <= {"subset"}, no_flags)
    options.require(None in (limit, flags.limit), f"--limit is given twice: {limit} and {flags.limit}")
    return flags, limit if flags.limit is None else flags.limit


@click.command(context_settings={"ignore_unknown_options": True})
@options.combined(options.alone("--root", "--limit", "--allow-older-lock", "--json"))
@options.fleet_argument(before="ansible")
@click.argument("ansible", nargs=-1, type=click.UNPROCESSED)
@options.listed("--limit", "These hosts or builders, and never all by default; shell patterns and node[1-3,7] work.")
@options.root
@options.allow_older_lock
@options.as_json("Print one JSON object with every host's changes.")
def remove_hosts(
    fleet: Path, ansible: tuple[str, ...], limit: str | None, root: Path | None, allow_older_lock: bool, as_json: bool
) -> None:
    """Undo what provision changed on the hosts of FLEET.

    It removes the files and modules that provision put there, restores the boot default, and removes the packages
    that weren't installed before. Packages that left for the lock come back, and those of the lock that were there
    before return, in the version that they had. The host's repositories must still offer it, and nothing that stays
    may conflict with it. The other packages are named. The audit trail in /var/log/gdsdeploy stays.

    Loaded modules keep running until the next reboot; a second remove after it deletes the running kernel's package.
    --check and --diff preview it.

    With --root DIR it works in the root folder of an image.
    """
    flags, limit = require_flags(ansible, limit, root)
    if limit is None:
        raise click.UsageError("Missing option '--limit'.")
    with (
        selected_machines(fleet, root, limit, fresh=False, any_serial=allow_older_lock) as (intent, lock, names, image),
        console.step(f"Removing from {place(names, image)}") as step,
    ):
        run = provision(
            intent, lock, fleet, names=names, flags=flags, playbook="remove", progress=console.say, image=image
        )
        step.failure = model.failures_in({**dict.fromkeys(names), **run.failures()})
    if as_json:
        console.data(summary(run, {"root": str(image.root.path), "left": []} if image is not None else None))
    options.raise_last(run.failures(), fleet)
    if image is None and not flags.checks:
        console.say("Reboot the hosts to unload modules that still run.")


@click.command()
@options.fleet
@click.option("-o", "--output", "folder", type=options.FOLDER, required=True, metavar="DIR", help="Where to write it.")
@options.as_json("Print one JSON object about the written files.")
def write_inventory(fleet: Path, folder: Path, as_json: bool) -> None:
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
    intent, lock = lockfile.fleet_and_lock(fleet, TRUSTED)
    answers = facts_to_fit(intent, lock, fleet, names_to_fit(intent, list(intent.everyone())))
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


commands = {"plan": plan, "provision": provision_hosts, "remove": remove_hosts, "inventory": write_inventory}
