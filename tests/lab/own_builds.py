"""The builds of one lab, apart from those of others while its hosts are compared with them; then others have them."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import pytest

from gdsdeploy import paths
from gdsdeploy.builds import cache
from gdsdeploy.builds.assign import BuildFacts, want
from gdsdeploy.builds.builder_keys import BuilderKeys
from gdsdeploy.model.lock import Target
from tests.lab.program import gdsdeploy


def separate(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Use a copy of the user's builds as they are now: nobody else replaces one in it.  Returns the user's builds."""
    users = paths.cache()
    folder.mkdir()
    for name in ("lab", "repo"):
        (folder / name).symlink_to(users / name)
    builds = users / "builds"
    builds.mkdir(parents=True, exist_ok=True)
    with (builds / "lock").open("a") as changing:
        fcntl.flock(changing, fcntl.LOCK_EX)
        shutil.copytree(builds, folder / "builds", ignore=shutil.ignore_patterns(".*", "run-*"))
    patch.setenv("GDSDEPLOY_CACHE_DIR", str(folder))
    return builds


def build(fleet_path: Path, target: Target, users: Path, folder: Path) -> None:
    """Let the builder build, and give the user's cache what it has built, for other labs that lock the same."""
    gdsdeploy("provision", fleet_path, "--limit", "build1")
    origin = BuilderKeys.of(fleet_path).origin("build1")
    assert origin is not None
    needed, archive = want(target, BuildFacts()), folder / "modules.tar"
    assert cache.default(print).take(needed, archive, [origin]) is not None
    cache.BuildCache(users, cache.DEFAULT_LIMIT, print).put(archive, needed, origin)
    archive.unlink()
