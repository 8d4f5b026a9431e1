"""Ask every machine of a fleet, and plan what provision would change there.  Changes nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from gdsdeploy import console, paths
from gdsdeploy.builds import assign
from gdsdeploy.builds.assign import RunArchives, Supply, archive_of
from gdsdeploy.converge import build_facts, cufile_facts, desired
from gdsdeploy.converge.diff import BUILD, KEEP, PACKAGED, RECEIVE, HostPlan, Variants, plan, variants
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.image import Image
from gdsdeploy.converge.inventory import BUILDERS, HOSTS, RunFiles, inventory
from gdsdeploy.cufile.render import FitTarget
from gdsdeploy.cufile.render import render as render_cufile
from gdsdeploy.errors import GdsError
from gdsdeploy.host.apply.modules import NOT_DELIVERED
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.ssh import machines, reply_schema
from gdsdeploy.ssh.endpoint import Answer, malformed, refusal
from gdsdeploy.ssh.transport import ask
from gdsdeploy.zipapp import hostapp

#: Seconds for one machine, from the connection to the end of its answer.
TIMEOUT = 180.0
#: A document of desired state with variants, as docs/apply.md describes it.
Document: TypeAlias = dict[str, Any]
#: Reads the desired state from standard input.
CHECK = ("apply", "--check", "--json", "--desired", "-")


@dataclass(frozen=True)
class FleetPlan:
    """The plan of each machine, or why there is none, in the order they were named; and the seconds each took."""

    hosts: Mapping[str, HostPlan | GdsError]
    seconds: Mapping[str, float]
    #: what the hosts are to which a cufile.json is fitted
    fit_targets: Mapping[str, FitTarget] = field(default_factory=dict)
    #: where the modules of each machine that answered come from
    supplies: Mapping[str, Supply] = field(default_factory=dict)


@dataclass(frozen=True)
class _Answers:
    """What machines answer; ``add`` takes the name and the error of one that doesn't."""

    fleet: Fleet
    lock: Lock
    seconds: dict[str, float]
    add: Callable[[str, GdsError], None]
    variants: dict[str, Variants] = field(default_factory=dict)
    facts: dict[str, assign.BuildFacts] = field(default_factory=dict)
    identities: dict[str, machines.Identity] = field(default_factory=dict)

    def ask(self, question: Callable[..., Any], documents: Mapping[str, Document]) -> None:
        """Put ``documents`` to their machines by ``question``, which is ssh's, and add the variants in the answers."""
        stdin = {name: json.dumps(document).encode() for name, document in documents.items()}
        for answer, outcome in question(list(documents), CHECK, partial(self._judge, documents), stdin=stdin):
            self.seconds[answer.host] += answer.seconds
            if isinstance(outcome, GdsError):
                self.variants.pop(answer.host, None)
                self.add(answer.host, outcome)
            else:
                self.variants[answer.host] = {**self.variants.get(answer.host, {}), **outcome}

    def _judge(self, documents: Mapping[str, Document], answer: Answer) -> Variants:
        name = answer.host
        self.identities[name] = machines.identity_from((answer.document or {}).get("machine"))
        with reply_schema.unexpected_errors(name):
            results = require_variants(answer, documents[name])
            profile = self.fleet.machine(name).profile
            target = self.lock.targets[profile]
            facts = build_facts.build_facts_from(results, self.fleet.profiles[profile], target, documents[name])
            self.facts[name] = facts
            return results


def plan_fleet(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    names: Sequence[str],
    *,
    timeout: float = TIMEOUT,
    progress: Callable[[HostPlan | GdsError, str, float], None] = lambda *_: None,
    shelf: RunArchives | None = None,
    warn: Callable[[str], None] = console.warn,
    image: Image | None = None,
) -> FleetPlan:
    """Plan for the machines ``names`` (hosts and builders); one that cannot be asked has its error.

    timeout: seconds for each machine.  shelf: the archives of the run that the plan is for; without one, the cache's.
    warn: takes what isn't an error: machines with the same machine id.  image: stands for its host, which isn't asked.
    Raises LockStale, FleetInvalid (also where two names are one machine) and BuildCacheUnusable where nothing can be
    planned, and Interrupted.
    """
    if shelf is None:
        with assign.open_run_archives(fleet_path) as own:
            return plan_fleet(
                fleet, lock, fleet_path, names, timeout=timeout, progress=progress, shelf=own, warn=warn, image=image
            )
    plans: dict[str, HostPlan | GdsError] = {}
    seconds: dict[str, float] = dict.fromkeys(names, 0.0)

    def add(name: str, outcome: HostPlan | GdsError) -> None:
        if isinstance(outcome, GdsError):
            outcome.name_fleet(fleet_path)
        plans[name] = outcome
        progress(outcome, name, seconds[name])

    fits = cufile_facts.facts_of(fleet, lock, fleet_path, cufile_facts.names_to_fit(fleet, names), timeout=timeout)
    for name, fit in fits.items():
        if isinstance(fit, GdsError):
            add(name, fit)
    facts_of = {name: fit for name, fit in fits.items() if isinstance(fit, FitTarget)}
    run_files = replace(write_run_files(fleet, lock, fleet_path.resolve().parent, facts_of, shelf), image=image)
    desired_states = desired_documents(fleet, lock, run_files, [name for name in names if name not in plans])
    ways: Callable[..., Any] = partial(ask, fleet, fleet_path, timeout=timeout) if image is None else image.ask
    question = partial(ways, program=run_files.program.read_bytes())
    answers = _Answers(fleet, lock, seconds, add)
    answers.ask(question, {name: _likely(fleet, name, document) for name, document in desired_states.items()})
    identities = answers.identities
    machines.require_machines({name: identities[name] for name in names if name in identities}, fleet_path, warn)
    # Which host builds for which depends on all answers; in the order of the fleet file, builders first.
    ordered = {name: answers.facts[name] for name in fleet.everyone() if name in answers.facts}
    supplies = assign.supplies(fleet, lock, ordered, shelf.look)
    if image is not None:
        # What signs that which a machine hands over would be in every host of the image.
        supplies = {name: replace(supply, delivers=False) for name, supply in supplies.items()}
    # Each machine simulates only the transactions that it may have to make.
    others = {
        name: _missing(desired_states[name], results, supplies[name]) for name, results in answers.variants.items()
    }
    answers.ask(question, {name: document for name, document in others.items() if document})
    for name, results in answers.variants.items():
        archive = sha256(archive_of(supplies[name].want, shelf.folder))
        add(name, plan(name, results, supplies[name], archive))
    return FleetPlan({name: plans[name] for name in names}, {name: seconds[name] for name in names}, facts_of, supplies)


