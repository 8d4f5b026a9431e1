"""The facts of hosts and of this machine, for explain and topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gdsdeploy import paths
from gdsdeploy.converge.expectation import golden_document
from gdsdeploy.errors import ChecksFailed, ChecksUnknown, FleetInvalid, GdsError, NameUnknown, translated
from gdsdeploy.files.output import write_each
from gdsdeploy.fleetfile.load import CONFINED, Reading, load_fleet
from gdsdeploy.fleetfile.selection import require_host
from gdsdeploy.host import evidence
from gdsdeploy.host.explain import Explanation, NoSuchMountError, explain
from gdsdeploy.host.facts import HostFacts, UndecidedError, facts_from
from gdsdeploy.host.subjects.stack import stack
from gdsdeploy.host.subjects.topology import Topology
from gdsdeploy.host.subjects.trees import differences, golden, to_json
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.paths import DEFAULT_FLEET
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.endpoint import TIMEOUT
from gdsdeploy.ssh.transport import ask, ask_all


def facts_of_this_machine(mount: str) -> HostFacts:
    """Collect the evidence here, also about ``mount`` unless it's empty."""
    return facts_from(evidence.collect(evidence.NOTHING._replace(mounts=(mount,) if mount else (), fresh=True)))


def facts_of_host(
    fleet_file: Path, name: str, mount: str, timeout: float = TIMEOUT, *, mode: Reading = CONFINED
) -> HostFacts:
    """Ask one host of the fleet.  timeout: seconds.  mode: what the fleet file may do on this machine.

    Raises FleetInvalid and what its answer is.
    """
    if not fleet_file.exists() and fleet_file == DEFAULT_FLEET:
        words = f"the host {name} needs a fleet file, and this folder has no {DEFAULT_FLEET}"
        hint = "Name the fleet file: --fleet FILE. For this machine, leave HOST out; a MOUNT begins with /"
        raise FleetInvalid(words, hint=hint)
    fleet = load_fleet(fleet_file, mode)
    require_host(name, fleet.hosts, fleet_file)
    argv = ["evidence", "--json", *(["--mount", mount] if mount else ["--fresh"])]
    ((_, facts),) = ask(fleet, fleet_file, [name], argv, reply_schema.facts_of_reply, timeout=timeout, read_only=True)
    if isinstance(facts, GdsError):
        raise facts
    return facts.but(rules=fleet._own_rules)


def explain_facts(facts: HostFacts, mount: str) -> Explanation:
    """Explain ``mount``, else every mount, from ``facts``; raises GdsError where nothing is mounted."""
    try:
        return explain(facts, stack(facts), mount)
    except NoSuchMountError as reason:
        raise NameUnknown(str(reason), hint="Leave MOUNT out to explain every mount that may hold data") from None


def ask_facts(
    fleet: Fleet,
    fleet_file: Path,
    names: Sequence[str],
    *,
    timeout: float = TIMEOUT,
    more: Sequence[str] = (),
) -> dict[str, HostFacts | GdsError]:
    """The facts of each host, in the order of ``names``, or why it gave none.

    timeout: seconds for each host.  more: options for what the evidence also has.
    """
    argv, judge = ("evidence", "--json", *more), reply_schema.facts_of_reply
    read_only = "--sources" not in more
    return ask_all(fleet, fleet_file, names, argv, judge, timeout=timeout, read_only=read_only)


def require_topology(name: str, facts: HostFacts | GdsError) -> Topology:
    """The topology of a host; raises why there is none."""
    if isinstance(facts, GdsError):
        raise facts
    with translated(UndecidedError, lambda error: ChecksUnknown(f"{name}: its PCI functions are not known: {error}")):
        return facts.topology


def write_golden(
    fleet: Fleet, fleet_file: Path, topologies: Mapping[str, Topology]
) -> tuple[dict[Path, list[str]], dict[Path, GdsError]]:
    """Write the golden file of each profile from its hosts, which have to agree.

    Returns file → hosts, and the errors of the files that can't be written.  Raises FleetInvalid where a profile names
    no file, ChecksFailed where its hosts differ; nothing is written then.
    """
    documents: dict[str, dict[str, Any]] = {}
    hosts: dict[str, list[str]] = {}
    for name, topology in topologies.items():
        profile = fleet.hosts[name].profile
        if fleet.profiles[profile].topology.golden is None:
            hint = f"Add to the profile: topology: {{golden: {profile}.topology.json}}"
            raise FleetInvalid(f"profiles.{profile} names no file for its golden topology", hint=hint)
        if profile not in documents:
            documents[profile] = golden(topology, profile)
        if differ := differences(documents[profile], topology):
            words = f"{hosts[profile][0]} and {name} have the profile {profile} and differ: " + "; ".join(differ)
            raise ChecksFailed(words, hint="Name a correct one with --limit; give other machines another profile")
        hosts.setdefault(profile, []).append(name)
    folder = paths.folder_of(fleet_file)
    files = {paths.locate(folder, str(fleet.profiles[profile].topology.golden)): profile for profile in documents}
    errors = write_each((file, partial(to_json, documents[profile])) for file, profile in files.items())
    return {file: hosts[profile] for file, profile in files.items() if file not in errors}, errors


def golden_differences(fleet: Fleet, name: str, topology: Topology) -> list[str] | None:
    """What of a host differs from its profile's golden topology; None: the profile names none.  Raises FleetInvalid."""
    profile = fleet.hosts[name].profile
    document = golden_document(profile, fleet.profiles[profile].topology)
    return None if document is None else differences(document, topology)
