"""What one machine lacks towards a lock, and the roles that bring it there; one start of Ansible for a step at most."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gdsdeploy import paths
from gdsdeploy.builds.assign import Supply
from gdsdeploy.builds.run_archives import Shelf
from gdsdeploy.converge import ansible
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.inventory import dump, inventory
from gdsdeploy.converge.plan_fleet import plan_fleet, sources, variables
from gdsdeploy.cufile.fit import Host
from gdsdeploy.errors import Busy, ConvergeFailed, GdsError, HostUnfit, RolloutRefused
from gdsdeploy.host.apply.model import Change
from gdsdeploy.rollout.steps import lease
from gdsdeploy.rollout.steps.work import Work
from gdsdeploy.zipapp import hostapp

PLAYBOOK = "rollout_host"
#: Resources of each step, as the playbook has them.  The boot default, the modules that are loaded and the reboot are
#: steps of their own.
STEPS: Mapping[str, frozenset[str]] = {
    "apply": frozenset(
        {
            *("repositories", "pins", "program", "expectation", "driver_options", "guard", "cufile"),
            *("packages.driver", "packages.kernel", "packages.cufile"),
        }
    ),
    "modules": frozenset({"signing", "recipes", "packages.modules", "modules", "peermem", "gate"}),
}
#: How often a step is played again after another run kept the host.
_TRIES = 3


@dataclass(frozen=True)
class Look:
    """One look at a machine: what it lacks, and what is needed to play roles on it."""

    plan: HostPlan
    supply: Supply
    #: what it is to which its cufile.json is fitted
    fit: Mapping[str, Host]

    def lacks(self, step: str) -> list[Change]:
        """What the roles of ``step`` would change."""
        return [change for change in self.plan.changes if change.resource in STEPS[step]]

    @property
    def sure(self) -> bool:
        """Whether it was told of everything what it is."""
        return not self.plan.unknown


def look(work: Work, shelf: Shelf) -> Look:
    """Ask the machine what it lacks towards the lock.  Raises the error that it ends in, where it cannot be asked."""
    planned = plan_fleet(work.fleet, work.lock, work.fleet_path, [work.name], shelf=shelf)
    found = planned.hosts[work.name]
    if isinstance(found, GdsError):
        raise found
    return Look(found, planned.supplies[work.name], planned.known)


def refuse(work: Work, seen: Look) -> None:
    """Raise what speaks against the machine: another system, facts that could not be read, nobody who builds for it."""
    if seen.plan.refusal:
        raise HostUnfit(
            f"{work.name}: {seen.plan.refusal}",
            hint="Give it another profile in the fleet file, or lock for what it is",
        )
    if not seen.sure:
        lines = "\n".join(f"  - {text}" for text in seen.plan.unknown)
        raise RolloutRefused(
            f"{work.name}: not everything about it could be read:\n{lines}",
            hint=f"gdsdeploy plan {work.fleet_path} --limit {work.name} shows the same; repair what it names",
        )
    if seen.supply.lack:
        raise RolloutRefused(
            f"{work.name}: nobody builds its modules: {seen.supply.lack}",
            hint="Let its builder take part, or say modules: build for it in the fleet file",
        )


def rendered(work: Work, shelf: Shelf, supply: Supply, fit: Mapping[str, Host]) -> dict[str, Any]:
    """The inventory of the one machine, towards the lock."""
    given = sources(work.fleet, work.lock, work.fleet_path.resolve().parent, fit, shelf)
    who = lease.identity(work)
    return inventory(work.fleet, work.lock, replace(given, supplies={work.name: supply}, run=who.run, who=who.who))


def values(work: Work, shelf: Shelf, supply: Supply, fit: Mapping[str, Host]) -> dict[str, Any]:
    """The roles' variables for the machine."""
    return variables(rendered(work, shelf, supply, fit))[work.name][1]


def play(
    work: Work,
    step: str,
    shelf: Shelf,
    supply: Supply,
    fit: Mapping[str, Host],
    given: Mapping[str, Any] | None = None,
) -> list[str]:
    """Play the roles of ``step``; returns what was changed, as ``role: task``.

    given: variables of roles that only a rollout knows.  Waits where another run keeps the host.  Raises the error of
    the task that failed.
    """
    found = rendered(work, shelf, supply, fit)
    # Beside its other variables, which would win against those of a group.
    variables(found)[work.name][1].update({"gds_rollout_step": step, **(given or {})})
    for left in range(_TRIES, -1, -1):
        result = _played(work, found)
        if not isinstance(result.failure, Busy) or not left:
            break
        lease.at_rest(work)
    if result.failure is not None:
        raise result.failure
    return result.changed


def _played(work: Work, found: Mapping[str, Any]) -> ansible.HostResult:
    """What one start of Ansible did with the inventory ``found``."""
    work.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    stem = f"{work.name}-{work.task.step.value}"
    path, log = work.logs / f"{stem}.yml", work.logs / f"{stem}.log"
    path.write_text(dump(found), encoding="utf-8")
    # Of its own: a connection that is kept open does not outlive the host's reboot unnoticed.
    with tempfile.TemporaryDirectory(prefix="gds-") as control:
        command = ansible.argv(PLAYBOOK, path, limit=[work.name], extra=[])
        program = hostapp.keep(paths.cache() / "program")
        environment = ansible.environment(control_dir=Path(control), program=program)
        outcome = ansible.play(command, environment, log=log, progress=work.progress)
    result = outcome.hosts.get(work.name)
    if result is None:
        raise ConvergeFailed(f"{work.name}: Ansible did nothing on it", hint=f"Whole output: {log}")
    return result
