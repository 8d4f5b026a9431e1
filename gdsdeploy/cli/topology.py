"""``gdsdeploy topology``."""

from __future__ import annotations

from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import ChecksFailed, GdsError
from gdsdeploy.fleetfile import selection
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.facts.topology import Topology
from gdsdeploy.host.topology import text as shown
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.ssh import evidence_file, hostdata
from gdsdeploy.validate import topology as topologies


@click.command()
@options.optional_fleet
@options.limit
@options.saved_evidence
@click.option(
    "--golden",
    type=click.Choice(["write", "check"]),
    help="Write the golden topology of each profile from its hosts, or hold the hosts against it.",
)
@options.timeout(topologies.TIMEOUT)
@options.as_json("Print one JSON object, by host.")
def command(
    fleet: Path | None, limit: str | None, file: Path | None, golden: str | None, timeout: float, as_json: bool
) -> None:
    """Show how far GPUs, NVMe disks and network adapters are from each other on the hosts of FLEET.

    From sysfs alone, so also before a driver is installed. Distances are those of `nvidia-smi topo -m`: PIX, PXB, PHB,
    NODE, SYS. Beside the matrix: links that are slower or narrower than both ends could be, access control (ACS) that
    sends peers' traffic out of a switch, what the IOMMU does, and BAR1.

    A profile may name a file with the golden topology of its machines (`topology: {golden: FILE}`). --golden write
    makes it from a host that is right; --golden check, and `gdsdeploy validate`, say what has moved since: slot, part,
    link, distance.

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
        _require(fleet is None and limit is None and golden is None, "--evidence FILE stands alone, but for --json")
        saved = evidence_file.of_hosts(file)
        shapes = {
            name: topologies.known(f"{file}: {name}" if name else str(file), facts) for name, facts in saved.items()
        }
        _raise_first(_show(shapes, as_json, alone=evidence_file.UNNAMED in shapes))
        return
    if fleet is None:
        raise click.UsageError("name the fleet file, or saved evidence with --evidence FILE")
    intent = load_fleet(fleet)
    names = selection.select(limit, list(intent.hosts), fleet)
    with console.step(f"Asking {', '.join(names)}"):
        facts = topologies.ask(intent, fleet, names, timeout=timeout, progress=console.say)
    found, lost = hostdata.each(facts, topologies.known)
    if golden == "write":
        _raise_first(lost)
        for path, hosts in topologies.write_golden(intent, fleet, found).items():
            console.say(f"{path}: the topology of {', '.join(hosts)}")
    elif golden == "check":
        _check(intent, found, as_json, lost)
    else:
        lost += _show(found, as_json)
    _raise_first(lost)


def _raise_first(lost: list[GdsError]) -> None:
    if lost:
        raise lost[0]


def _show(found: dict[str, Topology], as_json: bool, *, alone: bool = False) -> list[GdsError]:
    """Print them; the errors of those that cannot be shown."""
    whole, lost = hostdata.each(found, lambda _, item: shown.document(item) if as_json else shown.text(item))
    if as_json:
        shapes = next(iter(whole.values()), None) if alone else whole
        console.json(shapes)
        return lost
    for name, item in whole.items():
        console.data((f"{name}:\n" if not alone else "") + str(item))
    return lost


def _check(fleet: Fleet, found: dict[str, Topology], as_json: bool, lost: list[GdsError]) -> None:
    differ = {name: topologies.compared(fleet, name, item) for name, item in found.items()}
    if as_json:
        console.json(differ)
    else:
        for name, lines in differ.items():
            words = ["its profile names no golden topology"] if lines is None else lines or ["as it should be"]
            console.data("\n".join(f"{name}: {line}" for line in words))
    moved = [name for name, lines in differ.items() if lines]
    if moved and not lost:
        raise ChecksFailed(
            f"the topology has moved on {', '.join(moved)}",
            hint="Put back what moved, or write the golden topology again: --golden write",
        )


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise click.UsageError(words)
