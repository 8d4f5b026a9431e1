"""Explain: the evidence of one host or of this machine, and why its mounts take the paths that they take."""

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
from gdsdeploy.paths import DEFAULT_FLEET
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.ask import ask
from gdsdeploy.ssh.endpoint import TIMEOUT


def facts_of_this_machine(mount: str) -> HostFacts:
    """Collect the evidence here, also about ``mount`` unless it's empty."""
    return facts_from(evidence.collect(replace(evidence.NOTHING, mounts=(mount,) if mount else ())))


def facts_of_host(fleet_file: Path, name: str, mount: str, timeout: float = TIMEOUT) -> HostFacts:
    """Ask one host of the fleet.  timeout: seconds.  Raises FleetInvalid and what its answer is."""
    if not fleet_file.exists() and fleet_file == DEFAULT_FLEET:
        words = f"the host {name} needs a fleet file, and this folder has no {DEFAULT_FLEET}"
        hint = "Name the fleet file: --fleet FILE. For this machine, leave HOST out; a MOUNT begins with /"
        raise FleetInvalid(words, hint=hint)
    fleet = load_fleet(fleet_file)
    require_host(name, fleet.hosts, fleet_file)
    argv = ["evidence", "--json", *(["--mount", mount] if mount else [])]
    judge = partial(reply_schema.judge_reply, question="evidence", shape=reply_schema.Evidence, judge=facts_from)
    ((_, facts),) = ask(fleet, fleet_file, [name], argv, judge, timeout=timeout)
    if isinstance(facts, GdsError):
        raise facts
    return facts


def explain_facts(facts: HostFacts, mount: str) -> Explanation:
    """Explain ``mount``, else every mount, from ``facts``; raises GdsError where nothing is mounted."""
    try:
        return explain(facts, stack(facts), mount)
    except NoSuchMountError as reason:
        raise GdsError(str(reason), hint="Leave MOUNT out to explain every mount that may hold data") from None
