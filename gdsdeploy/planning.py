"""Ask every machine of a fleet once, and plan what provision would change there.  Changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdsdeploy import folders, hostapp, roletasks, transport
from gdsdeploy.answer import Answer
from gdsdeploy.cufile import hosts
from gdsdeploy.cufile.fit import Host
from gdsdeploy.cufile.render import render as render_cufile
from gdsdeploy.errors import GdsError, HostUnreachable
from gdsdeploy.expect import expectation
from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.managed import ManagedFacts, managed_facts
from gdsdeploy.host.survey import Survey
from gdsdeploy.inventory import BUILDERS, HOSTS, Sources, inventory
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.plan import ARCHIVE, COVERED, HostPlan, Wanted, built_by_dkms, plan
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo import dnfpins
from gdsdeploy.roletasks import Managed, NotTold, Task

#: Seconds for one machine, from the connection to the end of its answer.
TIMEOUT = 180.0
#: Reads its questions from standard input.
SURVEY = ("survey", "--json")


@dataclass(frozen=True)
class Planned:
    """The plan of each machine, or why there is none, in the order they were named; and the seconds each took."""

    hosts: Mapping[str, HostPlan | GdsError]
    seconds: Mapping[str, float]
    #: what the hosts are to which a cufile.json is fitted
    known: Mapping[str, Host] = field(default_factory=dict)


def plan_fleet(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    names: Sequence[str],
    *,
    timeout: float = TIMEOUT,
    progress: Callable[[HostPlan | GdsError, str, float], None] = lambda *_: None,
) -> Planned:
    """Plan for the machines ``names`` (hosts and builders); one that cannot be asked has its error; the others go on.

    timeout: seconds for each machine.  Raises LockStale and FleetInvalid where nothing can be planned, and Interrupted.
    """
    fleet_dir = fleet_path.resolve().parent
    found: dict[str, HostPlan | GdsError] = {}
    seconds: dict[str, float] = dict.fromkeys(names, 0.0)
    fits = hosts.ask(fleet, lock, fleet_path, hosts.fitted(fleet, names), timeout=timeout)
    for name, fit in fits.items():
        if isinstance(fit, GdsError):
            found[name] = fit
            progress(fit, name, 0.0)
    known = {name: fit for name, fit in fits.items() if isinstance(fit, Host)}
    given = sources(fleet, lock, fleet_dir, known)
    rendered = variables(inventory(fleet, lock, given))
    asked = {name: Machine(fleet, lock, name, *rendered[name]) for name in names if name not in found}
    for answer in transport.fan_out(
        transport.endpoints(fleet, fleet_dir, list(asked)),
        given.program.read_bytes(),
        SURVEY,
        stdin={name: machine.survey.to_json().encode() for name, machine in asked.items()},
        timeout=timeout,
    ):
        made = asked[answer.host].judge(answer)
        found[answer.host], seconds[answer.host] = made, answer.seconds
        progress(made, answer.host, answer.seconds)
    return Planned({name: found[name] for name in names}, {name: seconds[name] for name in names}, known)


def sources(fleet: Fleet, lock: Lock, fleet_dir: Path, known: Mapping[str, Host] | None = None) -> Sources:
    """Write what a run hands over to the controller's cache and render what it says.

    known: what the hosts are whose cufile.json is fitted to them; the file of one that is not among them is empty.
    """
    known = known or {}
    cache = folders.cache()
    modules = cache / "modules"
    modules.mkdir(parents=True, exist_ok=True)
    program = hostapp.keep(cache / "program")
    return Sources(
        fleet_dir=fleet_dir,
        program=program,
        modules=modules,
        expectations={name: expectation(fleet, lock, name, known.get(name)).to_json() for name in fleet.hosts},
        cufile={name: _cufile(fleet, lock, name, known.get(name)) for name in fleet.hosts},
    )


def _cufile(fleet: Fleet, lock: Lock, name: str, known: Host | None) -> str:
    profile_name = fleet.hosts[name].profile
    profile = fleet.profiles[profile_name]
    if profile.fit is not None and known is None:
        return ""
    return render_cufile(profile_name, profile, lock.targets[profile_name].libcufile.version, known)


def variables(rendered: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Machine → its group and its variables, out of an inventory."""
    groups = rendered["all"]["children"]
    return {
        name: (group, groups[group]["hosts"][name]) for group in (BUILDERS, HOSTS) for name in groups[group]["hosts"]
    }


