"""Who builds kernel modules, and who receives them: fleet, lock and what the machines told → one supply each; pure.

Machines with the same want can use the same modules.  A want has what is known before anything is built: the lock's
packages, and of the machine what it can tell without headers and compiler.  The build that serves it has a key of its
own, with everything that went into it (``host/kmod/key.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock, Target

#: Parts of the lock that decide what is built.
_DECISIVE = {"kernel-image", "kernel-headers", "driver-source", "nvidia-fs-source", "doca"}
NONE = "none"

#: Looks for a kept build: want → its manifest, None when there is none.
Cached = Callable[[str], Mapping[str, Any] | None]


@dataclass(frozen=True)
class Told:
    """What a machine says of itself on which the builds that fit it depend; what it cannot tell is as most have it."""

    arch: str = ""
    #: digest of what OFED's RDMA core exports, or ``none``
    ofed: str = NONE
    #: ``enforced`` where the kernel refuses unsigned modules
    signatures: str = "free"
    #: file and sha256 of one of the locked kernel's own modules; both empty while that kernel is not installed
    kernel_build: tuple[str, str] = ("", "")
    #: whether DKMS there has built everything for the locked kernel
    built: bool = False
    #: whether the modules that it received are in place, and of the locked versions
    received: bool = False


@dataclass(frozen=True)
class Supply:
    """Where the modules of one machine come from."""

    mode: Literal["build", "receive"]
    #: as the second half of a sentence that begins with the machine
    why: str
    #: machines of equal wants can use the same modules
    want: str
    #: the machine that builds for this one; empty: none has to
    builder: str = ""
    #: whether the controller has kept a build that serves it
    cached: bool = False
    #: why nobody builds for it, as a sentence; empty: somebody does
    lack: str = ""
    #: whether it is the one of all that build the same who hands it over
    delivers: bool = False

    @property
    def source(self) -> Literal["build", "host", "cache", "kept", "none"]:
        """In one word, for machines; ``kept``: what is in place stays."""
        if self.mode == "build":
            return "build"
        return "cache" if self.cached else "host" if self.builder else "none" if self.lack else "kept"


def want(target: Target, told: Told, *, signing: str = "", kernel: str = "") -> str:
    """Names what modules ``target`` needs on a machine that is as ``told``; 32 hexadecimal digits.

    signing: whose signature the modules have to have; empty: that of nobody in particular.
    kernel: sha256 that tells its kernel from another build of the same release.
    """
    packages = [p for p in target.packages if p.part in _DECISIVE]
    lines = [f"{p.package} {p.version} {p.sha256}" for p in packages]
    # Where the lock has OFED, every machine is going to have that one.
    ofed = "locked" if any(p.part == "doca" for p in packages) else told.ofed
    lines += [target.kernel.release, told.arch or target.arch, ofed, told.signatures, signing, kernel]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def by_intent(fleet: Fleet, lock: Lock, name: str) -> Supply:
    """The supply of a machine that has not told anything."""
    profile = fleet.profiles[fleet.everyone()[name].profile]
    wanted, wish = _want(fleet, lock, name, Told()), fleet.modules(name)
    if wish == "build" or (wish == "auto" and profile.builder is None):
        return Supply("build", _own(fleet, name), wanted)
    if profile.builder is None:
        return Supply("receive", "the fleet file says so", wanted, lack="no host of its key builds")
    return Supply("receive", f"{profile.builder} builds for its profile", wanted, builder=profile.builder)


def supplies(fleet: Fleet, lock: Lock, told: Mapping[str, Told], cached: Cached) -> dict[str, Supply]:
    """The supply of every machine in ``told``, which are those that take part and have answered."""
    wants = _wants(fleet, lock, told, cached)
    found: dict[str, Supply] = {}
    for name in told:
        if fleet.modules(name) == "build":
            found[name] = Supply("build", _own(fleet, name), wants[name])
        elif fleet.modules(name) == "auto" and told[name].built:
            found[name] = Supply("build", "it has built them itself", wants[name])
    waiting = [name for name in told if name not in found]
    for name in waiting:
        supply = _served(fleet, name, wants, found, told[name], cached)
        if supply is not None:
            found[name] = supply
    for name in [name for name in waiting if name not in found]:
        found[name] = _first(fleet, name, wants, found, waiting)
    # Those who build are also asked whether the controller has their build already.
    for wanted in dict.fromkeys(wants.values()):
        cached(wanted)
    delivering = {supply.builder for supply in found.values() if supply.builder}
    delivered = {wants[name] for name in delivering}
    for name, supply in found.items():
        if supply.mode == "build" and supply.want not in delivered:
            delivered.add(supply.want)
            delivering.add(name)
    return {name: replace(found[name], delivers=name in delivering) for name in told}


def _served(
    fleet: Fleet, name: str, wants: Mapping[str, str], found: Mapping[str, Supply], told: Told, cached: Cached
) -> Supply | None:
    """The supply of a machine that needs no one to be chosen to build; None: somebody has to be."""
    wanted = wants[name]
    if cached(wanted) is not None:
        return Supply("receive", "the controller has kept a build of its key", wanted, cached=True)
    pinned = fleet.profiles[fleet.everyone()[name].profile].builder
    if told.received:
        return Supply("receive", "what it has received is in place", wanted)
    builders = [item for item, supply in found.items() if supply.mode == "build" and wants[item] == wanted]
    if builders:
        builder = pinned if pinned in builders else builders[0]
        return Supply("receive", f"{builder} builds for its key", wanted, builder=builder)
    if pinned is not None and pinned not in wants:
        lack = f"{pinned}, the builder of its profile, is not in this run or did not answer, and no build is kept"
        return Supply("receive", f"{pinned} builds for its profile", wanted, lack=lack)
    return None


def _first(
    fleet: Fleet, name: str, wants: Mapping[str, str], found: Mapping[str, Supply], waiting: Sequence[str]
) -> Supply:
    """The first of the machines that wait for the same modules, and may build, builds for all of them."""
    alike = [item for item in waiting if (wants[item] == wants[name] and item not in found) or item == name]
    alike += [item for item in found if wants[item] == wants[name] and found[item].mode == "build"]
    able = [item for item in alike if fleet.modules(item) != "receive"]
    if not able:
        lack = "the fleet file has it receive its modules, and no host of its key builds"
        return Supply("receive", "the fleet file says so", wants[name], lack=lack)
    chosen = next((item for item in able if item in found), able[0])
    if chosen != name:
        return Supply("receive", f"{chosen} builds for its key", wants[name], builder=chosen)
    pinned = fleet.profiles[fleet.everyone()[name].profile].builder
    if pinned is not None:
        why = f"{pinned}, the builder of its profile, builds for another key"
    else:
        why = f"it is the first of {len(alike)} hosts of its key" if len(alike) > 1 else "no other host has its key"
    return Supply("build", why, wants[name])


def _wants(fleet: Fleet, lock: Lock, told: Mapping[str, Told], cached: Cached) -> dict[str, str]:
    """Machine → want; of machines whose kernels are different builds of one release, only some keep the plain one."""
    plain = {name: _want(fleet, lock, name, item) for name, item in told.items()}
    reference: dict[str, tuple[str, str]] = {}
    for wanted in dict.fromkeys(plain.values()):
        known = [_build_of(cached(wanted)), *(told[name].kernel_build for name in plain if plain[name] == wanted)]
        reference[wanted] = next((item for item in known if item[0]), ("", ""))
    found = {}
    for name, wanted in plain.items():
        file, digest = told[name].kernel_build
        same = not file or file != reference[wanted][0] or digest == reference[wanted][1]
        found[name] = wanted if same else _want(fleet, lock, name, told[name], kernel=digest)
    return found


def _want(fleet: Fleet, lock: Lock, name: str, told: Told, *, kernel: str = "") -> str:
    profile = fleet.everyone()[name].profile
    signing, who = fleet.profiles[profile].signing, ""
    if signing is not None:
        # The key is a file of the machines that build: another fleet's, of the same name, is another key.
        machines = {item: fleet.connection(item).address for item in fleet.everyone()}
        who = f"{signing!r} {sorted(machines.items())}"
    return want(lock.targets[profile], told, signing=who, kernel=kernel)


def _build_of(manifest: Mapping[str, Any] | None) -> tuple[str, str]:
    known = (manifest or {}).get("kernel_build")
    return (str(known.get("file", "")), str(known.get("sha256", ""))) if isinstance(known, Mapping) else ("", "")


def _own(fleet: Fleet, name: str) -> str:
    if name in fleet.builders:
        return "it is a builder"
    return "the fleet file says so" if fleet.modules(name) == "build" else "no other host has its key"
