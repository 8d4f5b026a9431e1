"""What locked packages have in them: source trees, with their names in DKMS, and kernel modules that are built already.

DKMS finds a package by name and version in ``/usr/src/<name>-<version>``, and dkms.conf says both (dkms(8)).
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import StringConstraints, TypeAdapter

from gdsdeploy import atomic
from gdsdeploy.errors import RepositoryUnusable, translated
from gdsdeploy.host.errors import ElfError
from gdsdeploy.host.io import reading
from gdsdeploy.host.kmod.module import read_module
from gdsdeploy.host.secure_boot.signature import signer_of
from gdsdeploy.model.lock import Index, Package, Part
from gdsdeploy.repo import packagefile
from gdsdeploy.repo.fetch import Fetcher, MissingFile, address

_CONF: Final = re.compile(r"usr/src/[^/]+/dkms\.conf")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
_VERSION: Final = re.compile(r"[0-9][A-Za-z0-9._+~]{0,63}")
_ASSIGNMENT: Final = re.compile(
    r"""(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s;#"']*))(?:\s*;)?(?:\s+\#.*)?\s*"""
)
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_KEYS: Final = ("PACKAGE_NAME", "PACKAGE_VERSION")
#: Path → text of each dkms.conf.
_CONFS: Final = TypeAdapter(dict[Annotated[str, StringConstraints(pattern=rf"^{_CONF.pattern}$")], str])
#: Bytes of a remembered answer.
_MEMORY_LIMIT: Final = 4 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class SourceTree:
    """A source tree on the host, and its name and version in DKMS."""

    path: str
    dkms_name: str
    dkms_version: str


#: The source tree that packages of one part of the stack bring.
Sources = Callable[[Part, Sequence[Package]], SourceTree]


@dataclass(frozen=True)
class PackageReader:
    """Reads the packages themselves, which have the digests of the signed index; each is read once."""

    fetcher: Fetcher
    indices: Sequence[Index]
    #: announces a long step while it runs
    step: Callable[[str], AbstractContextManager[object]]

    def _read(self, package: Package, folder: str, kind: TypeAdapter[T], read: Callable[[Path], T]) -> T:
        """What ``read`` tells of a package's file; from the cache's ``folder`` if it was read before."""
        memory = self.fetcher.cache / folder / f"{package.sha256}.json"
        # Without an answer that can be read again, the package is.
        with contextlib.suppress(OSError, ValueError):
            return kind.validate_json(reading.whole(str(memory), _MEMORY_LIMIT), strict=True)
        with self.step(f"Reading {package.package} {package.version}"):
            value = read(fetch(self.fetcher, self.indices, package))
        with contextlib.suppress(OSError):
            memory.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(memory, kind.dump_json(value).decode(), mode=0o600)
        return value

    def source_tree(self, part: Part, packages: Sequence[Package]) -> SourceTree:
        """The tree in the packages of ``part``.

        Raises RepositoryUnusable naming the package that can't be read or used, and what fetching raises.
        """
        candidates = [package for package in packages if package.part == part]
        trees: dict[SourceTree, Package] = {}
        for package in candidates:
            for path, text in self._confs(package).items():
                try:
                    trees.setdefault(parse(path, text), package)
                except ValueError as error:
                    raise _unusable(package, f"/{path}: {error}") from None
        if len(trees) == 1:
            return next(iter(trees))
        names = ", ".join(f"{package.package} {package.version}" for package in candidates) or f"the part {part}"
        listed = ", ".join(sorted(tree.path for tree in trees))
        message = f"has several source trees: {listed}" if listed else "has no /usr/src/…/dkms.conf"
        raise RepositoryUnusable(f"{names} {message}", hint=_HINT)

    def _confs(self, package: Package) -> dict[str, str]:
        """Path → text of each dkms.conf in ``package``."""

        def read(file: Path) -> dict[str, str]:
            files = packagefile.find_files(file, _CONF)
            return {path: content.decode("utf-8", "replace") for path, content in files.items()}

        try:
            return self._read(package, "dkms", _CONFS, read)
        except (packagefile.UnreadablePackageError, MissingFile) as error:
            raise _unusable(package, str(error)) from error

    def modules(self, packages: Sequence[Package]) -> list[ModuleInPackage]:
        """The modules of those ``packages`` that bring any; raises RepositoryUnusable, and what fetching raises."""
        return [module for package in packages if package.part in MODULE_PARTS for module in self._modules(package)]

    def _modules(self, package: Package) -> list[ModuleInPackage]:
        def read(file: Path) -> list[ModuleInPackage]:
            files = packagefile.find_files(file, _MODULE, _FILE_LIMIT)
            return [describe_module(package.package, path, content) for path, content in sorted(files.items())]

        try:
            modules = self._read(package, "modules-in-packages", _MODULES, read)
        except (packagefile.UnreadablePackageError, MissingFile, ElfError) as error:
            raise unusable_modules(package, f"its modules can't be read: {error}") from error
        if not modules:
            raise unusable_modules(
                package, "it has no kernel modules: they may be linked on each host when it is installed"
            )
        return modules


def fetch(fetcher: Fetcher, indices: Sequence[Index], package: Package) -> Path:
    """A locked package's file, with the digest of the signed index; raises MissingFile, and what fetching raises."""
    return fetcher.file(uri_of(indices, package), sha256=package.sha256, size=package.size)


