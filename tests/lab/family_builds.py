"""The driver's modules for a lab's system, compiled once in a run of the tests, whichever of its processes needs them.

A host packs its audited modules as a builder does, and the archive is kept with the builder's public key in the run's
folder.  Other labs of the system lock the same packages.  Their fleet files name a builder that is never there: hosts
receive from the controller's cache, as when a builder is switched off (docs/build-once.md).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import gdslab as labs
from gdsdeploy.builds import cache
from gdsdeploy.builds.assign import BuildFacts, want
from gdsdeploy.builds.cache import BuilderKeys
from gdsdeploy.host.archive.provenance import Origin
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Target
from gdslab import fleet
from gdslab.archive import controller_archive
from gdslab.state import Lab
from tests.lab.program import gdsdeploy
from tests.naming import RUN, unique

#: The name that archives are signed for, which each fleet file gives its builder.
BUILDER = "build1"
#: What every lab locks, whatever is newer, so that one build serves all: the family's story begins with it.
PINS = {"nvidia_fs": "2.26"}
_ARCHIVE, _KEY = "modules.tar", "builder.pub"


@dataclass(frozen=True)
class Build:
    """A kept archive, and its builder's public key (PEM)."""

    archive: Path
    key: str


@dataclass(frozen=True)
class Entry:
    """The place of one build, which this process alone reads and fills while it holds the entry."""

    folder: Path

    @property
    def build(self) -> Build | None:
        """None while nobody has put one."""
        if not self.folder.is_dir():
            return None
        return Build(self.folder / _ARCHIVE, (self.folder / _KEY).read_text())

    def put(self, archive: Path, key: str) -> Build:
        """Keep a copy.  It appears whole, by one rename; raises OSError if there is one already."""
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder.parent))
        shutil.copyfile(archive, new / _ARCHIVE)
        (new / _KEY).write_text(key)
        new.rename(self.folder)
        return Build(self.folder / _ARCHIVE, key)


@dataclass(frozen=True)
class Store:
    """The builds below ``folder``."""

    folder: Path

    @contextmanager
    def hold(self, name: str) -> Iterator[Entry]:
        """Hold the entry ``name``: who wants it meanwhile waits.  The lock is the kernel's, and ends with a process."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / f".{name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Entry(self.folder / name)

    def take(self, name: str, build: Callable[[Path], str]) -> Build:
        """The build ``name``; if there is none, ``build`` writes its archive to a path and returns its key."""
        with self.hold(name) as entry, tempfile.TemporaryDirectory(dir=self.folder) as folder:
            if (earlier := entry.build) is not None:
                return earlier
            archive = Path(folder) / _ARCHIVE
            return entry.put(archive, build(archive))


def of_run() -> Store:
    """The store that all processes of this run share."""
    return Store(Path(os.environ[RUN]) / "builds")


def name_of(target: Target) -> str:
    """The name of the build that ``target`` needs."""
    return f"{target.os}-{want(target, BuildFacts())}"


def name_builder(value: dict[str, Any], profile: str) -> None:
    """Give a profile of a fleet file the builder and the versions that the store's builds have."""
    value.setdefault("builders", {}).setdefault(BUILDER, profile)
    value["profiles"][profile].update(PINS, builder=BUILDER)


def supply(fleet_path: Path, target: Target) -> Build:
    """Put the build for ``target`` into the controller's cache, from the builder of this fleet file.

    If the run has none yet, a lab is made for a builder, and taken down when it has built.
    """
    build = of_run().take(name_of(target), lambda archive: _build(target, archive))
    BuilderKeys.of(fleet_path).path(BUILDER).write_text(build.key)
    cache.default(print).put(build.archive, want(target, BuildFacts()), Origin(BUILDER, build.key))
    return build


def _build(target: Target, archive: Path) -> str:
    """Have a builder of a lab of its own build, and take what it hands over; returns its public key."""
    lab = Lab(unique("builder"))
    try:
        labs.up(lab.name, os=target.os, vms=0, lights=1, nodes=0)
        value = yaml.safe_load(fleet.render(lab.name, lab.hosts(), lab.system, controller_archive(), lab.server))
        name_builder(value, "gds")
        # A fleet file needs a host.
        value["hosts"] = {"gpu1": {"profile": "gds", "address": "127.0.0.1"}}
        lab.fleet_path.write_text(yaml.safe_dump(value, sort_keys=False))
        gdsdeploy("lock", lab.fleet_path)
        own = lockfile.read(lockfile.beside(lab.fleet_path)).targets["gds"]
        assert name_of(own) == name_of(target), "the lab's builder doesn't lock what is asked for"
        gdsdeploy("provision", lab.fleet_path, "--limit", BUILDER)
        origin = BuilderKeys.of(lab.fleet_path).origin(BUILDER)
        assert origin is not None
        assert cache.default(print).take(want(target, BuildFacts()), archive, [origin]) is not None
        return origin.public
    finally:
        labs.down(lab)
