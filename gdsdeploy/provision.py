"""Provision: one look at every host, and Ansible for those that lack something; who was refused stays as he was."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from gdsdeploy import converge, folders, hostapp, transport
from gdsdeploy.cufile import hosts
from gdsdeploy.cufile.fit import Host
from gdsdeploy.errors import GdsError
from gdsdeploy.inventory import inventory
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.plan import HostPlan
from gdsdeploy.planning import plan_fleet, sources

#: Seconds that a host may take to show that it has Python and that we may become root.
CONTACT_TIMEOUT = 60
#: Flags of ansible-playbook that change neither what is run nor with which variables; whether a value follows.
HARMLESS = {"--verbose": False, "-f": True, "--forks": True, "-T": True, "--timeout": True}


@dataclass(frozen=True)
class Run:
    """One provisioning run: where it kept things, what happened, and which hosts could not be reached at all."""

    outcome: converge.Outcome
    refused: dict[str, GdsError]
    log: Path
    #: machines that had nothing to change, for which no role was run
    satisfied: tuple[str, ...] = ()

    def failures(self) -> dict[str, GdsError]:
        """Host → why it failed, refusals included."""
        failed = {name: result.failure for name, result in self.outcome.hosts.items() if result.failure}
        return {**self.refused, **failed}


def provision(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    *,
    names: Sequence[str],
    extra: Sequence[str],
    playbook: str = "provision",
    force_roles: bool = False,
    progress: Callable[[str], None],
) -> Run:
    """Run ``playbook`` on the machines ``names`` (hosts and builders) of the fleet.

    Machines that do not answer, or on which Python or root cannot be had, are left out and reported;
    the others go on.  ``extra`` holds ansible-playbook's own flags.  Machines that the look at them proves to be
    as the lock wants them are left alone, and without any other Ansible is not started; unless ``force_roles`` is
    set, or ``extra`` asks Ansible for something else than to converge.
    """
    fleet_dir = fleet_path.resolve().parent
    satisfied: tuple[str, ...] = ()
    if playbook != "provision" or force_roles or not only_converges(extra):
        refused = first_contact(fleet, fleet_dir, names)
        wanted = hosts.fitted(fleet, [name for name in names if name not in refused])
        fits = hosts.ask(fleet, lock, fleet_path, wanted) if playbook == "provision" else {}
        refused |= {name: found for name, found in fits.items() if isinstance(found, GdsError)}
        known: Mapping[str, Host] = {name: found for name, found in fits.items() if isinstance(found, Host)}
    else:
        planned = plan_fleet(fleet, lock, fleet_path, names)
        plans, known = planned.hosts, planned.known
        refused = {name: found for name, found in plans.items() if isinstance(found, GdsError)}
        satisfied = tuple(name for name, found in plans.items() if isinstance(found, HostPlan) and found.satisfied)
        for name in satisfied:
            progress(f"  {name}: nothing to change")
    for name, error in refused.items():
        progress(f"  {name}: refused: {error.message.splitlines()[0]}")
    reachable = [name for name in names if name not in refused and name not in satisfied]
    work = folders.state() / "runs"
    log = work / f"{playbook}-{time.strftime('%Y%m%dT%H%M%S')}.log"
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not reachable:
        return Run(converge.Outcome(status=0), refused, log, satisfied)
    rendered = inventory(fleet, lock, sources(fleet, lock, fleet_dir, known))
    # One of its own for each run: another run, of another fleet, may be under way.
    path = log.with_suffix(f".{os.getpid()}.yml")
    path.write_text(yaml.safe_dump(rendered, sort_keys=True, allow_unicode=True))
    control = work / "cm"
    control.mkdir(mode=0o700, exist_ok=True)
    command = converge.argv(playbook, path, limit=reachable, extra=extra)
    try:
        outcome = converge.play(command, converge.environment(control_dir=control), log=log, progress=progress)
    finally:
        path.replace(work / "inventory.yml")
    return Run(outcome, refused, log, satisfied)


def only_converges(extra: Sequence[str]) -> bool:
    """Whether flags for ansible-playbook leave it at what a plan judges: the whole playbook, carried out as it is.

    Words that are not in HARMLESS are taken to mean something else, so that a plan never stands in for it.
    """
    expected = iter(extra)
    for word in expected:
        name, has_value, _ = word.partition("=")
        if re.fullmatch(r"-v+", word) or re.fullmatch(r"-[fT]\d+", word):
            continue
        if name not in HARMLESS:
            return False
        if not has_value and HARMLESS[name]:
            next(expected, None)
    return True


def first_contact(fleet: Fleet, fleet_dir: Path, names: Sequence[str]) -> dict[str, GdsError]:
    """Ask every machine for one small answer; return those that cannot be worked with, and why."""
    endpoints = transport.endpoints(fleet, fleet_dir, names)
    answers = transport.fan_out(endpoints, hostapp.build(), ["hello"], timeout=CONTACT_TIMEOUT)
    return {answer.host: answer.error for answer in answers if answer.error is not None}


def summary(run: Run) -> str:
    """One JSON object about the run, for machines."""
    hosts = {
        name: {"changed": result.changed, "error": result.failure.message if result.failure else None}
        for name, result in run.outcome.hosts.items()
    }
    hosts |= {name: {"changed": [], "error": error.message} for name, error in run.refused.items()}
    hosts |= {name: {"changed": [], "error": None} for name in run.satisfied}
    log = str(run.log) if run.log.exists() else None
    found = {"hosts": dict(sorted(hosts.items())), "satisfied": sorted(run.satisfied), "log": log}
    return json.dumps(found, indent=2)
