"""Ask every machine of a fleet, and plan what provision would change there.  Changes nothing.

What a machine answers about its modules is also the facts that decide which machine builds for which; and a profile's
cufile.json may be fitted to what its hosts are: evidence from each, in one round trip.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from gdsdeploy import console, paths
from gdsdeploy.builds import assign
from gdsdeploy.builds.assign import BuildFacts, RunArchives, Supply, archive_of
from gdsdeploy.converge import desired
from gdsdeploy.converge.diff import BUILD, KEEP, PACKAGED, RECEIVE, HostPlan, Variants, missing, plan, variants
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.image import Image
from gdsdeploy.converge.machine import Files, Machine, RunFiles
from gdsdeploy.cufile.render import FitTarget
from gdsdeploy.errors import GdsError, HostUnfit, translated
from gdsdeploy.host.apply.model import INSTALLS
from gdsdeploy.host.apply.modules import NOT_DELIVERED
from gdsdeploy.host.io.wording import line
from gdsdeploy.host.secure_boot.certificate import read_certificate
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Lock, Target
from gdsdeploy.model.text import Name, fits
from gdsdeploy.ssh import machines, reply_schema
from gdsdeploy.ssh.endpoint import TIMEOUT, Answer, malformed, refusal
from gdsdeploy.ssh.transport import ask
from gdsdeploy.zipapp import hostapp

#: The host program reads its expectation from standard input.
EVIDENCE = ("evidence", "--json", "--expectation", "-")


def names_to_fit(fleet: Fleet, names: Sequence[str]) -> list[str]:
    """Those of the machines ``names`` whose file is fitted to them; builders have none."""
    return [name for name in names if name in fleet.hosts and fleet.profiles[fleet.hosts[name].profile].fit]


def facts_to_fit(
    fleet: Fleet, lock: Lock, fleet_path: Path, names: Sequence[str], *, timeout: float = TIMEOUT
) -> dict[str, FitTarget | GdsError]:
    """What each of ``names`` is now, or why its file cannot be fitted to it.  Raises what ask and expectation raise."""
    if not names:
        return {}

    def usable(answer: Answer) -> FitTarget:
        host = FitTarget(answer.host, reply_schema.facts_of_reply(answer))
        with reply_schema.unexpected_errors(answer.host):
            # Raises where the file cannot be fitted to it.
            expectation(Machine(fleet, lock, host.name).fitted(host))
        return host

    stdin = {name: expectation(Machine(fleet, lock, name)).to_json().encode() for name in names}
    outcomes = ask(fleet, fleet_path, names, EVIDENCE, usable, timeout=timeout, stdin=stdin)
    return {answer.host: outcome for answer, outcome in outcomes}


def facts_from_file(name: str, file: Path) -> FitTarget:
    """The host ``name`` as saved evidence shows it; raises HostUnfit when the file has none."""
    with translated(GdsError, lambda error: HostUnfit(error.message, hint=error.hint)):
        return FitTarget(name, reply_schema.saved_facts_of_host(file, name))


def build_facts_from(variants: Variants, profile: Profile, target: Target, document: Mapping[str, Any]) -> BuildFacts:
    """The facts in a machine's answers that decide which builds fit it; document: what it was asked."""
    reports = [result.report for results in variants.values() for result in results if result.name == "modules"]
    key = next((value for report in reports if isinstance(value := report.get("key"), Mapping)), None)
    if key is None:
        return BuildFacts()
    dkms_modules = next((value for report in reports if isinstance(value := report.get("dkms"), list)), [])
    archive = next((value for report in reports if isinstance(value := report.get("received"), Mapping)), None)
    build, builder = key.get("kernel_build"), (archive or {}).get("builder")
    kernel_build = ("", "")
    if isinstance(build, Mapping) and _has_kernel(variants, target):
        kernel_build = line(build.get("file", "")), line(build.get("sha256", ""))
    return BuildFacts(
        arch=line(key.get("arch") or ""),
        ofed=line(key.get("ofed") or BuildFacts.ofed),
        signatures=line(key.get("signatures") or BuildFacts.signatures),
        kernel_build=kernel_build,
        built=all(module in dkms_modules for module in built_by_dkms(profile, target)),
        received=_is_received(archive, profile, target) and _is_signed(archive, _certificate(document)),
        # It may be part of a path.
        builder=str(builder) if fits(Name, builder) else "",
    )


