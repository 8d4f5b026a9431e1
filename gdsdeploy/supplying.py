"""The archives of built modules that one run has: taken from the cache, handed over by builders, kept for later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gdsdeploy import buildcache, console
from gdsdeploy.buildcache import BuildCache
from gdsdeploy.builderkeys import BuilderKeys
from gdsdeploy.builds import Kept, Supply, Told
from gdsdeploy.errors import BuildCacheUnusable, GdsError, SigningKeyUnusable
from gdsdeploy.host.apply.model import INSTALLS
from gdsdeploy.host.kmod import pack, provenance
from gdsdeploy.host.kmod.errors import KmodError, PackError
from gdsdeploy.inventory import archive_of
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Lock, Target
from gdsdeploy.model.text import Name
from gdsdeploy.plan import Variants, text

_NAME = TypeAdapter[str](Name)


class Shelf:
    """A run's archives, each in ``folder`` under the name of its want; ``keys``: of the machines that build them."""

    def __init__(self, cache: BuildCache, folder: Path, keys: BuilderKeys) -> None:
        self.folder, self.keys = folder, keys
        self._cache = cache
        self._known = keys.fingerprints()
        self._looked: dict[tuple[str, tuple[str, ...]], Kept | None] = {}
        self._taken: dict[str, tuple[int, int]] = {}

    def look(self, want: str, builders: Sequence[str]) -> Kept | None:
        """The kept build by one of ``builders`` that serves ``want``, which is then in the folder; None without one."""
        asked = want, tuple(builders)
        if asked not in self._looked:
            path = archive_of(want, self.folder)
            origins = [origin for origin in map(self.keys.origin, builders) if origin is not None]
            entry = self._cache.take(want, path, origins)
            self._looked[asked] = None if entry is None else Kept(entry.builder, entry.manifest)
            if entry is not None:
                self._taken[want] = _state(path)
        return self._looked[asked]

    def keep(self, lock: Lock, fleet: Fleet, supplies: Mapping[str, Supply]) -> list[GdsError]:
        """Keep what builders have handed over since; what could not be kept, which harms nobody now."""
        lost: list[GdsError] = []
        for name, supply in supplies.items():
            path = archive_of(supply.want, self.folder)
            if not supply.delivers or not path.exists() or self._taken.get(supply.want) == _state(path):
                continue
            try:
                self._keep(path, supply.want, name, wanted_of(fleet, lock, name))
                self._taken[supply.want] = _state(path)
            except BuildCacheUnusable as error:
                lost.append(error)
            except (KmodError, SigningKeyUnusable) as error:
                words = f"what {name} built cannot be kept: {error.message}"
                lost.append(BuildCacheUnusable(words, hint=error.hint or None))
        return lost

    def _keep(self, path: Path, want: str, builder: str, wanted: Mapping[str, str]) -> None:
        origin = self.keys.origin(builder)
        if origin is None:
            raise PackError("the controller has no public key of it", "provision it again")
        wrong = provenance.differences(pack.read_manifest(str(path), origin), wanted)
        if wrong:
            raise PackError("; ".join(wrong), "it is not what the lock has; look at that machine")
        self._cache.put(path, want, origin)

    def first_keys(self) -> dict[str, str]:
        """Machine → fingerprint of the key that it has shown for the first time since the run began."""
        return {name: key for name, key in self.keys.fingerprints().items() if name not in self._known}


def wanted_of(fleet: Fleet, lock: Lock, name: str) -> dict[str, str]:
    """What the manifest of modules for a machine has to claim, as ``provenance.differences`` takes it."""
    profile = fleet.everyone()[name].profile
    target = lock.targets[profile]
    nvidia_fs = target.nvidia_fs if fleet.profiles[profile].mode == "nvidia-fs" else None
    return {
        "kernel_release": target.kernel.release,
        "driver_version": target.driver.version,
        "driver_flavour": target.driver.flavour,
        "nvidia_fs_version": nvidia_fs.version if nvidia_fs is not None else "",
    }


@contextmanager
def opened(fleet_path: Path) -> Iterator[Shelf]:
    """The shelf of a run that begins; it is gone when the run ends.  Raises BuildCacheUnusable."""
    cache = buildcache.default(console.warn)
    with cache.run() as folder:
        yield Shelf(cache, folder, BuilderKeys.of(fleet_path))


def told(variants: Variants, profile: Profile, target: Target) -> Told:
    """What the answers of a machine say of the builds that fit it."""
    reports = [result.report for listed in variants.values() for result in listed if result.name == "modules"]
    key = next((found for report in reports if isinstance(found := report.get("key"), Mapping)), None)
    if key is None:
        return Told()
    installed = next((found for report in reports if isinstance(found := report.get("dkms"), list)), [])
    received = next((found for report in reports if isinstance(found := report.get("received"), Mapping)), None)
    build = key.get("kernel_build")
    kernel_build = ("", "")
    if isinstance(build, Mapping) and _has_kernel(variants, target):
        kernel_build = text(build.get("file", "")), text(build.get("sha256", ""))
    return Told(
        arch=text(key.get("arch") or ""),
        ofed=text(key.get("ofed") or Told.ofed),
        signatures=text(key.get("signatures") or Told.signatures),
        kernel_build=kernel_build,
        built=all(item in installed for item in built_by_dkms(profile, target)),
        received=_is_received(received, profile, target),
        builder=_name((received or {}).get("builder")),
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
    found = [result for listed in variants.values() for result in listed if result.name == "packages.kernel"]
    coming = {change.subject for result in found for change in result.changes if change.kind in INSTALLS}
    return bool(images) and bool(found) and not any(result.unknown for result in found) and not images & coming


def _is_received(value: Any, profile: Profile, target: Target) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("driver"), Mapping):
        return False
    driver, nvidia_fs = value["driver"], value.get("nvidia_fs")
    if (driver.get("version"), driver.get("flavour")) != (target.driver.version, target.driver.flavour):
        return False
    if profile.mode != "nvidia-fs" or target.nvidia_fs is None:
        return True
    return isinstance(nvidia_fs, Mapping) and nvidia_fs.get("version") == target.nvidia_fs.version


def _name(value: Any) -> str:
    """A machine's name, which may be part of a path; empty for anything else."""
    try:
        return _NAME.validate_python(value, strict=True)
    except ValidationError:
        return ""


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size
