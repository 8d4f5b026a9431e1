"""Plan and provision the root of an image: the desired state of one host of the fleet, applied in one call.

What only the kernel that will run can show is left out, and named: the first boot does it, and the gate judges it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from gdsdeploy.builds import assign, run_archives
from gdsdeploy.builds.assign import Supply, archive_of
from gdsdeploy.builds.run_archives import RunArchives
from gdsdeploy.converge import boot, build_facts, desired, plan_fleet
from gdsdeploy.converge.ansible import KINDS
from gdsdeploy.converge.diff import HostPlan, Result, change, plan
from gdsdeploy.converge.inventory import PEERMEM, RunFiles, inventory, load_order
from gdsdeploy.errors import ConvergeFailed, FleetInvalid, HostUnfit, NotProvisioned
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.apply.modules import ARCHIVE
from gdsdeploy.host.model import expectation
from gdsdeploy.image.ask import Parcel, ask
from gdsdeploy.image.root import ImageRoot, open_root
from gdsdeploy.lock.signatures import lock_order
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Lock, Target
from gdsdeploy.ssh.endpoint import Answer, malformed, refusal
from gdsdeploy.zipapp import hostapp

Say = Callable[[str], None]
Resources = Sequence[Mapping[str, Any]]

#: Resources that set something in the boot loader.
OF_LOADER: Final = ("boot_arguments", "boot_default")
#: Takes out what belongs to one host, after packages that may have brought it.
_LAST: Final = {"resource": "image", "instance": "", "desired": {}}


def _without_host(state: Mapping[str, Any]) -> dict[str, Any]:
    """The expectation of whichever host boots."""
    return {"content": replace(expectation.from_json(state["content"]), host="").to_json()}


#: Resource → its desired state in an image.
_CHANGED: Final[Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = {
    # The kernel that runs is that of the machine that makes the image.
    "preflight": lambda state: {**state, "unasked_kernel": ""},
    "expectation": _without_host,
    # The firmware is that of the hosts.
    "signing": lambda state: {**state, "enrols": False},
    # Services are enabled.
    "loaded": lambda state: {**state, "modules": [], "units": {}},
}


@dataclass(frozen=True)
class Left:
    """Something that isn't done in an image; ``kind`` as of a change."""

    kind: str
    subjects: tuple[str, ...]
    #: the sentence for people
    words: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class ImagePlan:
    """What provision would change in an image, and what it leaves to others; has_loader: whether GRUB is set up."""

    plan: HostPlan
    left: tuple[Left, ...]
    has_loader: bool


@dataclass(frozen=True)
class Image:
    """The open root of an image, and the host of the fleet whose desired state it gets.

    fleet: as :func:`fleet_of_image` has it.  waivers: checks of which single hosts have waivers.
    """

    root: ImageRoot
    fleet: Fleet
    lock: Lock
    fleet_path: Path
    name: str
    shelf: RunArchives
    waivers: Sequence[str]

    @property
    def profile(self) -> Profile:
        """The profile of its hosts."""
        return self.fleet.profiles[self.fleet.hosts[self.name].profile]

    @property
    def target(self) -> Target:
        """What the lock has for its hosts."""
        return self.lock.targets[self.fleet.hosts[self.name].profile]


@contextlib.contextmanager
def open_image(fleet: Fleet, lock: Lock, fleet_path: Path, name: str, folder: Path) -> Iterator[Image]:
    """Lock the root ``folder`` for the block.

    Raises FleetInvalid where there can be no image for the host ``name``, what open_root raises, and
    BuildCacheUnusable.
    """
    shared, waivers = fleet_of_image(fleet, name)
    os_name = lock.targets[fleet.hosts[name].profile].os
    with open_root(folder, os_name) as root, run_archives.open_run_archives(fleet_path) as shelf:
        yield Image(root, shared, lock, fleet_path, name, shelf, waivers)


