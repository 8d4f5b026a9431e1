"""Explain: the evidence of one host, of this machine or of a file, and why its mounts take the paths that they take."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from gdsdeploy.errors import FleetInvalid, GdsError
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.fleetfile.selection import require_host
from gdsdeploy.host import evidence
from gdsdeploy.host.explain import Explanation, NoSuchMountError, explain
from gdsdeploy.host.facts import HostFacts, facts_from
from gdsdeploy.host.facts.stack import stack
from gdsdeploy.ssh import evidence_file, reply_schema
from gdsdeploy.ssh.ask import TIMEOUT, ask

#: Where a fleet is looked for when a host is named without one.
DEFAULT_FLEET = Path("fleet.yml")


def facts_of_this_machine(mount: str = "") -> HostFacts:
    """Collect the evidence here; what only root may read is said to be unseen."""
    request = replace(evidence.NOTHING, mounts=(mount,) if mount else ())
    return facts_from(evidence.collect(request))


def of_this_machine(mount: str) -> Explanation:
    """Explain this machine."""
    return explain_facts(facts_of_this_machine(mount), mount)


def facts_of_host(fleet_file: Path, name: str, mount: str = "", timeout: float = TIMEOUT) -> HostFacts:
    """Ask one host of the fleet.  timeout: seconds.  Raises FleetInvalid, and what the host's answer is."""
    if not fleet_file.exists() and fleet_file == DEFAULT_FLEET:
        words = f"{name} is a host of a fleet, and there is no {DEFAULT_FLEET} in this folder"
        raise FleetInvalid(words, hint="Name the fleet file: --fleet FILE. Without a host, this machine is explained")
    fleet = load_fleet(fleet_file)
    require_host(name, fleet.hosts, fleet_file)
    argv = ["evidence", "--json", *(["--mount", mount] if mount else [])]
    judge = partial(reply_schema.judge_reply, question="evidence", shape=reply_schema.Evidence, judge=facts_from)
    ((_, facts),) = ask(fleet, fleet_file, [name], argv, judge, timeout=timeout)
    if isinstance(facts, GdsError):
        raise facts
    return facts


def of_host(fleet_file: Path, name: str, mount: str, timeout: float = TIMEOUT) -> Explanation:
    """Ask one host of the fleet and explain it; raises as :func:`facts_of_host`."""
    facts = facts_of_host(fleet_file, name, mount, timeout)
    with reply_schema.unexpected_errors(name):
        return replace(explain_facts(facts, mount), host=name)


def of_file(file: Path, host: str, mount: str) -> Explanation:
    """Explain saved evidence.  host: which one of a support bundle; may be empty.  Raises GdsError."""
    explanation = explain_facts(evidence_file.of_host(file, host), mount)
    return replace(explanation, host=host) if host else explanation


def explain_facts(facts: HostFacts, mount: str) -> Explanation:
    """Explain ``mount``, else every mount, from ``facts``; raises GdsError where nothing is mounted."""
    try:
        return explain(facts, stack(facts), mount)
    except NoSuchMountError as reason:
        raise GdsError(str(reason), hint="Without MOUNT, every mount that may hold data is explained") from None
