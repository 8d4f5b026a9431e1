"""Which machines build kernel modules, and which receive them: fleet, lock and facts → one supply each.

Machines with the same want can use the same modules.  A want has what is known before the build: the lock's packages,
and facts of the machine.  A build also has a key, with everything that went into it (``host/archive/key.py``).

The archives that one run has are taken from the cache, handed over by builders, and kept for later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gdsdeploy import console
from gdsdeploy.builds import cache as buildcache
from gdsdeploy.builds.cache import BuildCache, BuilderKeys, CacheEntry
from gdsdeploy.errors import BuildCacheUnusable, GdsError, SigningKeyUnusable
from gdsdeploy.host.archive import pack, provenance
from gdsdeploy.host.archive.key import NONE
from gdsdeploy.host.errors import HostError, PackError
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import BUILT_FROM, Lock, Target

#: Looks for a kept build: want, and the machines that may have built it → the build, None when there is none.
FindBuild = Callable[[str, Sequence[str]], CacheEntry | None]


@dataclass(frozen=True)
class BuildFacts:
    """The facts of a machine that decide which builds fit it; unknown facts have the most common value."""

    arch: str = ""
    #: digest of what OFED's RDMA core exports, or ``none``
    ofed: str = NONE
    #: ``enforced`` where the kernel refuses unsigned modules
    signatures: str = "free"
    #: file and sha256 of one of the locked kernel's own modules; both empty while that kernel is not installed
    kernel_build: tuple[str, str] = ("", "")
    #: whether DKMS there has built everything for the locked kernel; it then keeps that, and supplies no other machine
    built: bool = False
    #: whether the modules that it received are in place, and of the locked versions
    received: bool = False
    #: the machine that has built those; empty: it doesn't know
    builder: str = ""


#: ``packaged``: locked packages bring the modules, and no machine builds.
Mode = Literal["build", "receive", "packaged"]


@dataclass(frozen=True)
class Supply:
    """Where the modules of one machine come from."""

    mode: Mode
    #: as the second half of a sentence that begins with the machine
    why: str
    #: machines of equal wants can use the same modules
    want: str
    #: the machine that builds for this one; empty: none has to
    builder: str = ""
    #: whether the controller has kept a build that serves it
    cached: bool = False
    #: why no machine builds for it, as a sentence; empty: one does
    lack: str = ""
    #: whether, of all machines that build the same, this one hands it over
    delivers: bool = False
    #: the machine whose build it runs; for modules that it received earlier, the one that it names; empty: unknown
    origin: str = ""

    @property
    def source(self) -> Literal["build", "packaged", "host", "cache", "kept", "none"]:
        """In one word, for machines; ``kept``: what is in place stays."""
        if self.mode != "receive":
            return self.mode
        return "cache" if self.cached else "host" if self.builder else "none" if self.lack else "kept"


def want(target: Target, facts: BuildFacts, *, signing: str = "", kernel: str = "") -> str:
    """The name, 32 hexadecimal digits, of the modules that ``target`` needs on a machine with these facts.

    signing: whose signature the modules need; empty: anyone's.
    kernel: sha256 that tells its kernel from another build of the same release.
    """
    packages = [p for p in target.packages if p.part in BUILT_FROM]
    lines = [f"{p.package} {p.version} {p.sha256}" for p in packages]
    # Where the lock has OFED, every machine is going to have that one.
    ofed = "locked" if any(p.part == "doca" for p in packages) else facts.ofed
    lines += [target.kernel.release, facts.arch or target.arch, ofed, facts.signatures, signing, kernel]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def by_intent(fleet: Fleet, lock: Lock, name: str) -> Supply:
    """The supply of a machine that was not asked."""
    profile = fleet.profiles[fleet.machine(name).profile]
    want, setting = _want(fleet, lock, name, BuildFacts()), fleet.modules(name)
    if setting == "packaged":
        return _packaged(lock.targets[fleet.machine(name).profile], want)
    if setting == "build" or (setting == "auto" and profile.builder is None):
        return Supply("build", _own(fleet, name), want, origin=name)
    if profile.builder is None:
        return Supply("receive", "the fleet file says so", want, lack="no host of its key builds")
    why = f"{profile.builder} builds for its profile"
    return Supply("receive", why, want, builder=profile.builder, origin=profile.builder)


def supplies(fleet: Fleet, lock: Lock, facts: Mapping[str, BuildFacts], cached: FindBuild) -> dict[str, Supply]:
    """The supply of every machine in ``facts``, which are those that take part and have answered."""
    wants = _wants(fleet, lock, facts, cached)
    allowed = {name: fleet.suppliers(name) for name in facts}
    chosen: dict[str, Supply] = {}
    for name in facts:
        match fleet.modules(name):
            case "packaged":
                chosen[name] = _packaged(lock.targets[fleet.machine(name).profile], wants[name])
            case "build":
                chosen[name] = Supply("build", _own(fleet, name), wants[name], origin=name)
            case "auto" if facts[name].built:
                chosen[name] = Supply("build", "it has built them itself", wants[name], origin=name)
    # Suppliers first: the others may receive what they build.
    rest = [name for name in facts if name not in chosen]
    for name in sorted(rest, key=lambda name: name not in allowed[name]):
        building = {peer for peer, supply in chosen.items() if (supply.mode, supply.want) == ("build", wants[name])}
        builders = [peer for peer in allowed[name] if peer in building]
        chosen[name] = _supply(fleet, name, wants, facts[name], builders, cached(wants[name], allowed[name]))
    # A kept build serves every run: its builder doesn't pack another one, which its hosts would then have to receive.
    cached_wants = {wants[name] for name in facts if cached(wants[name], allowed[name]) is not None}
    delivering = _delivering(chosen, allowed, cached_wants)
    return {name: replace(chosen[name], delivers=name in delivering) for name in facts}


def _packaged(target: Target, want: str) -> Supply:
    packages = ", ".join(f"{name} {version}" for name, version in sorted(target.versions_of_modules().items()))
    return Supply("packaged", f"the lock has {packages}", want)


def _supply(
    fleet: Fleet,
    name: str,
    wants: Mapping[str, str],
    facts: BuildFacts,
    builders: Sequence[str],
    cached_build: CacheEntry | None,
) -> Supply:
    """The supply of a machine that doesn't have to build; ``builders``: suppliers of it that build in this run."""
    want, profile = wants[name], fleet.profiles[fleet.machine(name).profile]
    pinned = profile.builder
    if cached_build is not None:
        why = "the controller has kept a build of its key"
        return Supply("receive", why, want, cached=True, origin=cached_build.builder)
    if facts.received:
        return Supply("receive", "what it has received is in place", want, origin=facts.builder)
    if builders:
        return Supply("receive", f"{builders[0]} builds for its key", want, builder=builders[0], origin=builders[0])
    if pinned is not None and pinned not in wants and not profile.builder_fallback:
        lack = f"{pinned}, the builder of its profile, is not in this run or did not answer, and no build is kept"
        return Supply("receive", f"{pinned} builds for its profile", want, lack=lack)
    if fleet.modules(name) == "receive":
        lack = "the fleet file has it receive its modules, and no host that may supply it builds for its key"
        return Supply("receive", "the fleet file says so", want, lack=lack)
    return Supply("build", _alone(fleet, name, wants), want, origin=name)