class Machine:
    """One machine: what its roles would do, what has to be asked for that, and what the answer means."""

    def __init__(self, fleet: Fleet, lock: Lock, name: str, group: str, values: dict[str, Any]) -> None:
        self._name, self._variables = name, values
        self._order = stack_platform_for(lock.targets[fleet.everyone()[name].profile].os).order
        archive = values["gds_modules_archive"]
        self._archive = _sha256(Path(archive)) if archive else None
        #: what the controller itself knows of the results that tasks register
        self._told: dict[str, Any] = {"__gds_modules_delivered": {"stat": {"exists": self._archive is not None}}}
        every = roletasks.tasks("provision", group, values)
        self._files = [task for task in every if _judged(task) and _may_apply(task, self._told)]
        self.survey = self._survey(every)

    def _survey(self, every: Sequence[Task]) -> Survey:
        values = self._variables
        release = values["gds_modules_kernel_release"]
        paths = [path for task in self._files if (path := roletasks.path_of(task))]
        builds, receives = values["gds_modules_from"] == "build", self._archive is not None
        archive = ARCHIVE.format(release)
        dnf = values["gds_repo_manager"] == "dnf"
        if values["gds_modules_archive"]:
            paths.append(archive)
        return Survey(
            kernel_release=release,
            paths=list(dict.fromkeys(paths)),
            commands={**roletasks.questions(self._files, every), **(dnfpins.QUESTIONS if dnf else {})},
            packages=sorted(package["package"] for package in values["gds_repo_pins"]),
            boot=bool(values["gds_kernel_boot"]),
            modules=list(values["gds_reboot_modules"]) if values["gds_modules_load"] else [],
            archive=archive if receives and not builds else "",
            dkms=built_by_dkms(values) if builds else [],
            audit=builds,
            driver_version=values["gds_modules_driver_version"],
            driver_flavour=values["gds_modules_driver_flavour"],
            driver_tree=values["gds_modules_driver_tree"],
        )

    def judge(self, answer: Answer) -> HostPlan | GdsError:
        if answer.error is not None or answer.document is None:
            return answer.error or HostUnreachable(f"{answer.host}: no answer")
        facts = managed_facts(answer.document)
        files, undecided = self.expected(facts)
        wanted = Wanted(self._variables, tuple(files), tuple(undecided), self._archive)
        return plan(self._name, wanted, facts, self._order)

    def expected(self, facts: ManagedFacts) -> tuple[list[Managed], list[str]]:
        """What the file tasks leave behind, given the machine's answers; and the tasks that could not be judged."""
        told, failed = dict(self._told), {}
        for name in self.survey.commands:
            ran = facts.commands.get(name, Unknown(f"{name} was not asked"))
            if isinstance(ran, Unknown):
                failed[name] = ran.reason
            else:
                told[name] = {"stdout": ran.stdout, "stdout_lines": ran.stdout.splitlines(), "rc": ran.status}
        files: list[Managed] = []
        undecided: list[str] = []
        for task in self._files:
            lost = sorted(task.mentions() & failed.keys())
            if lost:
                undecided.append(f"{task.role}: {task.step}: {failed[lost[0]]}")
                continue
            try:
                if (item := roletasks.managed(task, told)) is not None:
                    files.append(item)
            except NotTold as error:
                undecided.append(f"{task.role}: {task.step}: {error}")
        return files, undecided


def _judged(task: Task) -> bool:
    """Whether a task is judged by the path that it leaves behind."""
    if (task.role, task.step) in COVERED:
        return False
    return task.module in roletasks.FILES or roletasks.path_of(task) is not None


def _may_apply(task: Task, told: Mapping[str, Any]) -> bool:
    try:
        return task.applies(told)
    except NotTold:
        return True


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
