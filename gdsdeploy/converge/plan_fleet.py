"""Ask every machine of a fleet once, and plan what provision would change there.  Changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gdsdeploy import paths
from gdsdeploy.builds import assign, run_archives
from gdsdeploy.builds.assign import Supply, archive_of
from gdsdeploy.builds.run_archives import Shelf
from gdsdeploy.converge import build_facts, desired, fitted_hosts
from gdsdeploy.converge.diff import BUILD, KEEP, RECEIVE, HostPlan, Variants, plan, variants
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.inventory import BUILDERS, HOSTS, Sources, inventory
from gdsdeploy.cufile.fit import Host
from gdsdeploy.cufile.render import render as render_cufile
from gdsdeploy.errors import GdsError
from gdsdeploy.host.apply.modules import NOT_DELIVERED
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.ssh import hostdata
from gdsdeploy.ssh.ask import ask
from gdsdeploy.ssh.endpoint import Answer, malformed, refusal
from gdsdeploy.zipapp import hostapp

#: Seconds for one machine, from the connection to the end of its answer.
TIMEOUT = 180.0
#: Reads the desired state from standard input.
CHECK = ("apply", "--check", "--json", "--desired", "-")


@dataclass(frozen=True)
class Planned:
    """The plan of each machine, or why there is none, in the order they were named; and the seconds each took."""

    hosts: Mapping[str, HostPlan | GdsError]
    seconds: Mapping[str, float]
    #: what the hosts are to which a cufile.json is fitted
    known: Mapping[str, Host] = field(default_factory=dict)
    #: where the modules of each machine that answered come from
    supplies: Mapping[str, Supply] = field(default_factory=dict)


def plan_fleet(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    names: Sequence[str],
    *,
    timeout: float = TIMEOUT,
    progress: Callable[[HostPlan | GdsError, str, float], None] = lambda *_: None,
    shelf: Shelf | None = None,
) -> Planned:
    """Plan for the machines ``names`` (hosts and builders); one that cannot be asked has its error; the others go on.

    timeout: seconds for each machine.  shelf: the archives of modules of the run that the plan is for; without one
    they are looked up in the cache.  Raises LockStale, FleetInvalid and BuildCacheUnusable where nothing can be
    planned, and Interrupted.
    """
    if shelf is None:
        with run_archives.opened(fleet_path) as own:
            return plan_fleet(fleet, lock, fleet_path, names, timeout=timeout, progress=progress, shelf=own)
    fleet_dir = fleet_path.resolve().parent
    found: dict[str, HostPlan | GdsError] = {}
    seconds: dict[str, float] = dict.fromkeys(names, 0.0)

    def add(name: str, made: HostPlan | GdsError) -> None:
        found[name] = made
        progress(made, name, seconds[name])

    fits = fitted_hosts.facts_of(fleet, lock, fleet_path, fitted_hosts.fitted(fleet, names), timeout=timeout)
    for name, fit in fits.items():
        if isinstance(fit, GdsError):
            add(name, fit)
    known = {name: fit for name, fit in fits.items() if isinstance(fit, Host)}
    given = sources(fleet, lock, fleet_dir, known, shelf)
    asked = documents(fleet, lock, given, [name for name in names if name not in found])
    checked: dict[str, Variants] = {}
    told: dict[str, assign.Told] = {}

    def judge(answer: Answer) -> Variants:
        with hostdata.surprises(answer.host):
            found = checked_variants(answer, asked[answer.host])
            told[answer.host] = _told(fleet, lock, answer.host, found)
            return found

    stdin = {name: json.dumps(document).encode() for name, document in asked.items()}
    program = given.program.read_bytes()
    for answer, outcome in ask(
        fleet, fleet_path, list(asked), CHECK, judge, timeout=timeout, stdin=stdin, program=program
    ):
        seconds[answer.host] = answer.seconds
        if isinstance(outcome, GdsError):
            add(answer.host, outcome)
        else:
            checked[answer.host] = outcome
    # Who builds for whom depends on what all of them answer; in the order of the fleet file, builders first.
    supplies = assign.supplies(fleet, lock, {name: told[name] for name in fleet.everyone() if name in told}, shelf.look)
    for name in checked:
        archive = _sha256(archive_of(supplies[name].want, shelf.folder))
        add(name, plan(name, checked[name], supplies[name], archive))
    return Planned({name: found[name] for name in names}, {name: seconds[name] for name in names}, known, supplies)


def documents(fleet: Fleet, lock: Lock, given: Sources, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Machine → the desired state in each way in which it may come to its modules.  Raises FleetInvalid."""
    files = desired.Files()
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for mode in ("build", "receive"):
        supplies = {name: _possible(fleet, lock, name, mode) for name in names}
        rendered = variables(inventory(fleet, lock, replace(given, supplies=supplies)))
        for name in names:
            refused = {"build": "receive", "receive": "build"}[mode]
            if fleet.modules(name) == refused:
                continue
            values = rendered[name][1]
            ways = {BUILD: ""} if mode == "build" else {KEEP: "", RECEIVE: NOT_DELIVERED}
            found[name] |= {way: desired.document(values, files, archive=archive) for way, archive in ways.items()}
    return {name: {"version": desired.VERSION, "variants": ways} for name, ways in found.items()}


def _possible(fleet: Fleet, lock: Lock, name: str, mode: str) -> Supply:
    wanted = assign.by_intent(fleet, lock, name).want
    if mode == "build":
        return Supply("build", "", wanted, delivers=True, origin=name)
    return Supply("receive", "", wanted, cached=True)


def checked_variants(answer: Answer, document: Mapping[str, Any]) -> Variants:
    """What a machine says of every variant of ``document``; raises its error, or HostUnfit for a malformed answer."""
    told = answer.require_document()
    error = told.get("error")
    if isinstance(error, Mapping):
        raise refusal(answer.host, error)
    try:
        found = variants(told.get("variants"))
    except ValueError as problem:
        raise malformed(answer.host, "", str(problem)) from None
    for name, listed in document["variants"].items():
        if [item.name for item in found.get(name, ())] != [_name(item) for item in listed]:
            raise malformed(answer.host, "", f"variants.{name}: not every resource was checked")
    return {name: found[name] for name in document["variants"]}


def _name(item: Mapping[str, Any]) -> str:
    """A resource of a desired state, as its result is named."""
    return f"{item['resource']}.{item['instance']}" if item.get("instance") else str(item["resource"])


def _told(fleet: Fleet, lock: Lock, name: str, said: Variants) -> assign.Told:
    profile = fleet.everyone()[name].profile
    return build_facts.told(said, fleet.profiles[profile], lock.targets[profile])


def sources(
    fleet: Fleet,
    lock: Lock,
    fleet_dir: Path,
    known: Mapping[str, Host] | None = None,
    shelf: Shelf | None = None,
) -> Sources:
    """Write what a run hands over to the controller's cache and render what it says.

    known: what the hosts are whose cufile.json is fitted to them; the file of one that is not among them is empty.
    shelf: the run's archives of modules, and the keys of who builds them; one that hands over none needs none.
    """
    known = known or {}
    cache = paths.cache()
    program = hostapp.keep(cache / "program")
    return Sources(
        fleet_dir=fleet_dir,
        program=program,
        modules=shelf.folder if shelf is not None else cache / "modules",
        certificates=cache / "certificates",
        builders=shelf.keys.folder if shelf is not None else cache / "builders",
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


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