def _alone(fleet: Fleet, name: str, wants: Mapping[str, str]) -> str:
    """Why a machine builds that may also receive."""
    supplier = next(iter(fleet.suppliers(name)), None)
    if supplier is None:
        return "the fleet file names no machine that may supply it: put one into builders, or give one modules: build"
    if supplier not in wants:
        return f"{supplier}, which would supply it, is not in this run or did not answer"
    return f"{supplier}, which would supply it, builds for another key"


def _delivering(
    chosen: Mapping[str, Supply], allowed: Mapping[str, Sequence[str]], cached_wants: AbstractSet[str]
) -> set[str]:
    """Those whose builds others receive, and of each other want without a kept build one supplier, for the cache."""
    delivering = {supply.builder for supply in chosen.values() if supply.builder}
    delivered = {supply.want for supply in chosen.values() if supply.builder} | cached_wants
    for name, supply in chosen.items():
        if supply.mode == "build" and name in allowed[name] and supply.want not in delivered:
            delivered.add(supply.want)
            delivering.add(name)
    return delivering


def _wants(fleet: Fleet, lock: Lock, facts: Mapping[str, BuildFacts], cached: FindBuild) -> dict[str, str]:
    """Machine → want; of machines whose kernels are different builds of one release, only some keep the plain one."""
    plain = {name: _want(fleet, lock, name, host_facts) for name, host_facts in facts.items()}
    reference: dict[str, tuple[str, str]] = {}
    for name, want in plain.items():
        if want not in reference:
            allowed = fleet.suppliers(name)
            # A supplier's kernel first: what others claim of theirs only keeps them apart.
            alike = sorted((peer for peer in plain if plain[peer] == want), key=lambda peer: peer not in allowed)
            builds = [_build_of(cached(want, allowed)), *(facts[peer].kernel_build for peer in alike)]
            reference[want] = next((build for build in builds if build[0]), ("", ""))
    wants = {}
    for name, want in plain.items():
        file, digest = facts[name].kernel_build
        same = not file or file != reference[want][0] or digest == reference[want][1]
        wants[name] = want if same else _want(fleet, lock, name, facts[name], kernel=digest)
    return wants


