"""What resources ask of a package manager, and their register: the manager ``apt`` is ``apt.py`` of this package."""

from __future__ import annotations

import errno
import importlib
import os
import re
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, Iterator, List, Literal, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ... import process
from ...errors import ApplyError, BuildError, DesiredError
from ...io import space
from ...model.discovery import module_names
from ...rootdir import inside
from ..files import File
from ..host import ManagedHost, tail
from ..model import Change, Refusal, writing
from . import state as database

#: Packages that gdsdeploy installed, and those that it holds: sorted names, one a line.
INSTALLED, HOLDS = "/var/lib/gdsdeploy/installed", "/var/lib/gdsdeploy/held"
#: A folder with packages on their way back: what a rollback offers.
RETURNING = "/var/lib/gdsdeploy-restore"
#: Seconds for which a package manager's lock is waited for, and between two looks at it.
LOCK_SECONDS, _LOOK_SECONDS = 300.0, 2.0
#: A transaction builds modules: on a slow host for an hour.
TRANSACTION_SECONDS = 7200.0
REFRESH_SECONDS = 1800.0
#: As libc says it in the C locale, and as apt and dnf say it before they begin.
_NO_SPACE = (os.strerror(errno.ENOSPC), "You don't have enough free space in", "more space needed on the")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]*")


@dataclass(frozen=True)
class Package:
    """A package in one version, as the package manager writes both."""

    #: Name of the package.
    package: str
    #: Exact version.
    version: str

    def __str__(self) -> str:
        return f"{self.package}={self.version}"


@dataclass(frozen=True)
class Pin(Package):
    """A locked package."""

    #: Checksum of the package file; empty where it isn't compared.
    sha256: str = ""


@dataclass(frozen=True)
class Index:
    """A signed repository."""

    #: Name of the repository.
    repository: str
    #: Base address.
    uri: str
    #: Suite; a path that ends in ``/`` for a flat repository; empty for dnf.
    suite: str
    #: Components; none for a flat repository and for dnf.
    components: List[str]
    #: Path of the index's key on the host.
    host_keyring: str
    #: Whether only the locked packages may come from it.
    exclusive: bool = False
    #: Paths of other keys on the host for its packages; dnf only.
    package_keys: List[str] = field(default_factory=list)
    #: ``unsigned`` where only its packages are signed, by ``host_keyring``; dnf only.
    metadata: Literal["signed", "unsigned"] = "signed"


@dataclass(frozen=True)
class Key:
    """A key to bring."""

    #: File on the host.
    dest: str
    #: Its content in base64.
    content: str


class Installed(NamedTuple):
    """A package that is completely installed; rpm has several versions of some."""

    versions: Tuple[str, ...]
    is_held: bool = False


