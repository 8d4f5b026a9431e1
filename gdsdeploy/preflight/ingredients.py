"""The packages of a preflight's throwaway root."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from gdsdeploy import console
from gdsdeploy.errors import LockStale, NoSolution
from gdsdeploy.mirror.closure import closure
from gdsdeploy.model.lock import Index, Target
from gdsdeploy.platform import StackPlatform
from gdsdeploy.preflight import root
from gdsdeploy.preflight.root import Layer
from gdsdeploy.repo.candidate import Candidate
from gdsdeploy.repo.fetch import Fetcher, MissingFile, address
from gdsdeploy.repo.packages import Universe

#: Debian packages that the host program and the build scripts of kernels, drivers and nvidia-fs need.
_TOOLS: Final = (
    "bash", "binutils", "coreutils", "dash", "diffutils", "findutils", "gcc", "grep", "kmod", "libpython3-stdlib",
    "make", "mawk", "python3-minimal", "sed", "xz-utils", "zstd",
)  # fmt: skip
#: A kernel's packages whose dependencies a build needs; an image's are for booting.
_BUILDS: Final = re.compile(r"linux-(?:headers|kbuild|compiler)-.*")
_KERNEL: Final = ("kernel-image", "kernel-headers")
_FETCHES_AT_ONCE: Final = 6


def layers(target: Target, platform: StackPlatform, universe: Universe, fetcher: Fetcher) -> list[Layer]:
    """The layers of a root for ``target``, the driver's on top; missing packages are fetched, verified and unpacked.

    Raises NoSolution without a compiler in the repositories, LockStale for a missing file, what Fetcher raises.
    """
    compilers = toolchain(target, platform, universe)
    base = [_file(c.repository, c.suite, c.filename, c.sha256, c.size, target.indices) for c in compilers]
    contents = [("the compiler", base)]
    for what, parts in (
        (f"kernel {target.kernel.release}", _KERNEL),
        ("nvidia-fs's source", ("nvidia-fs-source",)),
        (f"the source of driver {target.driver.version}", ("driver-source",)),
    ):
        chosen = [p for p in target.packages if p.part in parts]
        if chosen:
            files = [_file(p.repository, p.suite, p.file, p.sha256, p.size, target.indices) for p in chosen]
            contents.append((what, files))
    _fetch([file for _, files in contents for file in files], fetcher)
    return [
        root.layer([fetcher.file(uri, sha256=sha256, size=size) for uri, sha256, size in files], what=what)
        for what, files in reversed(contents)
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
    tools = [_newest(name, platform, universe) for name in _TOOLS]
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


_File = tuple[str, str, int]


def _file(repository: str, suite: str, name: str, sha256: str, size: int, indices: Iterable[Index]) -> _File:
    base = next(index.uri for index in indices if (index.repository, index.suite) == (repository, suite))
    return address(base, name), sha256, size


def _fetch(files: Sequence[_File], fetcher: Fetcher) -> None:
    missing = [file for file in files if fetcher.find_cached(file[1], file[2]) is None]
    if not missing:
        return

    def fetch(file: _File) -> Path:
        uri, sha256, size = file
        try:
            return fetcher.file(uri, sha256=sha256, size=size)
        except MissingFile as error:
            raise LockStale(str(error), hint="Run `gdsdeploy lock` on the fleet file, then try again") from None

    with console.step(f"Fetching {len(missing)} packages ({sum(file[2] for file in missing) / 1e6:.0f} MB)"):
        pool = ThreadPoolExecutor(_FETCHES_AT_ONCE)
        try:
            list(pool.map(fetch, missing))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
