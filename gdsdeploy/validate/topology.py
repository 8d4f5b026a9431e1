"""Topologies of hosts: asked, read from saved evidence, and held against the golden one of their kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gdsdeploy import atomic, paths
from gdsdeploy.errors import ChecksFailed, ChecksUnknown, FleetInvalid, GdsError
from gdsdeploy.host.facts import HostFacts, Unknown, facts_from
from gdsdeploy.host.facts.topology import Topology
from gdsdeploy.host.topology import golden
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.ssh import hostdata
from gdsdeploy.ssh.ask import TIMEOUT, ask


def ask_facts(
    fleet: Fleet, fleet_file: Path, names: Sequence[str], *, timeout: float = TIMEOUT, progress: Callable[[str], None]
) -> dict[str, HostFacts | GdsError]:
    """The facts of each host, all asked at once, in the order of ``names``; or why a host gave none.

    timeout: seconds for each host.
    """
    facts = partial(hostdata.judged, question="evidence", shape=hostdata.Evidence, judge=facts_from)
    outcomes: dict[str, HostFacts | GdsError] = {}
    for answer, outcome in ask(fleet, fleet_file, names, ["evidence", "--json"], facts, timeout=timeout):
        outcomes[answer.host] = outcome
        lost = isinstance(outcome, GdsError)
        progress(f"  ✗ {answer.host}: {outcome}" if lost else f"  ✓ {answer.host} ({answer.seconds:.1f} s)")
    return {name: outcomes[name] for name in names}


def known(name: str, facts: HostFacts | GdsError) -> Topology:
    """The topology of a host; raises why there is none."""
    if isinstance(facts, GdsError):
        raise facts
    if isinstance(facts.topology, Unknown):
        raise ChecksUnknown(f"{name}: its PCI functions are not known: {facts.topology.reason}")
    return facts.topology


def write_golden(fleet: Fleet, fleet_file: Path, topologies: Mapping[str, Topology]) -> dict[Path, list[str]]:
    """Write the golden file of each profile from its hosts, which have to agree; returns file → hosts.

    Raises FleetInvalid where a profile names no file, ChecksFailed where its hosts differ; nothing is written then.
    """
    made: dict[str, dict[str, Any]] = {}
    hosts: dict[str, list[str]] = {}
    for name, topology in topologies.items():
        profile = fleet.hosts[name].profile
        if fleet.profiles[profile].topology.golden is None:
            raise FleetInvalid(
                f"profiles.{profile} names no file for its golden topology",
                hint=f"Add to the profile: topology: {{golden: {profile}.topology.json}}",
            )
        if profile not in made:
            made[profile] = golden.golden(topology, profile)
        differ = golden.differences(made[profile], topology)
        if differ:
            raise ChecksFailed(
                f"{hosts[profile][0]} and {name} have the profile {profile} and differ: " + "; ".join(differ),
                hint="Name one that is right with --limit; give other machines a profile of their own",
            )
        hosts.setdefault(profile, []).append(name)
    return {_written(fleet_file, str(fleet.profiles[key].topology.golden), made[key]): hosts[key] for key in made}


def _written(fleet_file: Path, name: str, value: Mapping[str, Any]) -> Path:
    file = paths.locate(fleet_file.parent, name)
    try:
        atomic.write(file, golden.to_json(value))
    except OSError as caught:
        raise GdsError(f"{file}: cannot be written: {caught.strerror}") from None
    return file


def compared(fleet: Fleet, name: str, topology: Topology) -> list[str] | None:
    """What of a host differs from its profile's golden topology; None: the profile names none.

    Raises FleetInvalid where the file cannot be used.
    """
    profile = fleet.hosts[name].profile
    wanted = fleet.profiles[profile].topology
    if wanted.golden is None:
        return None
    if isinstance(wanted.document, str):
        raise FleetInvalid(
            f"profiles.{profile}.topology.golden: {wanted.document}",
            hint="Write it from a host that is right: gdsdeploy topology FLEET --limit HOST --golden write",
        )
    return golden.differences(wanted.document, topology)