def built_by_dkms(profile: Profile, target: Target) -> list[str]:
    """NAME/VERSION of what a machine that builds has DKMS build."""
    names = [f"{target.driver.dkms_name}/{target.driver.version}"]
    if profile.mode == "nvidia-fs" and target.nvidia_fs is not None:
        # The name of the source tree ends in the version that DKMS knows.
        names.append(f"{target.nvidia_fs.dkms_name}/{target.nvidia_fs.source_tree.rpartition('-')[2]}")
    return names


def _has_kernel(variants: Variants, target: Target) -> bool:
    """Whether the locked kernel is there already; provision replaces another build of the same release."""
    images = {package.package for package in target.packages if package.part == "kernel-image"}
    kernels = [result for results in variants.values() for result in results if result.name == "packages.kernel"]
    coming = {change.subject for result in kernels for change in result.changes if change.kind in INSTALLS}
    return bool(images) and bool(kernels) and not any(result.unknown for result in kernels) and not images & coming


def _is_received(value: Any, profile: Profile, target: Target) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("driver"), Mapping):
        return False
    driver, nvidia_fs = value["driver"], value.get("nvidia_fs")
    if (driver.get("version"), driver.get("flavour")) != (target.driver.version, target.driver.flavour):
        return False
    if profile.mode != "nvidia-fs" or target.nvidia_fs is None:
        return True
    return isinstance(nvidia_fs, Mapping) and nvidia_fs.get("version") == target.nvidia_fs.version


def _certificate(document: Mapping[str, Any]) -> bytes:
    """The certificate whose signature the machine's modules need (DER); empty: none, or not known yet."""
    resources = [entry for listed in document["variants"].values() for entry in listed]
    contents = [entry["desired"].get("certificate_content") for entry in resources if entry["resource"] == "signing"]
    return base64.b64decode(next(filter(None, contents), ""))


def _is_signed(value: Any, certificate: bytes) -> bool:
    """Whether all received modules have the signature of ``certificate``."""
    signers = value.get("signers") if isinstance(value, Mapping) else None
    if not certificate or not isinstance(signers, list):
        return True
    owner = read_certificate(certificate)
    return bool(signers) and {str(signer) for signer in signers} <= owner.identities


#: Seconds for one machine, from the connection to the end of its answer.
PLAN_TIMEOUT = 180.0
#: A document of desired state with variants, as docs/apply.md describes it.
Document: TypeAlias = dict[str, Any]
#: Reads the desired state from standard input.
CHECK = ("apply", "--check", "--json", "--desired", "-")


@dataclass(frozen=True)
class FleetPlan:
    """The plan of each machine, or why there is none, in the order they were named; and the seconds each took."""

    hosts: Mapping[str, HostPlan | GdsError]
    seconds: Mapping[str, float]
    #: with where the modules of each machine that answered come from
    files: RunFiles = field(default_factory=RunFiles)

    @property
    def supplies(self) -> Mapping[str, Supply]:
        """Where the modules of each machine that answered come from."""
        return self.files.supplies


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
            facts = build_facts_from(results, self.fleet.profiles[profile], target, documents[name])
            self.facts[name] = facts
            return results