def plan_image(image: Image, line: Say = lambda _: None) -> ImagePlan:
    """What provision would change; changes nothing.  line: takes what the host program says.

    Raises FleetInvalid, HostUnfit, MissingProgram and Interrupted.
    """
    run_files = _run_files(image)
    states = plan_fleet.desired_documents(image.fleet, image.lock, run_files, [image.name])[image.name]["variants"]
    variants = {name: of_image(resources) for name, resources in states.items()}
    document = {"version": desired.VERSION, "variants": variants}
    reply = ask(image.root, plan_fleet.CHECK, _json(document), program=hostapp.build(), changes=False, line=line)
    results = plan_fleet.require_variants(Answer(image.name, reply, None, 0.0), document)
    facts = build_facts.build_facts_from(results, image.profile, image.target, document)
    supply = assign.supplies(image.fleet, image.lock, {image.name: facts}, image.shelf.look)[image.name]
    # What signs that which a machine hands over would be in every host of the image.
    supply = replace(supply, delivers=False)
    has_loader = any(one.report.get("loader") for one in next(iter(results.values())) if one.name == "image")
    if not has_loader:
        results = {name: _without_loader(listed) for name, listed in results.items()}
    planned = plan(image.name, results, supply, plan_fleet.sha256(archive_of(supply.want, image.shelf.folder)))
    left = left_out(image.profile, image.target, image.waivers, has_loader=has_loader)
    return ImagePlan(planned, tuple(left), has_loader)


def provision_image(image: Image, planned: ImagePlan, line: Say = lambda _: None) -> list[Change]:
    """Make the changes of ``planned``, and return those that were made.

    Raises HostUnfit and NotProvisioned before anything is changed, and what went wrong after that; a second call
    continues where this one stopped.
    """
    supply = _require_provisionable(image, planned.plan)
    archive = archive_of(supply.want, image.shelf.folder) if supply.source == "cache" else None
    values = plan_fleet.variables(
        inventory(image.fleet, image.lock, replace(_run_files(image), supplies={image.name: supply}))
    )[image.name][1]
    digest = plan_fleet.sha256(archive) if archive else None
    resources = of_image(desired.resources_of(values, desired.Files(), archive=digest or ""))
    if not planned.has_loader:
        resources = without_loader(resources)
    origin = image.shelf.keys.origin(supply.origin) if archive else None
    if origin is not None:
        resources = [_with_key(entry, origin.public) for entry in resources]
    parcel = Parcel(archive, ARCHIVE.format(image.target.kernel.release)) if archive else None
    document = {"version": desired.VERSION, "resources": resources}
    argv = ("apply", "--json", "--desired", "-")
    return _changes(image, argv, _json(document), parcel, line)


def remove_image(image: Image, line: Say = lambda _: None) -> list[Change]:
    """Take back what was provisioned, and return the changes; raises what went wrong."""
    fleet_id, serial = lock_order(image.fleet, image.lock)
    order = ("--fleet-id", fleet_id, "--lock-serial", str(serial)) if fleet_id else ()
    return _changes(image, ("remove", "--json", *order), b"", None, line)


def _require_provisionable(image: Image, planned: HostPlan) -> Supply:
    if planned.refusals:
        hint = next((one.hint for one in planned.refusals if one.hint), None)
        raise HostUnfit(f"{image.root.path}: {planned.refusal}", hint=hint)
    supply = planned.supply
    assert supply is not None
    if supply.lack:
        hint = "Provision a machine that builds for this profile first, so that the controller keeps its build"
        raise NotProvisioned(f"{image.root.path}: no machine builds its modules: {supply.lack}", hint=hint)
    if supply.mode == "build" and image.profile.signing is not None:
        hint = "Provision a machine that builds for this profile first: the image then receives its modules"
        words = "its profile signs modules, and the key must not be in an image"
        raise HostUnfit(f"{image.root.path}: can't build the modules: {words}", hint=hint)
    return supply


def _changes(image: Image, argv: Sequence[str], stdin: bytes, parcel: Parcel | None, line: Say) -> list[Change]:
    """What the host program has changed; raises the error in its answer."""
    program = hostapp.build()
    reply = ask(image.root, argv, stdin, program=program, changes=True, parcel=parcel, line=line)
    for note in reply.get("notes") or ():
        line(f"note: {note}")
    where, error = str(image.root.path), reply.get("error")
    if isinstance(error, Mapping):
        kind = HostUnfit if error.get("kind") == "refused" else KINDS.get(str(error.get("kind")), ConvergeFailed)
        raise refusal(where, error, kind)
    try:
        return [change(entry) for result in reply["resources"] for entry in result["changes"]]
    except (KeyError, TypeError, ValueError) as problem:
        raise malformed(where, "", str(problem)) from None


