"""Topologies of hosts: asked for, and compared with the golden one of their profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gdsdeploy import paths
from gdsdeploy.converge.expectation import golden_document
from gdsdeploy.errors import ChecksFailed, ChecksUnknown, FleetInvalid, GdsError
from gdsdeploy.host.facts import HostFacts, Unknown, facts_from
from gdsdeploy.host.facts.pci import Topology
from gdsdeploy.host.topology import golden
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.ask import ask
from gdsdeploy.ssh.endpoint import TIMEOUT
from gdsdeploy.validate.output import write


def ask_facts(
    fleet: Fleet,
    fleet_file: Path,
    names: Sequence[str],
    *,
    timeout: float = TIMEOUT,
    progress: Callable[[str], None],
    sources: bool = False,
) -> dict[str, HostFacts | GdsError]:
    """The facts of each host, in the order of ``names``, or why it gave none.

    timeout: seconds for each host.  sources: whether the evidence also has the package repositories of the host.
    """
    argv = ["evidence", "--json", *(["--sources"] if sources else [])]
    facts = partial(reply_schema.judge_reply, question="evidence", shape=reply_schema.Evidence, judge=facts_from)
    outcomes: dict[str, HostFacts | GdsError] = {}
    for answer, outcome in ask(fleet, fleet_file, names, argv, facts, timeout=timeout):
        outcomes[answer.host] = outcome
        failed = isinstance(outcome, GdsError)
        progress(f"  ✗ {answer.host}: {outcome}" if failed else f"  ✓ {answer.host} ({answer.seconds:.1f} s)")
    return {name: outcomes[name] for name in names}


def require_topology(name: str, facts: HostFacts | GdsError) -> Topology:
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
    documents: dict[str, dict[str, Any]] = {}
    hosts: dict[str, list[str]] = {}
    for name, topology in topologies.items():
        profile = fleet.hosts[name].profile
        if fleet.profiles[profile].topology.golden is None:
            hint = f"Add to the profile: topology: {{golden: {profile}.topology.json}}"
            raise FleetInvalid(f"profiles.{profile} names no file for its golden topology", hint=hint)
        if profile not in documents:
            documents[profile] = golden.golden(topology, profile)
        differ = golden.differences(documents[profile], topology)
        if differ:
            words = f"{hosts[profile][0]} and {name} have the profile {profile} and differ: " + "; ".join(differ)
            raise ChecksFailed(words, hint="Name a correct one with --limit; give other machines another profile")
        hosts.setdefault(profile, []).append(name)
    files: dict[Path, list[str]] = {}
    for profile, document in documents.items():
        file = paths.locate(fleet_file.parent, str(fleet.profiles[profile].topology.golden))
        write(file, golden.to_json(document))
        files[file] = hosts[profile]
    return files


def golden_differences(fleet: Fleet, name: str, topology: Topology) -> list[str] | None:
    """What of a host differs from its profile's golden topology; None: the profile names none.  Raises FleetInvalid."""
    profile = fleet.hosts[name].profile
    document = golden_document(profile, fleet.profiles[profile].topology)
    return None if document is None else golden.differences(document, topology)
