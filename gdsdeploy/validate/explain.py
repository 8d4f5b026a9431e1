"""Explain: the evidence of one host, of this machine or of a file, and why its mounts take the paths that they take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gdsdeploy.errors import FleetInvalid, GdsError, HostUnreachable
from gdsdeploy.fleetfile import selection
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host import evidence
from gdsdeploy.host.checks import report
from gdsdeploy.host.explain import Explanation, NoSuchMountError, explain
from gdsdeploy.host.facts import HostFacts, facts_from
from gdsdeploy.ssh import evidence_file, hostdata, transport
from gdsdeploy.zipapp import hostapp

#: Where a fleet is looked for when a host is named without one.
DEFAULT_FLEET = Path("fleet.yml")
#: Seconds for one host: its evidence is bounded by itself, and a slow virtual machine needs most of it.
TIMEOUT = 300.0


def of_this_machine(mount: str) -> Explanation:
    """Collect the evidence here; what only root may read is said to be unseen."""
    wanted = replace(evidence.NOTHING, mounts=(mount,) if mount else ())
    return explained(facts_from(evidence.collect(wanted)), mount)


def of_host(fleet_file: Path, name: str, mount: str, timeout: float = TIMEOUT) -> Explanation:
    """Ask one host of the fleet.  timeout: seconds.  Raises FleetInvalid, and what the host's answer is."""
    if not fleet_file.exists() and fleet_file == DEFAULT_FLEET:
        raise FleetInvalid(
            f"{name} is a host of a fleet, and there is no {DEFAULT_FLEET} in this folder",
            hint="Name the fleet file: --fleet FILE. Without a host, this machine is explained",
        )
    fleet = load_fleet(fleet_file)
    if name not in fleet.hosts:
        raise selection.no_host(str(fleet_file), name, fleet.hosts)
    argv = ["evidence", "--json", *(["--mount", mount] if mount else [])]
    endpoints = transport.endpoints(fleet, fleet_file.resolve().parent, [name])
    for answer in transport.fan_out(endpoints, hostapp.build(), argv, timeout=timeout):
        return hostdata.judged(
            answer, "evidence", hostdata.Evidence, lambda told: replace(explained(facts_from(told), mount), host=name)
        )
    raise HostUnreachable(f"{name}: no answer")


def of_file(file: Path, host: str, mount: str) -> Explanation:
    """Explain saved evidence.  host: which one of a support bundle; may be empty.  Raises GdsError."""
    found = explained(evidence_file.of_host(file, host), mount)
    return replace(found, host=host) if host else found


def explained(facts: HostFacts, mount: str) -> Explanation:
    """What ``facts`` say of ``mount``, else of every mount; raises GdsError where nothing is mounted."""
    try:
        return explain(facts, report.stack(facts), mount)
    except NoSuchMountError as reason:
        raise GdsError(str(reason), hint="Without MOUNT, every mount that may hold data is explained") from None
