"""Released libcufile libraries, fetched when a test asks: from Debian's archive through what this machine's apt says
about it, and as wheels through pip.  They are NVIDIA's, and are kept in the user's cache, never in the tree.

``python -m tests.cufile.libraries [VERSION…]`` fetches them and prints where they are.
"""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from gdsdeploy import console, paths
from gdsdeploy.lock import repo_settings
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo import apt
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.repository import Repository
from tests.cufile.library import Library

#: Version → the Debian release whose archive has it, or the name of the wheel.
SOURCES = {
    "1.4.0.31": "debian-12",
    "1.9.1.3": "debian-13",
    "1.11.1.6": "nvidia-cufile-cu12",
    "1.13.0.11": "nvidia-cufile-cu12",
    "1.13.1.3": "nvidia-cufile-cu12",
    "1.14.0.30": "nvidia-cufile-cu12",
    "1.14.1.1": "nvidia-cufile-cu12",
    "1.15.0.42": "nvidia-cufile",
    "1.15.1.6": "nvidia-cufile",
    "1.16.0.49": "nvidia-cufile",
    "1.16.1.26": "nvidia-cufile",
    "1.17.0.44": "nvidia-cufile",
    "1.17.1.22": "nvidia-cufile",
    "1.18.0.66": "nvidia-cufile",
    "1.18.1.6": "nvidia-cufile",
    "1.19.0.109": "nvidia-cufile",
    "1.19.1.55": "nvidia-cufile",
    "1.20.0.107": "nvidia-cufile",
}
#: The last one of each release: what tests that cost time for each library take.
RELEASES = tuple({version.rsplit(".", 2)[0]: version for version in SOURCES}.values())


@functools.cache
def library(version: str) -> Library:
    """The libcufile of this version, with the stand-in libcuda, so that answers do not depend on the machine."""
    fetch = _debian if SOURCES[version].startswith("debian-") else _wheel
    file = kept(paths.cache() / "cufile" / "libraries" / version / "libcufile.so.0", lambda work: fetch(version, work))
    return Library(file, standin=True)


@functools.cache
def rdma_library(version: str) -> Path:
    """The libcufile_rdma.so.1 of a wheel, which libcufile loads where a list names adapters."""
    file = paths.cache() / "cufile" / "rdma" / version / "libcufile_rdma.so.1"
    return kept(file, lambda work: _wheel(version, work, file.name))


def kept(file: Path, fetch: Callable[[Path], Path]) -> Path:
    """``file``, which alone has its folder; ``fetch`` gets it in the folder that it is given, unless it is there."""
    folder = file.parent
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as unfinished:
            fetched, ready = fetch(Path(unfinished)), Path(unfinished, "ready")
            ready.mkdir()
            fetched.rename(ready / file.name)
            try:
                ready.rename(folder)
            except OSError:
                # Another run was faster.
                if not folder.is_dir():
                    raise
    return file


def _debian(version: str, work: Path) -> Path:
    unpacked = debian_package("libcufile0", version, SOURCES[version], work)
    return next(unpacked.glob("usr/lib/*/libcufile.so.0")).resolve()


def debian_package(name: str, version: str, os_name: str, work: Path, component: str = "non-free") -> Path:
    """A package of Debian's archive whose version begins so, unpacked into ``work``."""
    fleet = Fleet.model_validate({"version": 1, "profiles": {"gds": {"os": os_name}}, "hosts": {"gpu1": "gds"}})
    platform = stack_platform_for(os_name)
    (archive,) = [r for r in repo_settings.repositories(fleet, "gds", platform) if r.name == "debian"]
    assert isinstance(archive, Repository)
    with Fetcher() as fetcher:
        for suite in archive.suites:
            release = apt.release(fetcher, archive, suite, now=datetime.now(UTC))
            stems = [stem for stem in apt.list_stems(release, "amd64") if stem.startswith(f"{component}/")]
            offered = [apt.package_list(fetcher, release, stem, "amd64").named(name) for stem in stems]
            for candidate in itertools.chain.from_iterable(offered):
                if candidate.version.startswith((version + "~", version + "-")):
                    uri = f"{archive.uri.rstrip('/')}/{candidate.filename}"
                    package = fetcher.file(uri, sha256=candidate.sha256, size=candidate.size)
                    subprocess.run(["dpkg-deb", "-x", package, work], check=True)
                    return work
    raise LookupError(f"Debian's archive has no {name} {version} for {os_name}")


def _wheel(version: str, work: Path, wanted: str = "libcufile.so.0") -> Path:
    name = SOURCES[version]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    where = ["--only-binary", ":all:", "--platform", "manylinux_2_27_x86_64", "--platform", "manylinux2014_x86_64"]
    subprocess.run([*pip, *where, "--dest", work, f"{name}=={version}"], check=True, env=os.environ)
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [n for n in archive.namelist() if n.rsplit("/", 1)[-1] == wanted]
        return Path(archive.extract(member, work))


if __name__ == "__main__":
    for version in sys.argv[1:] or SOURCES:
        cached = library(version)
        console.data(f"{version} {cached.path} {cached.version}")
