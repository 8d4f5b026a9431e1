"""``gdsdeploy mode``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import LockStale
from gdsdeploy.fleetfile import selection
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.explain.mechanisms import Choice, Mechanism, choose, mechanisms, words
from gdsdeploy.host.facts import HostFacts, Unknown, as_dict
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.ssh import evidence_file, hostdata
from gdsdeploy.validate import topology as asking
from gdsdeploy.validate.mechanisms import Migration, Mode, Rdma, migration


@click.command()
@options.optional_fleet
@options.limit
@options.saved_evidence
@click.option("--to", "mode", type=click.Choice(["nvidia-fs", "p2pdma", "compat"]), help="Plan the way to this mode.")
@click.option("--rdma", type=click.Choice(["none", "peermem", "dmabuf"]), help="Plan the way to this one for RDMA.")
@options.timeout(asking.TIMEOUT)
@options.as_json("Print one JSON object.")
def command(
    fleet: Path | None,
    limit: str | None,
    file: Path | None,
    mode: str | None,
    rdma: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Say which peer-to-peer mechanisms the hosts of FLEET offer, which to choose, and what a change takes.

    For each host: nvidia-fs, PCI P2PDMA, PeerDirect (registered, not only loaded), DMA-BUF and HMM: usable or not, and
    why; and the `mode` and `rdma` that fit it as it runs now. Nothing is changed: the fleet file decides.

    With --to or --rdma, no host is asked: the steps from what the fleet file has to what is named, from the lock beside
    it: fleet file, packages, module options, modules, keys of cufile.json, reboot, and who does each.

    \b
    Examples:
      gdsdeploy mode fleet.yml --limit gpu1
      gdsdeploy mode --evidence gpu1.json --json | jq .choice
      gdsdeploy mode fleet.yml --to p2pdma
      gdsdeploy mode fleet.yml --rdma dmabuf
    """
    if file is not None:
        if fleet is not None or limit is not None or mode is not None or rdma is not None:
            raise click.UsageError("--evidence FILE stands alone, but for --json")
        _saved(evidence_file.of_hosts(file), as_json)
        return
    if fleet is None:
        raise click.UsageError("name the fleet file, or saved evidence with --evidence FILE")
    intent = load_fleet(fleet)
    if mode is not None or rdma is not None:
        if limit is not None:
            raise click.UsageError("--to and --rdma are about profiles: --limit has nothing to choose from")
        _plan(intent, fleet, cast("Mode | None", mode), cast("Rdma | None", rdma), as_json)
        return
    _ask(intent, fleet, limit, timeout, as_json)


def _saved(found: dict[str, HostFacts], as_json: bool) -> None:
    """Print what saved evidence shows; of evidence that names no host, the object without a name around it."""
    documents = {name: _document(facts) for name, facts in found.items()} if as_json else {}
    if as_json:
        whole = documents.get(evidence_file.UNNAMED, documents)
        console.json(whole)
        return
    for name, facts in found.items():
        console.data((f"{name}:\n" if name else "") + _text(facts))


def _ask(intent: Fleet, fleet: Path, limit: str | None, timeout: float, as_json: bool) -> None:
    names = selection.select(limit, list(intent.hosts), fleet)
    with console.step(f"Asking {', '.join(names)}"):
        found = asking.ask(intent, fleet, names, timeout=timeout, progress=console.say)
    known, lost = hostdata.each(found, lambda _, facts: _document(facts) if as_json else _text(facts))
    if as_json:
        console.json(known)
    else:
        for name, text in known.items():
            profile = intent.profiles[intent.hosts[name].profile]
            console.data(f"{name} (the fleet file: mode {profile.mode}, rdma {profile.rdma}):\n{text}")
    if lost:
        raise lost[0]


def _document(facts: HostFacts) -> dict[str, Any]:
    return {
        "mechanisms": {item.name: as_dict(item) for item in mechanisms(facts)},
        "choice": as_dict(choose(facts)),
    }


def _text(facts: HostFacts) -> str:
    lines = []
    for item in mechanisms(facts):
        lines += _mechanism(item)
    return "\n".join([*lines, *_choice(choose(facts))]) + "\n"


def _mechanism(item: Mechanism) -> list[str]:
    mark = "?" if isinstance(item.usable, Unknown) else "✓" if item.usable else "✗"
    lines = [f"  {mark} {item.title}: {words(item)}"]
    lines += [f"      {reason}" for reason in item.why]
    return lines + [f"      → {fix}" for fix in item.fixes]


def _choice(found: Choice) -> list[str]:
    return [
        f"  {key}: {'not known' if isinstance(value, Unknown) else value}" + (f" ({why[0]})" if why else "")
        for key, value, why in (("mode", found.mode, found.mode_why), ("rdma", found.rdma, found.rdma_why))
    ]


def _plan(intent: Fleet, fleet: Path, mode: Mode | None, rdma: Rdma | None, as_json: bool) -> None:
    lock = lockfile.read(lockfile.beside(fleet))
    plans: dict[str, Migration] = {}
    for name, profile in intent.profiles.items():
        if name not in lock.targets:
            raise LockStale(f"the lock has nothing for profile {name}", hint=f"Run `gdsdeploy lock {fleet}` again")
        plans[name] = migration(name, profile, lock.targets[name], mode or profile.mode, rdma or profile.rdma)
    if as_json:
        console.json({name: as_dict(item) for name, item in plans.items()})
        return
    for name, item in plans.items():
        console.data(f"{name}: " + ("there already" if not item.steps else "reboot" if item.reboot else "no reboot"))
        for step in item.steps:
            change = " → ".join(part or "nothing" for part in (step.before, step.after))
            console.data(f"  [{step.by}] {step.where}: {change}")
        for line in item.obstacles:
            console.data(f"  ✗ {line}")
