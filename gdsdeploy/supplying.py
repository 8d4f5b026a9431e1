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
from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.managed import ManagedFacts
from gdsdeploy.host.kmod.errors import KmodError
from gdsdeploy.inventory import archive_of
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Target
from gdsdeploy.plan import built_by_dkms


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


def told(facts: ManagedFacts, profile: Profile, target: Target, variables: Mapping[str, Any]) -> Told:
    """What a machine's answers say of the builds that fit it; ``variables``: those with which it would build."""
    answer, dkms = facts.answer("key"), facts.answer("dkms")
    if isinstance(answer, Unknown):
        return Told()
    installed = () if isinstance(dkms, Unknown) else dkms.get("installed", ())
    build = answer.get("kernel_build")
    kernel_build = ("", "")
    if isinstance(build, Mapping) and _has_kernel(facts, target):
        kernel_build = str(build.get("file", "")), str(build.get("sha256", ""))
    return Told(
        arch=str(answer.get("arch") or ""),
        ofed=str(answer.get("ofed") or Told.ofed),
        signatures=str(answer.get("signatures") or Told.signatures),
        kernel_build=kernel_build,
        built=all(item in installed for item in built_by_dkms(variables)),
        received=_is_received(answer.get("received"), profile, target),
    )


def _has_kernel(facts: ManagedFacts, target: Target) -> bool:
    """Whether the locked kernel is there already; provision replaces another build of the same release."""
    installed = facts.packages.installed
    if isinstance(installed, Unknown):
        return False
    images = [package for package in target.packages if package.part == "kernel-image"]
    return bool(images) and all(
        any(item.version == image.version for item in installed.get(image.package, ())) for image in images
    )


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