def _want(fleet: Fleet, lock: Lock, name: str, facts: BuildFacts, *, kernel: str = "") -> str:
    profile = fleet.machine(name).profile
    signing, signer = fleet.profiles[profile].signing, ""
    if signing is not None:
        # The key is a file of the machines that build: another fleet's, of the same name, is another key.
        # All of its builds are signed, so they fit kernels that enforce signatures, too.
        facts = replace(facts, signatures=BuildFacts.signatures)
        machines = {machine: fleet.connection(machine).address for machine in fleet.everyone()}
        signer = f"{signing!r} {sorted(machines.items())}"
    return want(lock.targets[profile], facts, signing=signer, kernel=kernel)


def _build_of(cached_build: CacheEntry | None) -> tuple[str, str]:
    build = cached_build.manifest.get("kernel_build") if cached_build is not None else None
    return (str(build.get("file", "")), str(build.get("sha256", ""))) if isinstance(build, Mapping) else ("", "")


def _own(fleet: Fleet, name: str) -> str:
    if name in fleet.builders:
        return "it is a builder"
    return "the fleet file says so" if fleet.modules(name) == "build" else "no other host has its key"


def archive_of(want: str, directory: Path) -> Path:
    """Where a run has the modules for machines that want ``want``."""
    return directory / f"{want}.tar"


class RunArchives:
    """A run's archives, each in ``folder`` under the name of its want; ``keys``: of the machines that build them."""

    def __init__(self, cache: BuildCache, folder: Path, keys: BuilderKeys) -> None:
        self.folder, self.keys = folder, keys
        self._cache = cache
        self._first_fingerprints = keys.fingerprints()
        self._lookups: dict[tuple[str, tuple[str, ...]], CacheEntry | None] = {}
        #: want → size and time of an archive that is in the cache, too
        self._in_cache: dict[str, tuple[int, int]] = {}

    def look(self, want: str, builders: Sequence[str]) -> CacheEntry | None:
        """The kept build by one of ``builders`` that serves ``want``, which is then in the folder; None without one."""
        lookup = want, tuple(builders)
        if lookup not in self._lookups:
            path = archive_of(want, self.folder)
            origins = [origin for origin in map(self.keys.origin, builders) if origin is not None]
            entry = self._cache.take(want, path, origins)
            self._lookups[lookup] = entry
            if entry is not None:
                self._in_cache[want] = _state(path)
        return self._lookups[lookup]

    def keep(self, lock: Lock, fleet: Fleet, supplies: Mapping[str, Supply]) -> list[GdsError]:
        """Keep what builders have handed over since; returns the errors of what could not be kept."""
        errors: list[GdsError] = []
        for name, supply in supplies.items():
            path = archive_of(supply.want, self.folder)
            if not supply.delivers or not path.exists() or self._in_cache.get(supply.want) == _state(path):
                continue
            try:
                self._keep(path, supply.want, name, expected_manifest(fleet, lock, name))
                self._in_cache[supply.want] = _state(path)
            except BuildCacheUnusable as error:
                errors.append(error)
            except (HostError, SigningKeyUnusable) as error:
                words = f"what {name} built cannot be kept: {error.message}"
                errors.append(BuildCacheUnusable(words, hint=error.hint or None))
        return errors

    def _keep(self, path: Path, want: str, builder: str, expected: Mapping[str, str]) -> None:
        origin = self.keys.origin(builder)
        if origin is None:
            raise PackError("the controller has no public key of it", "provision it again")
        if differences := provenance.differences(pack.read_manifest(str(path), origin), expected):
            raise PackError("; ".join(differences), "it is not what the lock has; look at that machine")
        self._cache.put(path, want, origin)

    def first_keys(self) -> dict[str, str]:
        """Machine → fingerprint of the key that it has shown for the first time since the run began."""
        return {name: key for name, key in self.keys.fingerprints().items() if name not in self._first_fingerprints}


def expected_manifest(fleet: Fleet, lock: Lock, name: str) -> dict[str, str]:
    """What the manifest of modules for a machine has to claim, as ``provenance.differences`` takes it."""
    profile = fleet.machine(name).profile
    target = lock.targets[profile]
    nvidia_fs = target.nvidia_fs if fleet.profiles[profile].mode == "nvidia-fs" else None
    return {
        "kernel_release": target.kernel.release,
        "driver_version": target.driver.version,
        "driver_flavour": target.driver.flavour,
        "nvidia_fs_version": nvidia_fs.version if nvidia_fs is not None else "",
    }


@contextmanager
def open_run_archives(fleet_path: Path) -> Iterator[RunArchives]:
    """The shelf of a run that begins; it is gone when the run ends.  Raises BuildCacheUnusable."""
    cache = buildcache.default(console.warn)
    with cache.run() as folder:
        yield RunArchives(cache, folder, BuilderKeys.of(fleet_path))


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size
