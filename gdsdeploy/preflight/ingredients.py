"""What a preflight's answer depends on, and the packages of its throwaway root."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from gdsdeploy.errors import LockStale, NoSolution
from gdsdeploy.mirror.closure import closure
from gdsdeploy.model.lock import Index, Package, Target
from gdsdeploy.platform import StackPlatform
from gdsdeploy.preflight import root
from gdsdeploy.preflight.root import Layer
from gdsdeploy.repo.candidate import Candidate
from gdsdeploy.repo.fetch import Fetcher, NotThere, address
from gdsdeploy.repo.packages import Universe

#: What the host program and the build scripts of kernels, drivers and nvidia-fs start, by Debian's package names.
_TOOLS: Final = (
    "bash", "binutils", "coreutils", "dash", "diffutils", "findutils", "gcc", "grep", "kmod", "libpython3-stdlib",
    "make", "mawk", "python3-minimal", "sed", "xz-utils", "zstd",
)  # fmt: skip
#: Packages of a kernel whose own dependencies are needed to build; an image's are for booting.
_BUILDS: Final = re.compile(r"linux-(?:headers|kbuild|compiler)-.*")
_KERNEL: Final = ("kernel-image", "kernel-headers")
_FETCHES_AT_ONCE: Final = 6


def layers(
    target: Target,
    platform: StackPlatform,
    universe: Universe,
    fetcher: Fetcher,
    step: Callable[[str], AbstractContextManager[None]],
) -> list[Layer]:
    """The layers of a root for ``target``, the driver's on top; fetched, verified and unpacked as far as lacking.

    Raises NoSolution where the repositories lack a compiler, LockStale for a file that is gone, what Fetcher raises.
    """
    compilers = toolchain(target, platform, universe)
    base = [_file(c.repository, c.suite, c.filename, c.sha256, c.size, target.indices) for c in compilers]
    sets = [("the compiler", base)]
    for what, parts in (
        (f"kernel {target.kernel.release}", _KERNEL),
        ("nvidia-fs's source", ("nvidia-fs-source",)),
        (f"the source of driver {target.driver.version}", ("driver-source",)),
    ):
        chosen = [p for p in target.packages if p.part in parts]
        if chosen:
            files = [_file(p.repository, p.suite, p.file, p.sha256, p.size, target.indices) for p in chosen]
            sets.append((what, files))
    _fetch([file for _, each in sets for file in each], fetcher, step)
    found = []
    for what, each in sets:
        paths = [fetcher.file(uri, sha256=sha256, size=size) for uri, sha256, size in each]
        found.append(root.layer(paths, what=what, step=step))
    return found[::-1]


def toolchain(target: Target, platform: StackPlatform, universe: Universe) -> list[Candidate]:
    """The packages of a compiler and its tools for this kernel, with all that they need, one version of each.

    Raises NoSolution naming what the repositories lack.
    """
    kernel = [_offered(package, universe) for package in target.packages if package.part in _KERNEL]
    roots = [
        c if _BUILDS.fullmatch(c.package) else dataclasses.replace(c, depends=(), pre_depends=())
        for c in kernel
        if c is not None
    ]
    tools = [_newest(name, platform, universe) for name in _TOOLS]
    found, lacking = closure([*roots, *tools], universe, platform.order)
    if lacking:
        raise NoSolution("\n".join(["the repositories lack what a compiler needs:", *lacking]))
    names: dict[str, Candidate] = {}
    # Where two versions were carried, both satisfy somebody; a root can have one.
    for candidate in sorted([*tools, *found], key=lambda c: platform.order.key(c.version)):
        names[candidate.package] = candidate
    return [names[name] for name in sorted(names) if not _is_kernel(names[name], kernel)]


def _is_kernel(candidate: Candidate, kernel: Sequence[Candidate | None]) -> bool:
    return any(other is not None and other.package == candidate.package for other in kernel)


def _offered(package: Package, universe: Universe) -> Candidate | None:
    """The package as the repositories have it; None if they no longer do, and then its dependencies are not known."""
    same = [c for c in universe.named(package.package) if c.sha256 == package.sha256]
    return same[0] if same else None


def _newest(name: str, platform: StackPlatform, universe: Universe) -> Candidate:
    there = universe.named(name)
    if not there:
        raise NoSolution(
            f"the repositories have no {name}, which building modules needs",
            hint="Add the distribution's own repository to the profile",
        )
    return max(there, key=lambda c: platform.order.key(c.version))


_File = tuple[str, str, int]


def _file(repository: str, suite: str, name: str, sha256: str, size: int, indices: Iterable[Index]) -> _File:
    base = next(index.uri for index in indices if (index.repository, index.suite) == (repository, suite))
    return address(base, name), sha256, size


def _fetch(wanted: Sequence[_File], fetcher: Fetcher, step: Callable[[str], AbstractContextManager[None]]) -> None:
    missing = [file for file in wanted if fetcher.kept(file[1], file[2]) is None]
    if not missing:
        return

    def have(file: _File) -> Path:
        uri, sha256, size = file
        try:
            return fetcher.file(uri, sha256=sha256, size=size)
        except NotThere as error:
            raise LockStale(str(error), hint="Run `gdsdeploy lock` on the fleet file, and try again") from None

    with step(f"Fetching {len(missing)} packages ({sum(file[2] for file in missing) / 1e6:.0f} MB)"):
        pool = ThreadPoolExecutor(_FETCHES_AT_ONCE)
        try:
            list(pool.map(have, missing))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