class Manager(ABC):
    """One package manager; stateless."""

    name: ClassVar[str]
    #: database.DPKG or database.RPM
    kind: ClassVar[str]
    #: whether packages are held one by one
    holds: ClassVar[bool] = False
    #: files that repositories write, without keys; and patterns of gdsdeploy's keys
    sources: ClassVar[Tuple[str, ...]] = ()
    keys: ClassVar[Tuple[str, ...]] = ()
    #: files whose content depends on what else the host has configured
    configured: ClassVar[Tuple[str, ...]] = ()
    #: with which people call it
    command: ClassVar[str]
    #: the command that removes old kernels
    spare: ClassVar[str]
    #: files that it runs after a kernel was installed or removed, and shell lines in them that set event and release
    kernel_hooks: ClassVar[Tuple[str, ...]] = ()
    kernel_event: ClassVar[str] = ""
    #: whether package lists are read on request; others are read whenever they are needed
    lists: ClassVar[bool] = False
    #: whether it checks each package's own signature, so that an index may be unsigned
    checks_packages: ClassVar[bool] = False

    # Repositories

    def keyrings(self, indices: Sequence[Index]) -> List[str]:
        """Every key file that the host needs."""
        return [index.host_keyring for index in indices]

    @abstractmethod
    def keyring_hint(self, path: str) -> str:
        """How a key file comes to the host."""

    @abstractmethod
    def source_files(self, host: ManagedHost, indices: Sequence[Index], pins: Sequence[Pin]) -> List[File]:
        """The files that configure what the host lacks of ``indices``."""

    def knows(self, host: ManagedHost, pins: Sequence[Pin]) -> bool:
        """Whether the package lists have the locked versions."""
        return True

    def refresh(self, host: ManagedHost) -> None:
        """Read the package lists."""

    def verify_files(self, host: ManagedHost, pins: Sequence[Pin]) -> None:
        """Raise ApplyError where the files on offer aren't the locked ones."""

    # Pins

    @abstractmethod
    def observe_pins(self, host: ManagedHost, desired: Any) -> Any:
        """What :meth:`pin_changes` needs."""

    @abstractmethod
    def pin_changes(self, desired: Any, observed: Any, pending: Sequence[Change]) -> List[Change]:
        """What it takes to pin the stack; raises CannotTellError."""

    @abstractmethod
    def pin(self, host: ManagedHost, desired: Any, change: Change) -> None:
        """Make one of those changes."""

    @abstractmethod
    def verify_pins(self, host: ManagedHost, desired: Any) -> None:
        """Raise ApplyError where the package manager would take anything but the locked versions."""

    @abstractmethod
    def unpin(self, host: ManagedHost) -> List[Change]:
        """Take the pins away; with ``host.check`` only say it."""

    def distrust(self, host: ManagedHost) -> List[Change]:
        """Take away what trusts our keys besides their files; with ``host.check`` only say it."""
        return []

    # Packages

    @abstractmethod
    def order(self, version: str) -> Any:
        """A sort key of a version."""

    def same(self, version: str) -> str:
        """A version as :meth:`installed` writes it."""
        return version

    def list_packages(self, host: ManagedHost) -> List[database.Package]:
        """Every package that the database knows, asked once until something changes; raises RolloutError."""
        return list_packages(host, self.kind)

    def installed(self, host: ManagedHost) -> Dict[str, Installed]:
        """Every package that is completely installed."""
        everything = self.list_packages(host)
        versions = database.versions([package.name for package in everything], everything)
        return {
            name: Installed(tuple(map(self.same, entry["version"].split())), bool(entry["held"]))
            for name, entry in versions.items()
            if entry["version"]
        }

    def present(self, host: ManagedHost, *, configured: bool = True) -> Set[str]:
        """Every package of which anything is there; configured: also where that is configuration files only."""
        absent = "n" if configured else "nc"
        return {package.name for package in self.list_packages(host) if package.state[1:2] not in absent}

    @abstractmethod
    def simulate(self, host: ManagedHost, install: Sequence[Package], remove: Sequence[str]) -> Optional[List[Change]]:
        """Everything that the transaction would change; None where that can't be asked.

        Removals have a reason of transaction.py, or none.  Raises CannotTellError where the package manager refuses.
        """

    @abstractmethod
    def install(
        self, host: ManagedHost, install: Sequence[Package], remove: Sequence[str], along: Sequence[str] = ()
    ) -> None:
        """One transaction; along: what leaves with ``remove``, as simulated.  Raises ApplyError."""

    @abstractmethod
    def simulate_purge(self, host: ManagedHost, names: Sequence[str]) -> Optional[List[str]]:
        """The packages that go with ``names``; None where that can't be asked."""

    @abstractmethod
    def purge(self, host: ManagedHost, names: Sequence[str], *, with_held: bool = False) -> None:
        """Remove packages in one transaction; with_held: also those that are held.  Raises ApplyError."""

    # Packages that left, on their way back

    @abstractmethod
    def manual(self, host: ManagedHost) -> Set[str]:
        """Packages that an administrator asked for, unlike dependencies; raises CannotTellError."""

    @abstractmethod
    def mark_automatic(self, host: ManagedHost, names: Sequence[str]) -> None:
        """Have packages count as dependencies."""

    def word(self, package: Package) -> str:
        """A package in one version, as its command line takes it."""
        return str(package)

    @abstractmethod
    def simulate_return(self, host: ManagedHost, install: Sequence[Package], purged: Sequence[str]) -> List[Change]:
        """What bringing these back would change, whatever gdsdeploy pins.

        purged: what leaves before.  Raises NotOfferedError, and CannotTellError where that goes with no solution.
        """

    @abstractmethod
    def bring_back(self, host: ManagedHost, install: Sequence[Package]) -> None:
        """Install these as simulated; raises ApplyError."""

    @abstractmethod
    def stays(self, name: str, running: str) -> bool:
        """Whether a package belongs to the running kernel and can't be taken away under it."""

    def hold(self, host: ManagedHost, names: Sequence[str], *, held: bool = True) -> None:
        """Hold packages, or release their holds."""

    # What was interrupted

    def unfinished(self, host: ManagedHost) -> List[str]:
        """Packages that the package manager can finish by itself."""
        return []

    def broken(self, host: ManagedHost) -> List[str]:
        """Packages that have to be installed again: neither there nor gone."""
        return []

    def finish(self, host: ManagedHost) -> None:
        """Finish what was interrupted; raises ApplyError where it stays unfinished."""

    def repair(self, host: ManagedHost, unwanted: Sequence[str]) -> None:
        """Finish what can be finished, and drop what is half-way and among ``unwanted``."""

    def reinstall(self, host: ManagedHost) -> None:
        """Install again what is half-installed; raises ApplyError."""

    def settle(self, host: ManagedHost) -> None:
        """Settle the records of the last transaction, which may have been stopped after its packages were in place."""

    # Packages on their way back

    def offer_files(self, place: str, keyring: str, key: bytes) -> List[File]:
        """Files that configure the repository in ``place``; none where packages are taken from there as files."""
        return []

    def refresh_offer(self, host: ManagedHost) -> None:
        """Read the lists of that repository alone: others may be out of reach."""

    def half_installed(self, host: ManagedHost) -> List[Refusal]:
        """Why packages that stay half-installed keep this host from being changed, with the commands to run."""
        return []


