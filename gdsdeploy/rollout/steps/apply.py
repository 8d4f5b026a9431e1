"""What changes a host: packages and files, modules, and which kernel boots once.  The boot default stays.

A step plays the roles of one playbook on one host, and refuses a change that the rollout's plan didn't show.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gdsdeploy import paths
from gdsdeploy.builds import assign
from gdsdeploy.builds.assign import RunArchives, Supply
from gdsdeploy.converge import ansible
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.inventory import dump, inventory
from gdsdeploy.converge.plan_fleet import plan_fleet, variables, write_run_files
from gdsdeploy.converge.plan_report import supply_words
from gdsdeploy.cufile.render import FitTarget
from gdsdeploy.errors import Busy, ConvergeFailed, GdsError, HostUnfit, ModuleBuildFailed, RebootFailed, RolloutRefused
from gdsdeploy.host.apply.model import Change
from gdsdeploy.model.rollout import Step
from gdsdeploy.rollout.steps import answers
from gdsdeploy.rollout.steps.work import Work, rollout_identity, wait_until_free
from gdsdeploy.zipapp import hostapp

#: The playbook of a step.  Each has the roles of one step only, because Ansible starts a process for each skipped task.
PLAYBOOK = "rollout_{}"
#: Step → its resources, as its playbook has them.  The boot default, loaded modules and the reboot have other steps.
RESOURCES_OF_STEP: Mapping[str, frozenset[str]] = {
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
        return [change for change in self.plan.changes if change.resource in RESOURCES_OF_STEP[step]]

    @property
    def sure(self) -> bool:
        """Whether every fact could be read."""
        return not self.plan.unknown


def look_at(work: Work, shelf: RunArchives) -> Look:
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
    who = rollout_identity(work)
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
        wait_until_free(work)
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


#: Want → lock while a host builds what others may receive.
_BUILDING: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_GUARD = threading.Lock()


def apply(work: Work) -> dict[str, Any]:
    """Repositories, pins, packages, kernel, cufile.json and the expectation; what boots by default stays.

    Raises what the roles end in.
    """
    wait_until_free(work)
    _keep_default(work)
    with assign.open_run_archives(work.fleet_path) as shelf:
        look = look_at(work, shelf)
        refuse(work, look)
        if look.sure and not look.lacks("apply"):
            work.say("packages and files are as the lock has them")
            return {"changed": []}
        return {"changed": play(work, "apply", shelf, look.supply, look.fit)}


def _keep_default(work: Work) -> None:
    """Make the running kernel the boot default before a kernel package sets the newest one."""
    if not work.has_kernel:
        return
    kernel = work.facts.kernel or work.ask(answers.STATUS).kernel
    if work.ask(answers.SET_DEFAULT, "--kernel", kernel).changed:
        work.say(f"{kernel}, which runs, is the boot default")


def modules(work: Work) -> dict[str, Any]:
    """Build or receive the modules, as provision decides; hosts that can share a build wait for the first one.

    Raises ModuleBuildFailed and what the roles end in.
    """
    with _look(work) as (shelf, look):
        refuse(work, look)
        supply = look.supply
        if look.sure and not look.lacks("modules"):
            work.say("modules are as the lock has them")
            changed: list[str] = []
        else:
            work.say(supply_words(supply))
            try:
                changed = play(work, "modules", shelf, supply, look.fit)
            finally:
                # After an interruption, too, so that no build is repeated.
                for error in shelf.keep(work.lock, work.fleet, {work.name: supply}):
                    work.say(error.message)
    return {"supply": {"from": supply.source, "why": supply.why, "want": supply.want}, "changed": changed}


@contextmanager
def _look(work: Work) -> Iterator[tuple[RunArchives, Look]]:
    """A look at the machine; while one builds what others may receive, the others wait and look again."""
    with ExitStack() as stack:
        shelf = stack.enter_context(assign.open_run_archives(work.fleet_path))
        look = look_at(work, shelf)
        if look.supply.mode == "build" and work.fleet.modules(work.name) == "auto" and look.lacks("modules"):
            with _GUARD:
                lock = _BUILDING[look.supply.want]
            stack.enter_context(lock)
            shelf = stack.enter_context(assign.open_run_archives(work.fleet_path))
            look = look_at(work, shelf)
        yield shelf, look


def audit(work: Work) -> dict[str, Any]:
    """Audit the modules for the lock's kernel on the host; then have that kernel boot once.

    Raises ModuleBuildFailed with every objection, RebootFailed.
    """
    kernel = work.target.kernel.release
    if work.is_builder:
        # Its builds are audited after each build, and by the host that receives them.
        return {"audit": {"kernel": kernel, "once": False}}
    verdict = work.ask(answers.JUDGE, "--kernel", kernel)
    if not verdict.admitted:
        reasons = "\n".join(f"  - {text}" for text in verdict.reasons)
        raise ModuleBuildFailed(
            f"{work.name}: the audit refuses the modules for kernel {kernel}:\n{reasons}",
            hint=f"On the host: gdsdeploy-host.pyz kmod audit --kernel {kernel}",
        )
    running = work.ask(answers.STATUS).kernel if work.has_kernel else kernel
    if running == kernel:
        return {"audit": {"kernel": kernel, "once": False}}
    answer = work.ask(answers.ONCE, "--kernel", kernel, "--default", running)
    if not answer.once:
        document = json.dumps(answer.model_dump(), sort_keys=True)
        raise RebootFailed(
            f"{work.name}: kernel {kernel} would boot not only once: {document}",
            hint="On the host: gdsdeploy-host.pyz boot show",
        )
    work.say(f"boots {kernel} once; the boot after that is of {running} again")
    return {"audit": {"kernel": kernel, "once": True}}


STEPS = {Step.APPLY: apply, Step.MODULES: modules, Step.AUDIT: audit}
