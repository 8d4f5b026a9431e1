"""Ask every machine of a fleet once, and plan what provision would change there.  Changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gdsdeploy import builds, folders, hostapp, roletasks, supplying, transport
from gdsdeploy.answer import Answer
from gdsdeploy.builds import Supply
from gdsdeploy.cufile import hosts
from gdsdeploy.cufile.fit import Host
from gdsdeploy.cufile.render import render as render_cufile
from gdsdeploy.errors import GdsError, HostUnreachable
from gdsdeploy.expect import expectation
from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.managed import ManagedFacts, managed_facts
from gdsdeploy.host.survey import Survey, either
from gdsdeploy.inventory import BUILDERS, HOSTS, Sources, inventory
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.plan import ARCHIVE, COVERED, PEERMEM, HostPlan, Wanted, built_by_dkms, plan
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo import dnfpins
from gdsdeploy.roletasks import Managed, NotTold, Task
from gdsdeploy.supplying import Shelf

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
    #: where the modules of each machine that answered come from
    supplies: Mapping[str, Supply] = field(default_factory=dict)
    #: what each machine that answered said
    facts: Mapping[str, ManagedFacts] = field(default_factory=dict)


def plan_fleet(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    names: Sequence[str],
    *,
    timeout: float = TIMEOUT,
    progress: Callable[[HostPlan | GdsError, str, float], None] = lambda *_: None,
    shelf: Shelf | None = None,
    also: Mapping[str, Sequence[str]] = {},
) -> Planned:
    """Plan for the machines ``names`` (hosts and builders); one that cannot be asked has its error; the others go on.

    timeout: seconds for each machine.  shelf: the archives of modules of the run that the plan is for; without one
    they are looked up in the cache.  Raises LockStale, FleetInvalid and BuildCacheUnusable where nothing can be
    planned, and Interrupted.
    """
    if shelf is None:
        with supplying.opened() as own:
            return plan_fleet(fleet, lock, fleet_path, names, timeout=timeout, progress=progress, shelf=own, also=also)
    fleet_dir = fleet_path.resolve().parent
    found: dict[str, HostPlan | GdsError] = {}
    seconds: dict[str, float] = dict.fromkeys(names, 0.0)

    def said(name: str, made: HostPlan | GdsError) -> None:
        found[name] = made
        progress(made, name, seconds[name])

    fits = hosts.ask(fleet, lock, fleet_path, hosts.fitted(fleet, names), timeout=timeout)
    for name, fit in fits.items():
        if isinstance(fit, GdsError):
            said(name, fit)
    known = {name: fit for name, fit in fits.items() if isinstance(fit, Host)}
    given = sources(fleet, lock, fleet_dir, known, shelf.folder)
    questions = Questions(fleet, lock, given, [name for name in names if name not in found])
    answers: dict[str, Answer] = {}
    for answer in transport.fan_out(
        transport.endpoints(fleet, fleet_dir, list(questions.surveys)),
        given.program.read_bytes(),
        SURVEY,
        stdin={name: _with(survey, also).to_json().encode() for name, survey in questions.surveys.items()},
        timeout=timeout,
    ):
        seconds[answer.host] = answer.seconds
        if answer.error is not None or answer.document is None:
            said(answer.host, answer.error or HostUnreachable(f"{answer.host}: no answer"))
        else:
            answers[answer.host] = answer
    # Who builds for whom depends on what all of them have said.
    supplies = questions.supplies(answers, shelf)
    rendered = variables(inventory(fleet, lock, replace(given, supplies=supplies)))
    for name, answer in answers.items():
        said(name, Machine(fleet, lock, name, *rendered[name]).judge(answer, supplies[name]))
    ordered = {name: found[name] for name in names}
    facts = {name: managed_facts(answer.document) for name, answer in answers.items()}
    return Planned(ordered, {name: seconds[name] for name in names}, known, supplies, facts)


def _with(survey: Survey, also: Mapping[str, Sequence[str]]) -> Survey:
    return replace(survey, commands={**survey.commands, **{name: list(argv) for name, argv in also.items()}})


class Questions:
    """What has to be asked of machines of which some may come to build their modules or to receive them."""

    def __init__(self, fleet: Fleet, lock: Lock, given: Sources, names: Sequence[str]) -> None:
        self._fleet, self._lock = fleet, lock
        possible = {name: _possible(fleet, lock, name) for name in names}
        # In the first every machine that may build does, in the second every one that may receive.
        self._first = self._rendered(given, {name: modes[0] for name, modes in possible.items()})
        second = self._rendered(given, {name: modes[-1] for name, modes in possible.items()})
        self.surveys: dict[str, Survey] = {}
        for name in names:
            one, other = (Machine(fleet, lock, name, *values[name]).survey for values in (self._first, second))
            self.surveys[name] = either(one, other)

    def supplies(self, answers: Mapping[str, Answer], shelf: Shelf) -> dict[str, Supply]:
        """Where the modules of those that answered come from; in the order of the fleet file, builders first."""
        told = {}
        for name, host in self._fleet.everyone().items():
            if name in answers:
                facts = managed_facts(answers[name].document)
                profile, target = self._fleet.profiles[host.profile], self._lock.targets[host.profile]
                told[name] = supplying.told(facts, profile, target, self._first[name][1])
        return builds.supplies(self._fleet, self._lock, told, shelf.look)

    def _rendered(self, given: Sources, supplies: Mapping[str, Supply]) -> dict[str, tuple[str, dict[str, Any]]]:
        return variables(inventory(self._fleet, self._lock, replace(given, supplies=supplies)))


def _possible(fleet: Fleet, lock: Lock, name: str) -> list[Supply]:
    """The ways in which a machine may come to its modules: builds first."""
    wish, wanted = fleet.modules(name), builds.by_intent(fleet, lock, name).want
    modes: list[Supply] = [Supply("build", "", wanted, delivers=True)] if wish != "receive" else []
    return modes + ([Supply("receive", "", wanted, cached=True)] if wish != "build" else [])


def sources(
    fleet: Fleet, lock: Lock, fleet_dir: Path, known: Mapping[str, Host] | None = None, modules: Path | None = None
) -> Sources:
    """Write what a run hands over to the controller's cache and render what it says.

    known: what the hosts are whose cufile.json is fitted to them; the file of one that is not among them is empty.
    modules: where the run has its archives of modules; one that hands over none needs none.
    """
    known = known or {}
    cache = folders.cache()
    program = hostapp.keep(cache / "program")
    return Sources(
        fleet_dir=fleet_dir,
        program=program,
        modules=modules or cache / "modules",
        certificates=cache / "certificates",
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
        shared = Path(values.get("gds_secureboot_shared") or "/nowhere")
        self._told["__gds_secureboot_delivered"] = {"stat": {"exists": shared.is_file()}}
        every = roletasks.tasks("provision", group, values)
        self._files = [task for task in every if _judged(task) and _may_apply(task, self._told)]
        self.survey = self._survey(every)

    def _survey(self, every: Sequence[Task]) -> Survey:
        values = self._variables
        release = values["gds_modules_kernel_release"]
        paths = [path for task in self._files if (path := roletasks.path_of(task))]
        is_built = values["gds_modules_from"] == "build"
        archive = ARCHIVE.format(release)
        dnf = values["gds_repo_manager"] == "dnf"
        if values["gds_modules_archive"]:
            paths.append(archive)
        return Survey(
            kernel_release=release,
            paths=list(dict.fromkeys(paths)),
            commands={**roletasks.questions(self._files, every), **(dnfpins.QUESTIONS if dnf else {})},
            packages=sorted({item["package"] for item in values["gds_repo_pins"] + values["gds_driver_leaving"]}),
            boot=bool(values["gds_kernel_boot"]),
            modules=_modules(values),
            archive="" if is_built else archive,
            dkms=built_by_dkms(values) if is_built else [],
            audit=is_built,
            driver_version=values["gds_modules_driver_version"],
            driver_flavour=values["gds_modules_driver_flavour"],
            driver_tree=values["gds_modules_driver_tree"],
            certificate=_certificate(values),
            signs=bool(values["gds_secureboot_signs"]),
            enrols=bool(values["gds_secureboot_enrols"]),
        )

    def judge(self, answer: Answer, supply: Supply | None = None) -> HostPlan | GdsError:
        if answer.error is not None or answer.document is None:
            return answer.error or HostUnreachable(f"{answer.host}: no answer")
        facts = managed_facts(answer.document)
        files, undecided = self.expected(facts)
        wanted = Wanted(self._variables, tuple(files), tuple(undecided), self._archive, supply)
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


def _certificate(values: Mapping[str, Any]) -> str:
    """Where the certificate of who signs is on the machine, as gds_secureboot has it; empty: nothing is signed."""
    own = str(values["gds_secureboot_certificate"])
    return own if values["gds_secureboot_signs"] or not own else "/etc/gdsdeploy/modules.der"


def _modules(values: Mapping[str, Any]) -> list[str]:
    """Modules that have to be loaded; nvidia-peermem by a unit of its own, which no reboot is needed for."""
    if not values["gds_modules_load"]:
        return []
    return [*values["gds_reboot_modules"], *([PEERMEM] if values["gds_peermem_rdma"] == "peermem" else [])]


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