def uri_of(indices: Sequence[Index], package: Package) -> str:
    """Where a locked package's file is; ``indices``: of its lock."""
    base = {(index.repository, index.suite): index.uri for index in indices}
    return address(base[package.repository, package.suite], package.file)


def parse(path: str, text: str) -> SourceTree:
    """The tree of the dkms.conf ``text`` at ``path`` (``usr/src/TREE/dkms.conf``); raises ValueError with the reason.

    dkms.conf is a shell script that DKMS sources.  Plain assignments and the variables that they set are resolved;
    what only a shell on the host can tell is refused.
    """
    tree = path.split("/")[2]
    assigned = _assignments(text)
    # What a shell has in each after the script, if that is certain.
    values = {key: _expand(key, assigned, ()) for key in _KEYS}
    for key, pattern in zip(_KEYS, (_NAME, _VERSION), strict=True):
        if not pattern.fullmatch(values[key]):
            raise ValueError(f"{key} is {values[key]!r}, which is no name that DKMS takes before the build")
    name, version = values.values()
    if tree != f"{name}-{version}":
        raise ValueError(f"DKMS looks for {name} {version} in /usr/src/{name}-{version}, not in /usr/src/{tree}")
    return SourceTree(f"/usr/src/{tree}", name, version)


def _assignments(text: str) -> dict[str, set[tuple[str, bool]]]:
    """Variable → (value, whether it is literal) of each assignment; one that isn't plain counts as two."""
    assigned: dict[str, set[tuple[str, bool]]] = {}
    for line in text.replace("\\\n", "").splitlines():
        if match := _ASSIGNMENT.fullmatch(line):
            literal = match["single"] is not None
            value = next(group for group in (match["double"], match["single"], match["bare"]) if group is not None)
            assigned.setdefault(match["name"], set()).add((value, literal))
            continue
        if line.lstrip().startswith("#"):
            continue
        # Inside a condition, after another command, appended to, or computed.
        for name in re.findall(r"(?:^|[\s;&|(])([A-Za-z_]\w*)(?:\[\w*\])?\+?=", line):
            assigned.setdefault(name, set()).update({("", True), (line.strip(), True)})
    return assigned


def _expand(name: str, assigned: dict[str, set[tuple[str, bool]]], within: tuple[str, ...]) -> str:
    values = assigned.get(name, set())
    if not values:
        raise ValueError(f"{name} is not set")
    if len(values) > 1 or name in within:
        raise ValueError(f"{name} depends on more than plain assignments")
    ((value, literal),) = values
    if literal:
        return value
    return _VARIABLE.sub(lambda match: _expand(match[1] or match[2], assigned, (*within, name)), value)


_HINT: Final = "Lock another version of this driver or nvidia-fs, or use another repository"


def _unusable(package: Package, reason: str) -> RepositoryUnusable:
    return unusable_modules(package, f"its source tree can't be told: {reason}", _HINT)


#: Parts of a lock whose packages bring modules.
MODULE_PARTS: Final[tuple[Part, ...]] = ("driver-modules", "nvidia-fs-modules")
_MODULE: Final = re.compile(r"(?:usr/)?lib/modules/[^/]+/.+\.ko(?:\.(?:xz|gz|zst))?")
#: Bytes of one module's file: the driver's open nvidia.ko has some ten million, and more with its debugging symbols.
_FILE_LIMIT: Final = 256 << 20


@dataclass(frozen=True)
class ModuleInPackage:
    """A module file; ``file`` is below /lib/modules/RELEASE, other texts are empty where the module says nothing."""

    package: str
    #: in-kernel name
    module: str
    #: as ``uname -r`` prints it: the folder that it is in
    release: str
    file: str
    sha256: str
    version: str
    license: str
    vermagic: str
    signer: str
    #: version of the driver that it says it was built against
    driver: str


_MODULES: Final = TypeAdapter(list[ModuleInPackage])
#: The modules that the packages of a lock bring.
PackagedModules = Callable[[Sequence[Package]], Sequence[ModuleInPackage]]


def describe_module(package: str, path: str, content: bytes) -> ModuleInPackage:
    """The module file ``content`` that ``package`` has at ``path``; raises ElfError."""
    release, _, file = path.removeprefix("usr/").removeprefix("lib/modules/").partition("/")
    # Modules are read from files whose ending says how they are compressed.
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-module-") as folder:
        place = Path(folder) / Path(path).name
        place.write_bytes(content)
        with translated(ElfError, lambda error: ElfError(error.message.replace(str(place), f"/{path}"), error.hint)):
            module, signature = read_module(str(place)), signer_of(str(place))
    return ModuleInPackage(
        package=package,
        module=module.name,
        release=release,
        file=file,
        sha256=hashlib.sha256(content).hexdigest(),
        version=module.version,
        license=module.license,
        vermagic=module.vermagic,
        signer=signature.signer if signature is not None else "",
        driver=module.provenance.get("driver", ""),
    )


_BUILD: Final = "Lock another version of the kernel or the driver, or have a host build the modules: `modules: build`"


def unusable_modules(package: Package, reason: str, hint: str = _BUILD) -> RepositoryUnusable:
    """The error about a package that can't be locked."""
    return RepositoryUnusable(f"{package.package} {package.version} ({package.repository}): {reason}", hint=hint)
