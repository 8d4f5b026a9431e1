"""The desired state of a host of the fleet → that of an image from which hosts boot; pure.

What only the kernel that will run can show is left out, and named: the first boot does it, and the gate judges it.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from gdsdeploy.converge import boot
from gdsdeploy.converge.inventory import PEERMEM, load_order
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.model import expectation
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Target

Resources = Sequence[Mapping[str, Any]]

#: Resources that set something in the boot loader.
OF_LOADER: Final = ("boot_arguments", "boot_default")
#: Takes out what belongs to one host, after packages that may have brought it.
_LAST: Final = {"resource": "image", "instance": "", "desired": {}}


def _without_host(desired: Mapping[str, Any]) -> dict[str, Any]:
    """The expectation of whichever host boots."""
    return {"content": replace(expectation.from_json(desired["content"]), host="").to_json()}


#: Resource → its desired state in an image.
_CHANGED: Final[Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = {
    # The kernel that runs is that of the machine that makes the image.
    "preflight": lambda desired: {**desired, "unasked_kernel": ""},
    "expectation": _without_host,
    # The firmware is that of the hosts.
    "signing": lambda desired: {**desired, "enrols": False},
    # Services are enabled.
    "loaded": lambda desired: {**desired, "modules": [], "units": {}},
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


def left(profile: Profile, target: Target, waivers: Sequence[str], *, has_loader: bool) -> list[Left]:
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