def desired_documents(fleet: Fleet, lock: Lock, run_files: RunFiles, names: Sequence[str]) -> dict[str, Document]:
    """Machine → the desired state in each way in which it may come to its modules.  Raises FleetInvalid."""
    files = desired.Files()
    wants = {name: assign.by_intent(fleet, lock, name).want for name in names}
    building = {name: Supply("build", "", want, delivers=True, origin=name) for name, want in wants.items()}
    receiving = {name: Supply("receive", "", want, cached=True) for name, want in wants.items()}
    packaged = {name: Supply("packaged", "", want) for name, want in wants.items()}
    desired_documents: dict[str, dict[str, Any]] = {name: {} for name in names}
    for supplies, settings, archives in (
        (building, ("build", "auto"), {BUILD: ""}),
        (receiving, ("receive", "auto"), {KEEP: "", RECEIVE: NOT_DELIVERED}),
        (packaged, ("packaged",), {PACKAGED: ""}),
    ):
        values = variables(inventory(fleet, lock, replace(run_files, supplies=supplies)))
        for name in (name for name in names if fleet.modules(name) in settings):
            for variant, archive in archives.items():
                desired_documents[name][variant] = desired.resources_of(values[name][1], files, archive=archive)
    return {name: _document(variants) for name, variants in desired_documents.items()}


def _document(variants: Mapping[str, Any]) -> Document:
    return {"version": desired.VERSION, "variants": dict(variants)}


def _likely(fleet: Fleet, name: str, document: Document) -> Document:
    """The part of a machine's document that its supply will probably need: a machine with suppliers receives."""
    receives = any(supplier != name for supplier in fleet.suppliers(name))
    variants = {key: value for key, value in document["variants"].items() if (key == BUILD) is not receives}
    return _document(variants or document["variants"])


def _missing(document: Document, results: Variants, supply: Supply) -> Document:
    """The part of a machine's document that its supply needs and that it hasn't answered; empty: none."""
    needed = {"build": (BUILD,), "receive": (KEEP, RECEIVE), "packaged": (PACKAGED,)}[supply.mode]
    missing = [name for name in needed if name not in results]
    return _document({name: document["variants"][name] for name in missing}) if missing else {}


def require_variants(answer: Answer, document: Document) -> Variants:
    """A machine's results for every variant of ``document``; raises its error, or HostUnfit for a malformed answer."""
    reply = answer.require_document()
    error = reply.get("error")
    if isinstance(error, Mapping):
        raise refusal(answer.host, error)
    try:
        results = variants(reply.get("variants"))
    except ValueError as problem:
        raise malformed(answer.host, "", str(problem)) from None
    for name, resources in document["variants"].items():
        names = [".".join(filter(None, (entry["resource"], entry.get("instance")))) for entry in resources]
        if [result.name for result in results.get(name, ())] != names:
            raise malformed(answer.host, "", f"variants.{name}: not every resource was checked")
    return {name: results[name] for name in document["variants"]}


def write_run_files(
    fleet: Fleet,
    lock: Lock,
    fleet_dir: Path,
    fit_targets: Mapping[str, FitTarget] | None = None,
    shelf: RunArchives | None = None,
) -> RunFiles:
    """Write the run's files to the controller's cache, and render the texts that it hands over.

    fit_targets: facts of the hosts to which a cufile.json is fitted; without its facts, a host's file is empty.
    shelf: the run's archives of modules, and the keys of the machines that build them.
    """
    fit_targets = fit_targets or {}
    cache = paths.cache()
    return RunFiles(
        fleet_dir=fleet_dir,
        program=hostapp.keep(cache / "program"),
        modules=shelf.folder if shelf is not None else cache / "modules",
        certificates=cache / "certificates",
        builders=shelf.keys.folder if shelf is not None else cache / "builders",
        expectations={name: expectation(fleet, lock, name, fit_targets.get(name)).to_json() for name in fleet.hosts},
        cufile={name: _cufile(fleet, lock, name, fit_targets.get(name)) for name in fleet.hosts},
    )


def _cufile(fleet: Fleet, lock: Lock, name: str, host: FitTarget | None) -> str:
    profile_name = fleet.hosts[name].profile
    profile = fleet.profiles[profile_name]
    if profile.fit is not None and host is None:
        return ""
    return render_cufile(profile_name, profile, lock.targets[profile_name].libcufile.version, host)


def variables(inventory: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Machine → its group and its variables, out of an inventory."""
    groups = inventory["all"]["children"]
    return {name: (group, values) for group in (BUILDERS, HOSTS) for name, values in groups[group]["hosts"].items()}


def sha256(path: Path) -> str | None:
    """The digest of a file in hexadecimal; None where there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
