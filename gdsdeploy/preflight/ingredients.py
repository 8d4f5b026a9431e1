"""The packages of a preflight's throwaway root."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from gdsdeploy import console
from gdsdeploy.errors import LockStale, NoSolution
from gdsdeploy.mirror.fill import closure
from gdsdeploy.model.lock import Index, Target
from gdsdeploy.platform import StackPlatform
from gdsdeploy.preflight import root
from gdsdeploy.repo.fetch import Fetcher, MissingFile, address
from gdsdeploy.repo.packages import Candidate, Kind, Universe

#: Packages that the host program and the build scripts of kernels, drivers and nvidia-fs need.
_COMMON: Final = (
    "bash",
    "binutils",
    "coreutils",
    "diffutils",
    "findutils",
    "gcc",
    "grep",
    "kmod",
    "make",
    "sed",
    "zstd",
)
_TOOLS: Final[dict[Kind, tuple[str, ...]]] = {
    "apt": (*_COMMON, "dash", "libpython3-stdlib", "mawk", "python3-minimal", "xz-utils"),
    # The open driver has parts in C++.
    "rpm": (*_COMMON, "gawk", "gcc-c++", "xz", "python3"),
}
#: A kernel's packages whose dependencies a build needs; an image's are for booting.
_BUILDS: Final = re.compile(r"linux-(?:headers|kbuild|compiler)-.*|kernel-(?:.+-)?devel")
_KERNEL: Final = ("kernel-image", "kernel-headers")
_FETCHES_AT_ONCE: Final = 6


def layers(target: Target, platform: StackPlatform, universe: Universe, fetcher: Fetcher) -> list[str]:
    """The layers of a root for ``target``, the driver's on top; missing packages are fetched, verified and unpacked.

    Raises NoSolution without a compiler in the repositories, LockStale for a missing file, what Fetcher raises.
    """
    compilers = toolchain(target, platform, universe)
    contents = {
        "the compiler": [_file(c.repository, c.suite, c.filename, c.sha256, c.size, target.indices) for c in compilers]
    }
    for what, parts in (
        (f"kernel {target.kernel.release}", _KERNEL),
        ("nvidia-fs's source", ("nvidia-fs-source",)),
        (f"the source of driver {target.driver.version}", ("driver-source",)),
    ):
        packages = [package for package in target.packages if package.part in parts]
        contents[what] = [_file(p.repository, p.suite, p.file, p.sha256, p.size, target.indices) for p in packages]
    paths = _fetch([file for files in contents.values() for file in files], fetcher)
    return [
        root.layer([paths[file] for file in files], what=what) for what, files in reversed(contents.items()) if files
    ]


def toolchain(target: Target, platform: StackPlatform, universe: Universe) -> list[Candidate]:
    """The packages of a compiler and its tools for this kernel, with all dependencies, one version of each.

    Raises NoSolution with the packages that the repositories don't have.
    """
    locked = {package.package: package.sha256 for package in target.packages if package.part in _KERNEL}
    # A kernel that has left the repositories counts without its dependencies.
    kernel = {name: c for name, digest in locked.items() for c in universe.named(name) if c.sha256 == digest}
    roots = [
        c if _BUILDS.fullmatch(c.package) else dataclasses.replace(c, depends=(), pre_depends=())
        for c in kernel.values()
    ]
    tools = [_newest(name, platform, universe) for name in _TOOLS[platform.kind]]
    dependencies, missing = closure([*roots, *tools], universe, platform.order)
    if missing:
        raise NoSolution("\n".join(["the repositories don't have what a compiler needs:", *missing]))
    # Two versions may satisfy different packages; a root can have only the newer one.
    in_order = sorted([*tools, *dependencies], key=lambda c: platform.order.key(c.version))
    newest = {candidate.package: candidate for candidate in in_order}
    return [newest[name] for name in sorted(newest.keys() - kernel.keys())]


def _newest(name: str, platform: StackPlatform, universe: Universe) -> Candidate:
    versions = universe.named(name)
    if not versions:
        raise NoSolution(
            f"the repositories have no {name}, which building modules needs",
            hint="Add the distribution's own repository to the profile",
        )
    return max(versions, key=lambda c: platform.order.key(c.version))


class _File(NamedTuple):
    uri: str
    sha256: str
    size: int


def _file(repository: str, suite: str, name: str, sha256: str, size: int, indices: Iterable[Index]) -> _File:
    base = next(index.uri for index in indices if (index.repository, index.suite) == (repository, suite))
    return _File(address(base, name), sha256, size)


def _fetch(files: Sequence[_File], fetcher: Fetcher) -> dict[_File, Path]:
    def fetch(file: _File) -> Path:
        try:
            return fetcher.file(file.uri, sha256=file.sha256, size=file.size)
        except MissingFile as error:
            raise LockStale(str(error), hint="Run `gdsdeploy lock` on the fleet file, then try again") from None

    paths = {file: path for file in files if (path := fetcher.find_cached(file.sha256, file.size))}
    missing = [file for file in files if file not in paths]
    if missing:
        with console.step(f"Fetching {len(missing)} packages ({sum(file.size for file in missing) / 1e6:.0f} MB)"):
            pool = ThreadPoolExecutor(_FETCHES_AT_ONCE)
            try:
                paths.update(zip(missing, pool.map(fetch, missing), strict=True))
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    return paths