def _run_files(image: Image) -> RunFiles:
    folder = image.fleet_path.resolve().parent
    return plan_fleet.write_run_files(image.fleet, image.lock, folder, None, image.shelf)


def _without_loader(results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.name not in OF_LOADER]


def _with_key(entry: Mapping[str, Any], public: str) -> dict[str, Any]:
    more = {"builder_key": public} if entry["resource"] == "modules" else {}
    return {**entry, "desired": {**entry["desired"], **more}}


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode()


def of_image(resources: Resources) -> list[dict[str, Any]]:
    """The resources of an image, given those of a host of its profile."""
    changed = [
        {**entry, "desired": _CHANGED.get(entry["resource"], dict)(entry["desired"])}
        for entry in resources
        if entry["resource"] != "reboot"
    ]
    return [*changed, dict(_LAST)]


def without_loader(resources: Resources) -> list[dict[str, Any]]:
    """The resources of an image without a boot loader, such as one that boots from the network."""
    return [dict(entry) for entry in resources if entry["resource"] not in OF_LOADER]


def left_out(profile: Profile, target: Target, waivers: Sequence[str], *, has_loader: bool) -> list[Left]:
    """What is left to the first boot, to whom boots the hosts, and to a later provision.

    waivers: checks of which single hosts have waivers.
    """
    entries = _of_kernel(profile, target, has_loader=has_loader) if profile.own_kernel else []
    if waivers:
        words = f"waivers of single hosts aren't part of it: {', '.join(waivers)}"
        entries.append(Left("waiver", tuple(waivers), words))
    return [*entries, Left("gate", (), "the gate judges the first boot")] if profile.gate.enabled else entries


def _of_kernel(profile: Profile, target: Target, *, has_loader: bool) -> list[Left]:
    release, arguments = target.kernel.release, tuple(boot.arguments(profile))
    modules = (*load_order(profile, target), *([PEERMEM] if profile.rdma == "peermem" else []))
    missing = "" if has_loader else ": no boot loader is set up in the image"
    entries = [
        Left("load", modules, f"the first boot loads {', '.join(modules)}"),
        Left("reboot", (release,), f"the first boot has to be of kernel {release}{missing}"),
    ]
    if arguments and not has_loader:
        words = f"what boots the hosts has to pass the kernel's arguments: {' '.join(arguments)}"
        entries.append(Left("arguments", arguments, words))
    if profile.signing is not None:
        certificate = profile.signing.certificate
        words = f"on each host with Secure Boot a person enrols the key {certificate}: gdsdeploy provision begins that"
        entries.append(Left("enrol", (certificate,), words))
    return entries


def fleet_of_image(fleet: Fleet, name: str) -> tuple[Fleet, list[str]]:
    """The fleet with the waivers that hold for every host like ``name``, and the checks of its other waivers.

    Raises FleetInvalid if there can be no image for ``name``.
    """
    if name not in fleet.hosts:
        raise FleetInvalid(f"{name} is a builder, and images are for hosts", hint="Name a host with --limit")
    profile = fleet.hosts[name].profile
    if fleet.profiles[profile].fit is not None:
        raise FleetInvalid(
            f"profile {profile} fits cufile.json to each host (fit), and an image has one for all of them",
            hint="Leave fit out of the image's profile, and provision the hosts with fit once they have booted",
        )
    alike = [other for other, host in fleet.hosts.items() if host.profile == profile]
    shared = [one for one in fleet.waivers if all(_holds(one.hosts, other) for other in alike)]
    single = [one.check for one in fleet.waivers if one not in shared and _holds(one.hosts, name)]
    return fleet.model_copy(update={"waivers": tuple(shared)}), single


def _holds(patterns: Sequence[str], name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
