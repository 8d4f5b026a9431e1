"""Provision: first contact, inventory, Ansible; the hosts that were refused stay as they were."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from gdsdeploy import converge, folders, hostapp, transport
from gdsdeploy.cufile.render import render as render_cufile
from gdsdeploy.errors import GdsError
from gdsdeploy.expect import expectation
from gdsdeploy.inventory import Sources, inventory
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock

#: Seconds that a host may take to show that it has Python and that we may become root.
CONTACT_TIMEOUT = 60


@dataclass(frozen=True)
class Run:
    """One provisioning run: where it kept things, what happened, and which hosts could not be reached at all."""

    outcome: converge.Outcome
    refused: dict[str, GdsError]
    log: Path

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
    progress: Callable[[str], None],
) -> Run:
    """Run ``playbook`` on the machines ``names`` (hosts and builders) of the fleet.

    Machines that do not answer, or on which Python or root cannot be had, are left out and reported;
    the others go on.  ``extra`` holds ansible-playbook's own flags.
    """
    fleet_dir = fleet_path.resolve().parent
    refused = first_contact(fleet, fleet_dir, names)
    for name, error in refused.items():
        progress(f"  {name}: refused: {error.message.splitlines()[0]}")
    reachable = [name for name in names if name not in refused]
    work = folders.state() / "runs"
    log = work / f"{playbook}-{time.strftime('%Y%m%dT%H%M%S')}.log"
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not reachable:
        return Run(converge.Outcome(status=0), refused, log)
    rendered = inventory(fleet, lock, _sources(fleet, lock, fleet_dir))
    path = work / "inventory.yml"
    path.write_text(yaml.safe_dump(rendered, sort_keys=True, allow_unicode=True))
    control = work / "cm"
    control.mkdir(mode=0o700, exist_ok=True)
    command = converge.argv(playbook, path, limit=reachable, extra=extra)
    outcome = converge.play(command, converge.environment(control_dir=control), log=log, progress=progress)
    return Run(outcome, refused, log)


def first_contact(fleet: Fleet, fleet_dir: Path, names: Sequence[str]) -> dict[str, GdsError]:
    """Ask every machine for one small answer; return those that cannot be worked with, and why."""
    endpoints = transport.endpoints(fleet, fleet_dir, names)
    answers = transport.fan_out(endpoints, hostapp.build(), ["hello"], timeout=CONTACT_TIMEOUT)
    return {answer.host: answer.error for answer in answers if answer.error is not None}


def _sources(fleet: Fleet, lock: Lock, fleet_dir: Path) -> Sources:
    """Write what the run hands over to the controller's cache and render what it says."""
    cache = folders.cache()
    modules = cache / "modules"
    modules.mkdir(parents=True, exist_ok=True)
    program = cache / "gdsdeploy-host.pyz"
    hostapp.build(program)
    return Sources(
        fleet_dir=fleet_dir,
        program=program,
        modules=modules,
        expectations={name: expectation(fleet, lock, name).to_json() for name in fleet.hosts},
        cufile={
            name: render_cufile(name, profile, lock.targets[name].libcufile.version)
            for name, profile in fleet.profiles.items()
            if name in lock.targets
        },
    )


def summary(run: Run) -> str:
    """One JSON object about the run, for machines."""
    hosts = {
        name: {"changed": result.changed, "error": result.failure.message if result.failure else None}
        for name, result in run.outcome.hosts.items()
    }
    hosts |= {name: {"changed": [], "error": error.message} for name, error in run.refused.items()}
    return json.dumps({"hosts": dict(sorted(hosts.items())), "log": str(run.log)}, indent=2)