_PACKAGE = __name__.rpartition(".")[0]


def manager(name: str) -> Manager:
    """The manager of this name, e.g. ``apt``; raises DesiredError.  Only its own module is imported."""
    found = _in_module(name) if name in module_names(_PACKAGE) else None
    if found is None:
        raise DesiredError(f"manager: {name!r} is unknown; known: {', '.join(one.name for one in every())}")
    return found


def every() -> Iterator[Manager]:
    """All managers by their names; each is imported when its turn comes."""
    return filter(None, map(_in_module, module_names(_PACKAGE)))


def _in_module(name: str) -> Optional[Manager]:
    importlib.import_module(f"{_PACKAGE}.{name}")
    return next((kind() for kind in Manager.__subclasses__() if kind.name == name), None)


def host_manager(host: ManagedHost) -> Manager:
    """The manager that this host has; raises ApplyError."""
    kind = database.manager(host.root)
    if not kind:
        raise ApplyError("this host has neither a database of dpkg nor one of rpm", kind="io")
    return next(one for one in every() if one.kind == kind)


def list_packages(host: ManagedHost, kind: str) -> List[database.Package]:
    """Every package of a database, asked once until something changes; raises RolloutError."""
    packages: List[database.Package] = host.once(("packages", kind), lambda: database.read_packages(host.root, kind))
    return packages


def run(host: ManagedHost, argv: Sequence[str], seconds: float, env: Mapping[str, str] = {}) -> str:
    """Run a package manager once its locks are free and return what it prints.

    Raises ApplyError of kind package-manager-locked, no-space, modules (a build of DKMS) or failed.
    """
    wait(host)
    # One that is killed leaves packages half-installed: Ctrl-C and SIGTERM wait until it has ended.
    with process.defer_signals():
        output = host.attempt(argv, seconds, env)
    if output.status == 0:
        return output.stdout
    # apt shows on standard output what dpkg says is wrong.
    printed = f"{output.stdout.rstrip()}\n{output.stderr}"
    words = tail(process.Output(output.status, "", printed))
    holders = database.locks(host.root)
    if holders:
        raise _busy(holders[0])
    if any(text in printed for text in _NO_SPACE) or _is_full(host):
        clean = "dnf clean packages" if argv[0] == "dnf" else "apt-get clean"
        message = f"{argv[0]}: no space left on the device{words}"
        raise ApplyError(message, f"make room, e.g. {clean}, and run this again: df -h", "no-space")
    _explain_build(host, argv[0])
    raise ApplyError(f"{argv[0]} ended with status {output.status}{words}")


def wait(host: ManagedHost) -> None:
    """Wait at most LOCK_SECONDS until no other process works with packages; raises ApplyError that names it."""
    waited = 0.0
    while True:
        holders = database.locks(host.root)
        if not holders:
            return
        if waited >= LOCK_SECONDS:
            raise _busy(holders[0])
        if not waited:
            host.say(f"waiting for {_process(holders[0])}")
        time.sleep(_LOOK_SECONDS)
        waited += _LOOK_SECONDS


def _busy(holder: Mapping[str, Any]) -> ApplyError:
    pid = holder["pid"]
    hint = f"wait until it ends, then run this again; see: ps -fp {pid}" if pid else "wait until it ends"
    return ApplyError(f"{_process(holder)} is changing packages on this host", hint, "package-manager-locked")


def _process(holder: Mapping[str, Any]) -> str:
    name = f"{holder['program'] or 'process'} (process {holder['pid']})" if holder["pid"] else "another process"
    return f"{name}, which holds {holder['path']},"


def _is_full(host: ManagedHost) -> bool:
    """Whether a folder that packages are written to is full."""
    places = [inside(host.root, folder) for folder in space.FOLDERS]
    filesystems = [os.statvfs(place) for place in places if os.path.isdir(place)]
    return any(one.f_bavail * one.f_frsize < space.LEAST or (one.f_files and not one.f_favail) for one in filesystems)


def _explain_build(host: ManagedHost, program: str) -> None:
    """Raise ApplyError that says why a build failed, where one did a moment ago."""
    if program != "dnf" and not any(package.broken for package in list_packages(host, database.DPKG)):
        # dpkg leaves a package whose modules don't build half-configured.
        return
    from ...build import dkms

    try:
        with writing(""):
            dkms.why()
    except BuildError as error:
        raise ApplyError(error.message, error.hint, "modules") from None


def read_names(host: ManagedHost, path: str) -> List[str]:
    """The names of a record: INSTALLED or HOLDS."""
    return host.text(path).split()


def write_names(host: ManagedHost, path: str, names: Sequence[str]) -> None:
    """Write a record; without names its file is removed."""
    host.keep_lines(path, sorted(set(names)))


def check_names(names: Sequence[str], place: str) -> None:
    """Raise DesiredError for what isn't the name of a package: an option or a pattern must not reach a command."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise DesiredError(f"{place}: {name!r} is not the name of a package")
