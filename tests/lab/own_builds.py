"""The builds of one lab, apart from those of others while its hosts are compared with them; then others have them."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from pathlib import Path

import pytest

from gdsdeploy import host, paths, run
from gdsdeploy.builds import cache
from gdsdeploy.builds.assign import BuildFacts, want
from gdsdeploy.builds.cache import BuilderKeys
from gdsdeploy.files import folders
from gdsdeploy.model.lock import Target
from gdslab import cloning
from gdslab.state import Lab, cache_directory
from tests.lab import mirrored
from tests.lab.program import gdsdeploy

_BUILDER, _LAYER = "build1", "layer"


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


def build(lab: Lab, target: Target, users: Path, folder: Path) -> None:
    """Let the builder build, and give the user's cache what it has built, for other labs that lock the same."""
    _provision(lab, target)
    origin = BuilderKeys.of(lab.fleet_path).origin(_BUILDER)
    assert origin is not None
    needed, archive = want(target, BuildFacts()), folder / "modules.tar"
    assert cache.default(print).take(needed, archive, [origin]) is not None
    cache.BuildCache(users, cache.DEFAULT_LIMIT, print).put(archive, needed, origin)
    archive.unlink()


def _provision(lab: Lab, target: Target) -> None:
    """Provision the builder, or make it a copy of one that has built the same: compiling takes most of a story."""
    builder, argv = lab.host(_BUILDER), ["provision", lab.fleet_path, "--limit", _BUILDER]
    layer = builder.directory / ("upper" if (builder.directory / "upper").is_dir() else "root")
    compiled = False

    def make(work: Path) -> None:
        nonlocal compiled
        gdsdeploy(*argv)
        compiled = True
        builder.ssh(["sudo", "sh", "-c", cloning.FORGET])
        builder.stop()
        _copy(layer, work / _LAYER)

    inputs = hashlib.sha256(f"{target.model_dump_json()} {builder.record.base}".encode())
    program = Path(host.__file__).parent
    for code in sorted(program.rglob("*.py")):
        # What compiles, whichever modules it is in.
        if "build" in code.relative_to(program).as_posix():
            inputs.update(code.read_bytes())
    name = f"builder-{inputs.hexdigest()[:12]}"
    entry = folders.cached_folder(cache_directory(), name, make, what="the builder of these modules")
    if not compiled:
        builder.stop()
        folders.remove_tree(layer, within=lab.directory)
        _copy(entry / _LAYER, layer)
    builder.start()
    builder.wait_ssh()
    mirrored.use([builder])
    # Of a copy, the repositories are those of another lab.
    gdsdeploy(*argv)


def _copy(source: Path, target: Path) -> None:
    argv = ["cp", "-a", "--reflink=auto", "-T", str(source), str(target)]
    run.run(run.as_root(argv), doing=f"copy {source}")
