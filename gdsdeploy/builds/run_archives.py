"""The archives of built modules that one run has: taken from the cache, handed over by builders, kept for later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from gdsdeploy import console
from gdsdeploy.builds import cache as buildcache
from gdsdeploy.builds.assign import CachedBuild, Supply, archive_of
from gdsdeploy.builds.builder_keys import BuilderKeys
from gdsdeploy.builds.cache import BuildCache
from gdsdeploy.errors import BuildCacheUnusable, GdsError, SigningKeyUnusable
from gdsdeploy.host.archive import pack, provenance
from gdsdeploy.host.errors import HostError, PackError
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock


class RunArchives:
    """A run's archives, each in ``folder`` under the name of its want; ``keys``: of the machines that build them."""

    def __init__(self, cache: BuildCache, folder: Path, keys: BuilderKeys) -> None:
        self.folder, self.keys = folder, keys
        self._cache = cache
        self._first_fingerprints = keys.fingerprints()
        self._lookups: dict[tuple[str, tuple[str, ...]], CachedBuild | None] = {}
        #: want → size and time of an archive that is in the cache, too
        self._in_cache: dict[str, tuple[int, int]] = {}

    def look(self, want: str, builders: Sequence[str]) -> CachedBuild | None:
        """The kept build by one of ``builders`` that serves ``want``, which is then in the folder; None without one."""
        lookup = want, tuple(builders)
        if lookup not in self._lookups:
            path = archive_of(want, self.folder)
            origins = [origin for origin in map(self.keys.origin, builders) if origin is not None]
            entry = self._cache.take(want, path, origins)
            self._lookups[lookup] = None if entry is None else CachedBuild(entry.builder, entry.manifest)
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
        differences = provenance.differences(pack.read_manifest(str(path), origin), expected)
        if differences:
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
