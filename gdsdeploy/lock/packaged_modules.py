"""The kernel modules in a locked package, read from its file: their versions, and who signed them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from gdsdeploy import atomic
from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.host.errors import ElfError
from gdsdeploy.host.kmod.module import read_module
from gdsdeploy.host.secure_boot.signature import signer_of
from gdsdeploy.lock.sources import fetch
from gdsdeploy.model.lock import Index, Package, Part
from gdsdeploy.repo import packagefile
from gdsdeploy.repo.fetch import Fetcher, MissingFile

#: Parts of a lock whose packages bring modules.
PARTS: Final[tuple[Part, ...]] = ("driver-modules", "nvidia-fs-modules")
_MODULE: Final = re.compile(r"(?:usr/)?lib/modules/[^/]+/.+\.ko(?:\.(?:xz|gz|zst))?")
#: Bytes of one module's file: the driver's open nvidia.ko has some ten million, and more with its debugging symbols.
_FILE_LIMIT: Final = 256 << 20
#: Bytes of a remembered answer.
_MEMORY_LIMIT: Final = 1 << 20


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


#: The modules that the packages of a lock bring.
PackagedModules = Callable[[Sequence[Package]], Sequence[ModuleInPackage]]


@dataclass(frozen=True)
class ModulesReader:
    """Reads the packages themselves, which have the digests of the signed index; each is read once."""

    fetcher: Fetcher
    indices: Sequence[Index]
    #: announces a long step while it runs
    step: Callable[[str], AbstractContextManager[None]]

    def __call__(self, packages: Sequence[Package]) -> list[ModuleInPackage]:
        """The modules of those ``packages`` that bring any; raises RepositoryUnusable, and what fetching raises."""
        return [module for package in packages if package.part in PARTS for module in self._modules(package)]

    def _modules(self, package: Package) -> list[ModuleInPackage]:
        memory = self.fetcher.cache / "modules-in-packages" / f"{package.sha256}.json"
        modules = _remembered(memory)
        if modules is not None:
            return modules
        with self.step(f"Reading {package.package} {package.version}"):
            try:
                files = packagefile.find_files(fetch(self.fetcher, self.indices, package), _MODULE, _FILE_LIMIT)
                modules = [describe(package.package, path, content) for path, content in sorted(files.items())]
            except (packagefile.UnreadablePackageError, MissingFile, ElfError) as error:
                raise unusable(package, f"its modules can't be read: {error}") from error
        if not modules:
            raise unusable(package, "it has no kernel modules: they may be linked on each host when it is installed")
        # Without it, the next run reads the package again.
        with contextlib.suppress(OSError):
            memory.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(memory, json.dumps([asdict(module) for module in modules], sort_keys=True), mode=0o600)
        return modules


def describe(package: str, path: str, content: bytes) -> ModuleInPackage:
    """The module file ``content`` that ``package`` has at ``path``; raises ElfError."""
    release, _, file = path.removeprefix("usr/").removeprefix("lib/modules/").partition("/")
    # Modules are read from files whose ending says how they are compressed.
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-module-") as folder:
        place = Path(folder) / Path(path).name
        place.write_bytes(content)
        try:
            module, signature = read_module(str(place)), signer_of(str(place))
        except ElfError as error:
            raise ElfError(error.message.replace(str(place), f"/{path}"), error.hint) from None
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


def unusable(package: Package, reason: str) -> RepositoryUnusable:
    """The error about a package that can't be locked."""
    where = f"{package.package} {package.version} ({package.repository})"
    hint = "Lock another version of the kernel or the driver, or have a host build the modules: `modules: build`"
    return RepositoryUnusable(f"{where}: {reason}", hint=hint)


def _remembered(memory: Path) -> list[ModuleInPackage] | None:
    """What was read of a package before; None if nothing was, or not as it is read now."""
    try:
        with memory.open("rb") as file:
            value: Any = json.loads(file.read(_MEMORY_LIMIT))
        modules = [ModuleInPackage(**entry) for entry in value]
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return modules if all(isinstance(text, str) for module in modules for text in asdict(module).values()) else None