def plan_fleet(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    names: Sequence[str],
    *,
    timeout: float = PLAN_TIMEOUT,
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

    fits = facts_to_fit(fleet, lock, fleet_path, names_to_fit(fleet, names), timeout=timeout)
    for name, fit in fits.items():
        if isinstance(fit, GdsError):
            add(name, fit)
    facts_of = {name: fit for name, fit in fits.items() if isinstance(fit, FitTarget)}
    run_files = replace(write_run_files(paths.folder_of(fleet_path).resolve(), shelf, facts_of), image=image)
    documents = Documents(fleet, lock, run_files)
    ways: Callable[..., Any] = partial(ask, fleet, fleet_path, timeout=timeout) if image is None else image.ask
    question = partial(ways, program=run_files.program.read_bytes())
    answers = _Answers(fleet, lock, seconds, add)
    answers.ask(
        question, {name: documents.of(name, [likely_variant(fleet, name)]) for name in names if name not in plans}
    )
    identities = answers.identities
    machines.require_machines({name: identities[name] for name in names if name in identities}, fleet_path, warn)
    # Which host builds for which depends on all answers; in the order of the fleet file, builders first.
    ordered = {name: answers.facts[name] for name in fleet.everyone() if name in answers.facts}
    supplies = assign.supplies(fleet, lock, ordered, shelf.look)
    if image is not None:
        # What signs that which a machine hands over would be in every host of the image.
        supplies = {name: replace(supply, delivers=False) for name, supply in supplies.items()}
    archives = {want: sha256(archive_of(want, shelf.folder)) for want in {each.want for each in supplies.values()}}
    # Each machine simulates only the transactions that it may have to make.
    others = {
        name: lacking
        for name, results in answers.variants.items()
        if (lacking := missing(results, supplies[name], archives[supplies[name].want]))
    }
    answers.ask(question, {name: documents.of(name, lacking) for name, lacking in others.items()})
    for name, results in answers.variants.items():
        add(name, plan(name, results, supplies[name], archives[supplies[name].want]))
    files = replace(run_files, supplies=supplies)
    return FleetPlan({name: plans[name] for name in names}, {name: seconds[name] for name in names}, files)


@dataclass(frozen=True)
class Documents:
    """The desired states of a fleet's machines, each made when it is asked for."""

    fleet: Fleet
    lock: Lock
    files: RunFiles
    controller: Files = field(default_factory=Files)
    alike: dict[Hashable, Any] = field(default_factory=dict)

    def of(self, name: str, variants: Sequence[str]) -> Document:
        """The desired state of a machine in these variants.  Raises FleetInvalid."""
        return {"version": desired.VERSION, "variants": {variant: self._listed(name, variant) for variant in variants}}

    def _listed(self, name: str, variant: str) -> list[dict[str, Any]]:
        if variant == RECEIVE:
            return [_with_archive(entry) for entry in self._listed(name, KEEP)]
        want = assign.by_intent(self.fleet, self.lock, name).want
        supplies = {
            BUILD: Supply("build", "", want, delivers=True, origin=name),
            KEEP: Supply("receive", "", want, cached=True),
            PACKAGED: Supply("packaged", "", want),
        }
        files = replace(self.files, supplies={name: supplies[variant]})
        return desired.listed(Machine(self.fleet, self.lock, name, files, self.controller), self.alike)


def _with_archive(entry: dict[str, Any]) -> dict[str, Any]:
    """A resource where an archive of modules is going to be received."""
    if entry["resource"] != "modules":
        return entry
    return {**entry, "desired": {**entry["desired"], "archive_sha256": NOT_DELIVERED}}


def likely_variant(fleet: Fleet, name: str) -> str:
    """What a machine is asked first: where others may supply it, whether it keeps what it has received."""
    supplied = any(supplier != name for supplier in fleet.suppliers(name))
    first = {"build": BUILD, "receive": KEEP, "packaged": PACKAGED, "auto": KEEP if supplied else BUILD}
    return first[fleet.modules(name)]


def require_variants(answer: Answer, document: Document) -> Variants:
    """A machine's results for every variant of ``document``; raises its error, or HostUnfit for a malformed answer."""
    reply = answer.require_document()
    error = reply.get("error")
    if isinstance(error, Mapping):
        raise refusal(answer.host, error)
    with translated(ValueError, lambda problem: malformed(answer.host, "", str(problem))):
        results = variants(reply.get("variants"))
    for name, resources in document["variants"].items():
        names = [".".join(filter(None, (entry["resource"], entry.get("instance")))) for entry in resources]
        if [result.name for result in results.get(name, ())] != names:
            raise malformed(answer.host, "", f"variants.{name}: not every resource was checked")
    return {name: results[name] for name in document["variants"]}


def write_run_files(
    fleet_dir: Path, shelf: RunArchives | None = None, fits: Mapping[str, FitTarget] | None = None
) -> RunFiles:
    """Write the host program to the controller's cache; what a run has beside it.

    shelf: the run's archives of modules, and the keys of the machines that build them.
    fits: facts of the hosts to which a cufile.json is fitted; without its facts, a host's file is empty.
    """
    cache = paths.cache()
    return RunFiles(
        fleet_dir=fleet_dir,
        program=hostapp.keep(cache / "program"),
        modules=shelf.folder if shelf is not None else cache / "modules",
        certificates=cache / "certificates",
        builders=shelf.keys.folder if shelf is not None else cache / "builders",
        fits=fits or {},
    )


def sha256(path: Path) -> str | None:
    """The digest of a file in hexadecimal; None where there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
