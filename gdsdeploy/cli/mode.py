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
from gdsdeploy.host.explain.mechanisms import choose, mechanisms, usability
from gdsdeploy.host.facts import HostFacts, Unknown, as_dict
from gdsdeploy.host.facts.evidence_file import UNNAMED
from gdsdeploy.lock import lockfile
from gdsdeploy.model import hostnames
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.report import alike
from gdsdeploy.ssh import evidence_file, reply_schema
from gdsdeploy.ssh.endpoint import TIMEOUT
from gdsdeploy.validate import topology as asking
from gdsdeploy.validate.mechanisms import Migration, Mode, Rdma, migration


@click.command()
@options.fleet_argument(alone="file")
@options.limit
@options.saved_evidence
@click.option("--to", "mode", type=click.Choice(["nvidia-fs", "p2pdma", "compat"]), help="Plan a change to this mode.")
@click.option("--rdma", type=click.Choice(["none", "peermem", "dmabuf"]), help="Plan a change to this one for RDMA.")
@options.timeout(TIMEOUT)
@options.at_once
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
    """Show which peer-to-peer mechanisms the hosts of FLEET offer, which to choose, and what a change requires.

    For each host it shows whether nvidia-fs, PCI P2PDMA, PeerDirect (registered, not only loaded), DMA-BUF and HMM are
    usable, and why, and the `mode` and `rdma` that fit the host as it runs now. Hosts stay unchanged: the fleet file
    decides.

    With --to or --rdma, no host is asked. It lists the steps from the fleet file's setting to the new one, by the lock
    beside it: fleet file, packages, module options, modules, keys of cufile.json, reboot, and who performs each.

    \b
    Examples:
      gdsdeploy mode fleet.yml --limit gpu1
      gdsdeploy mode --evidence gpu1.json --json | jq .choice
      gdsdeploy mode fleet.yml --to p2pdma
      gdsdeploy mode fleet.yml --rdma dmabuf
    """
    if file is not None:
        options.require(not any((fleet, limit, mode, rdma)), options.EVIDENCE_ALONE)
        _saved(evidence_file.of_hosts(file), as_json)
        return
    assert fleet is not None, "without saved evidence, it has a default"
    intent = load_fleet(fleet)
    if mode is not None or rdma is not None:
        options.require(limit is None, "--to and --rdma are about profiles: --limit doesn't go with them")
        _plan(intent, fleet, cast("Mode | None", mode), cast("Rdma | None", rdma), as_json)
        return
    _ask(intent, fleet, limit, timeout, as_json)


def _saved(hosts: dict[str, HostFacts], as_json: bool) -> None:
    """Print the result of saved evidence; evidence without a host's name gives its object alone."""
    if as_json:
        documents = {name: _document(facts) for name, facts in hosts.items()}
        console.json(documents.get(UNNAMED, documents))
        return
    for text, names in hostnames.grouped((name, _text(facts)) for name, facts in hosts.items()).items():
        console.data((f"{alike.on(names)}:\n" if names != [UNNAMED] else "") + text)


def _ask(intent: Fleet, fleet: Path, limit: str | None, timeout: float, as_json: bool) -> None:
    names = selection.select(limit, list(intent.hosts), fleet)
    with console.step(f"Asking {hostnames.words(names)}"):
        answers = asking.ask_facts(intent, fleet, names, timeout=timeout, progress=console.say_each(len(names)))
    results, errors = reply_schema.judge_each(answers, lambda _, facts: _document(facts) if as_json else _text(facts))
    if as_json:
        console.json(results)
    else:
        each = ((name, (intent.hosts[name].profile, text)) for name, text in results.items())
        for (name, text), hosts in hostnames.grouped(each).items():
            profile = intent.profiles[name]
            console.data(f"{alike.on(hosts)} (the fleet file: mode {profile.mode}, rdma {profile.rdma}):\n{text}")
    options.raise_last(errors, fleet)


def _document(facts: HostFacts) -> dict[str, Any]:
    by_name = {mechanism.name: as_dict(mechanism) for mechanism in mechanisms(facts)}
    return {"mechanisms": by_name, "choice": as_dict(choose(facts))}


def _text(facts: HostFacts) -> str:
    lines = []
    for mechanism in mechanisms(facts):
        mark = "?" if isinstance(mechanism.usable, Unknown) else "✓" if mechanism.usable else "✗"
        lines.append(f"  {mark} {mechanism.title}: {usability(mechanism)}")
        lines += [f"      {reason}" for reason in mechanism.why]
        lines += [f"      → {fix}" for fix in mechanism.fixes]
    choice = choose(facts)
    for key, value, why in (("mode", choice.mode, choice.mode_why), ("rdma", choice.rdma, choice.rdma_why)):
        reason = f" ({why[0]})" if why else ""
        lines.append(f"  {key}: {'not known' if isinstance(value, Unknown) else value}{reason}")
    return "\n".join(lines) + "\n"


def _plan(intent: Fleet, fleet: Path, mode: Mode | None, rdma: Rdma | None, as_json: bool) -> None:
    lock = lockfile.read(lockfile.beside(fleet))
    plans: dict[str, Migration] = {}
    for name, profile in intent.profiles.items():
        if name not in lock.targets:
            raise LockStale(f"the lock has nothing for profile {name}", hint=f"Run `gdsdeploy lock {fleet}`")
        plans[name] = migration(name, profile, lock.targets[name], mode or profile.mode, rdma or profile.rdma)
    if as_json:
        console.json({name: as_dict(plan) for name, plan in plans.items()})
        return
    for name, plan in plans.items():
        console.data(f"{name}: {'reboot' if plan.reboot else 'no reboot' if plan.steps else 'already set'}")
        for step in plan.steps:
            change = " → ".join(part or "nothing" for part in (step.before, step.after))
            console.data(f"  [{step.by}] {step.where}: {change}")
        for obstacle in plan.obstacles:
            console.data(f"  ✗ {obstacle}")
