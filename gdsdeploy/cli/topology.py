"""``gdsdeploy topology``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import ChecksFailed, GdsError
from gdsdeploy.fleetfile import selection
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.facts.evidence_file import UNNAMED
from gdsdeploy.host.facts.pci import Topology
from gdsdeploy.host.topology import text as view
from gdsdeploy.model import hostnames
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.report import model
from gdsdeploy.ssh import evidence_file, reply_schema
from gdsdeploy.ssh.endpoint import TIMEOUT
from gdsdeploy.validate.facts import ask_facts, golden_differences, require_topology, write_golden


@click.command()
@options.fleet_argument(alone="file")
@options.limit
@options.saved_evidence
@click.option(
    "--golden",
    type=click.Choice(["write", "check"]),
    help="Write each profile's golden topology from its hosts, or compare the hosts with it.",
)
@options.timeout(TIMEOUT)
@options.at_once
@options.as_json("Print one JSON object, by host.")
def command(
    fleet: Path | None, limit: str | None, file: Path | None, golden: str | None, timeout: float, as_json: bool
) -> None:
    """Show the distances between GPUs, NVMe disks and network adapters on the hosts of FLEET.

    It reads only sysfs, so it also works before a driver is installed. The distances are those of `nvidia-smi topo
    -m`: PIX, PXB, PHB, NODE, SYS. It also shows links that are slower or narrower than both ends allow, access control
    (ACS) that sends peers' traffic out of a switch, the IOMMU's mode, and BAR1.

    A profile may name a file with the golden topology of its machines (`topology: {golden: FILE}`). --golden write
    makes it from a correct host. --golden check and `gdsdeploy validate` show what has moved since: slot, part, link,
    distance.

    \b
    Exit code, the first of these that applies:
      20, 21, 22    a host did not answer
      30            --golden check: a host differs
      0             otherwise

    \b
    Examples:
      gdsdeploy topology fleet.yml --limit gpu1
      gdsdeploy topology fleet.yml --json | jq '.gpu1.pairs[] | select(.distance == "PIX")'
      gdsdeploy topology --evidence gpu1.json
      gdsdeploy topology fleet.yml --limit gpu1 --golden write
      gdsdeploy topology fleet.yml --golden check
    """
    if file is not None:
        options.require(not any((fleet, limit, golden)), options.EVIDENCE_ALONE)
        saved = evidence_file.of_hosts(file)
        shapes = {
            name: require_topology(f"{file}: {name}" if name else str(file), facts) for name, facts in saved.items()
        }
        for error in _show(shapes, as_json, alone=UNNAMED in shapes).values():
            raise error
        return
    assert fleet is not None, "without saved evidence, it has a default"
    intent = load_fleet(fleet)
    names = selection.select(limit, list(intent.hosts), fleet)
    with console.step(f"Asking {hostnames.words(names)}"):
        facts = ask_facts(intent, fleet, names, timeout=timeout, progress=console.say_each(len(names)))
    shapes, errors = reply_schema.judge_each(facts, require_topology)
    if golden == "write":
        options.raise_last(errors, fleet)
        for path, hosts in write_golden(intent, fleet, shapes).items():
            console.say(f"{path}: the topology of {hostnames.words(hosts)}")
    elif golden == "check":
        _check(intent, shapes, as_json, errors)
    else:
        errors |= _show(shapes, as_json)
    options.raise_last(errors, fleet)


def _show(shapes: dict[str, Topology], as_json: bool, *, alone: bool = False) -> dict[str, GdsError]:
    """Print the topologies; returns the errors of hosts whose topology cannot be shown."""
    views, errors = reply_schema.judge_each(
        shapes, lambda _, shape: view.document(shape) if as_json else view.text(shape)
    )
    if as_json:
        console.json(next(iter(views.values()), None) if alone else views)
        return errors
    for text, names in hostnames.grouped((name, str(text)) for name, text in views.items()).items():
        console.data((f"{model.on(names)}:\n" if not alone else "") + text)
    return errors


def _check(fleet: Fleet, shapes: dict[str, Topology], as_json: bool, errors: Mapping[str, GdsError]) -> None:
    differences = {name: golden_differences(fleet, name, shape) for name, shape in shapes.items()}
    if as_json:
        console.json(differences)
    else:
        words: dict[tuple[str, ...] | None, tuple[str, ...]] = {
            None: ("its profile names no golden topology",),
            (): ("matches",),
        }
        each = ((name, None if lines is None else tuple(lines)) for name, lines in differences.items())
        for key, hosts in hostnames.grouped(each).items():
            console.data("\n".join(f"{hostnames.words(hosts)}: {line}" for line in words.get(key) or key or ()))
    moved = [name for name, lines in differences.items() if lines]
    if moved and not errors:
        raise ChecksFailed(
            f"the topology has moved on {hostnames.words(moved)}",
            hint="Restore the old topology, or write the golden topology again: --golden write",
        )
