"""The archives of built modules that one run has: taken from the cache, handed over by builders, kept for later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gdsdeploy import buildcache, console
from gdsdeploy.buildcache import BuildCache
from gdsdeploy.builds import Told
from gdsdeploy.errors import BuildCacheUnusable, GdsError
from gdsdeploy.host.apply.model import INSTALLS
from gdsdeploy.host.kmod.errors import KmodError
from gdsdeploy.inventory import archive_of
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Target
from gdsdeploy.plan import Variants, text


class Shelf:
    """A run's archives, each in ``folder`` under the name of its want."""

    def __init__(self, cache: BuildCache, folder: Path) -> None:
        self.folder = folder
        self._cache = cache
        self._looked: dict[str, Mapping[str, Any] | None] = {}
        self._taken: dict[str, tuple[int, int]] = {}

    def look(self, want: str) -> Mapping[str, Any] | None:
        """The manifest of the kept build that serves ``want``, which is then in the folder; None without one."""
        if want not in self._looked:
            path = archive_of(want, self.folder)
            entry = self._cache.take(want, path)
            self._looked[want] = None if entry is None else entry.manifest
            if entry is not None:
                self._taken[want] = _state(path)
        return self._looked[want]

    def keep(self) -> list[GdsError]:
        """Keep what builders have handed over since; what could not be kept, which harms nobody now."""
        lost: list[GdsError] = []
        for path in sorted(self.folder.glob("*.tar")):
            want = path.stem
            if path.name.startswith(".") or self._taken.get(want) == _state(path):
                continue
            try:
                self._cache.put(path, want)
                self._taken[want] = _state(path)
            except BuildCacheUnusable as error:
                lost.append(error)
            except KmodError as error:
                lost.append(BuildCacheUnusable(f"a build cannot be kept: {error.message}", hint=error.hint or None))
        return lost


@contextmanager
def opened() -> Iterator[Shelf]:
    """The shelf of a run that begins; it is gone when the run ends.  Raises BuildCacheUnusable."""
    cache = buildcache.default(console.warn)
    with cache.run() as folder:
        yield Shelf(cache, folder)


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


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size
