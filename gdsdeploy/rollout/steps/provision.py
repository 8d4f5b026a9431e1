"""What one machine lacks towards a lock, and the roles that bring it there; a step starts Ansible once at most."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gdsdeploy import paths
from gdsdeploy.builds.assign import Supply
from gdsdeploy.builds.run_archives import RunArchives
from gdsdeploy.converge import ansible
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.inventory import dump, inventory
from gdsdeploy.converge.plan_fleet import plan_fleet, variables, write_run_files
from gdsdeploy.cufile.render import FitTarget
from gdsdeploy.errors import Busy, ConvergeFailed, GdsError, HostUnfit, RolloutRefused
from gdsdeploy.host.apply.model import Change
from gdsdeploy.rollout.steps import lease
from gdsdeploy.rollout.steps.work import Work
from gdsdeploy.zipapp import hostapp

#: The playbook of a step.  Each has the roles of one step only, because Ansible starts a process for each skipped task.
PLAYBOOK = "rollout_{}"
#: Step → its resources, as its playbook has them.  The boot default, loaded modules and the reboot have other steps.
STEPS: Mapping[str, frozenset[str]] = {
    "apply": frozenset({
        "repositories", "pins", "program", "expectation", "driver_options", "guard", "cufile", "packages.driver",
        "packages.kernel", "packages.cufile", "imex", "module_options", "boot_arguments",
    }),
    "modules": frozenset({"signing", "recipes", "packages.modules", "modules", "peermem", "gate", "watch"}),
}  # fmt: skip
#: Times that a step is played again after another run kept the host.
_TRIES = 3


@dataclass(frozen=True)
class Look:
    """What a machine lacks, and what its roles need."""

    plan: HostPlan
    supply: Supply
    #: facts to which its cufile.json is fitted
    fit: Mapping[str, FitTarget]

    def lacks(self, step: str) -> list[Change]:
        """What the roles of ``step`` would change."""
        return [change for change in self.plan.changes if change.resource in STEPS[step]]

    @property
    def sure(self) -> bool:
        """Whether every fact could be read."""
        return not self.plan.unknown


def look(work: Work, shelf: RunArchives) -> Look:
    """Ask the machine what it lacks towards the lock; raises its error."""
    planned = plan_fleet(work.fleet, work.lock, work.fleet_path, [work.name], shelf=shelf)
    plan = planned.hosts[work.name]
    if isinstance(plan, GdsError):
        raise plan
    return Look(plan, planned.supplies[work.name], planned.fit_targets)


def refuse(work: Work, look: Look) -> None:
    """Raise an objection to the machine: another system, unreadable facts, or no builder."""
    if look.plan.refusal:
        raise HostUnfit(f"{work.name}: {look.plan.refusal}", hint=look.plan.refusals[0].hint)
    if not look.sure:
        lines = "\n".join(f"  - {text}" for text in look.plan.unknown)
        raise RolloutRefused(
            f"{work.name}: not everything about it could be read:\n{lines}",
            hint=f"gdsdeploy plan {work.fleet_path} --limit {work.name} shows the same; repair what it names",
        )
    if look.supply.lack:
        raise RolloutRefused(
            f"{work.name}: no machine builds its modules: {look.supply.lack}",
            hint="Include its builder, or set modules: build for it in the fleet file",
        )


def render_inventory(work: Work, shelf: RunArchives, supply: Supply, fit: Mapping[str, FitTarget]) -> dict[str, Any]:
    """The inventory of the one machine, towards the lock."""
    every = write_run_files(work.fleet, work.lock, work.fleet_path.resolve().parent, fit, shelf)
    who = lease.identity(work)
    return inventory(work.fleet, work.lock, replace(every, supplies={work.name: supply}, run=who.run, who=who.who))


def play(
    work: Work,
    step: str,
    shelf: RunArchives,
    supply: Supply,
    fit: Mapping[str, FitTarget],
    extra: Mapping[str, Any] | None = None,
) -> list[str]:
    """Play the roles of ``step``; returns what was changed, as ``role: task``.

    extra: more variables.  Waits where another run keeps the host.  Raises the error of the failed task.
    """
    document = render_inventory(work, shelf, supply, fit)
    # Beside its other variables, which would win against those of a group.
    variables(document)[work.name][1].update(extra or {})
    for left in range(_TRIES, -1, -1):
        result = _play_once(work, step, document)
        if not isinstance(result.failure, Busy) or not left:
            break
        lease.wait_until_free(work)
    if result.failure is not None:
        raise result.failure
    return result.changed


def _play_once(work: Work, step: str, document: Mapping[str, Any]) -> ansible.HostResult:
    """What one start of Ansible did with the playbook of ``step`` and the inventory ``document``."""
    work.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    stem = f"{work.name}-{work.task.step.value}"
    path, log = work.logs / f"{stem}.yml", work.logs / f"{stem}.log"
    path.write_text(dump(document), encoding="utf-8")
    # One folder for each start: an open connection must not outlive the host's reboot.
    with tempfile.TemporaryDirectory(prefix="gds-") as control:
        command = ansible.argv(PLAYBOOK.format(step), path, limit=[work.name], extra=[])
        program = hostapp.keep(paths.cache() / "program")
        environment = ansible.environment(control_dir=Path(control), program=program)
        outcome = ansible.play(command, environment, log=log, progress=work.say)
    result = outcome.hosts.get(work.name)
    if result is None:
        raise ConvergeFailed(f"{work.name}: Ansible did nothing on it", hint=f"Whole output: {log}")
    return result
