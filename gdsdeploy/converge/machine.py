"""One machine of a fleet, made once: its profile, its part of the lock, where its modules come from.  Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gdsdeploy import paths
from gdsdeploy.builds.assign import Supply, archive_of, by_intent
from gdsdeploy.cufile.render import FitTarget, render
from gdsdeploy.errors import FleetInvalid, LockStale
from gdsdeploy.fleetfile import selection
from gdsdeploy.host.apply.packages import managers
from gdsdeploy.host.io import reading
from gdsdeploy.host.kmod.packaged_file import PackagedFile
from gdsdeploy.lock import repo_settings
from gdsdeploy.mirror import host_sources
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Lock, Package, Target
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.platform.base import StackPlatform

if TYPE_CHECKING:
    from gdsdeploy.converge.image import Image

#: Loaded by a unit of its own, because it has to come after the RDMA core.
PEERMEM = "nvidia-peermem"
PEERMEM_UNIT = "gds-peermem.service"
#: Parts of a lock that come together: packages of modules need their kernel's, and the driver's userland before.
KERNEL_PARTS = {"kernel-image", "kernel-headers", "driver-modules", "nvidia-fs-modules"}


#: Bytes of the largest keyring or certificate.
_FILE_LIMIT: Final = 16 * 1024 * 1024
#: What keyrings have: a line of armour, or as their first byte one of a packet that holds a public key (RFC 9580).
_ARMOUR = b"\n-----BEGIN PGP PUBLIC KEY BLOCK-----"
_PUBLIC_KEY = frozenset(bytes([tag]) for tag in (0x98, 0x99, 0x9A, 0xC6))
_CORRECT_KEYRING = "Correct keyring in the fleet file"


class Files:
    """Reads each file once."""

    def __init__(self) -> None:
        self._read: dict[str, bytes | None] = {}

    def content(self, path: str) -> bytes | None:
        """The bytes of a file, or None if the file doesn't exist.  Raises FleetInvalid where it can't be read."""
        if path not in self._read:
            try:
                self._read[path] = reading.whole(path, _FILE_LIMIT)
            except FileNotFoundError:
                self._read[path] = None
            except OSError as error:
                raise FleetInvalid(f"{path}: {error.strerror}", hint="Make it readable, and run this again") from None
        return self._read[path]

    def keyring(self, path: str) -> bytes:
        """The content of a keyring.  Raises FleetInvalid where it's missing, or isn't one."""
        content = self.content(path)
        if content is None:
            raise FleetInvalid(f"{path}: the keyring is missing", hint=_CORRECT_KEYRING)
        # It leaves this machine: a fleet file that others wrote must not have any file sent to hosts that it names.
        if _ARMOUR not in b"\n" + content and content[:1] not in _PUBLIC_KEY:
            words = f"{path}: not a keyring: it doesn't begin with an OpenPGP public key"
            raise FleetInvalid(words, hint=_CORRECT_KEYRING)
        return content


class NoFiles(Files):
    """Reads nothing: the roles read what their variables name."""

    def content(self, path: str) -> bytes:  # noqa: ARG002
        """Nothing."""
        return b""

    keyring = content


def encoded(content: bytes) -> str:
    """The content as a desired state has it."""
    return base64.b64encode(content).decode()


@dataclass(frozen=True)
class RunFiles:
    """Files on the controller that the run hands to the hosts, and what it knows of them."""

    #: directory of the fleet file; relative file names in it start there
    fleet_dir: Path = Path()
    #: the zipapp
    program: Path = Path("gdsdeploy-host.pyz")
    #: where a run has its archives of built modules
    modules: Path = Path("modules")
    #: host → what it is, where its cufile.json is fitted to that
    fits: Mapping[str, FitTarget] = field(default_factory=dict)
    #: machine → where its modules come from; what the fleet file says, for those that are not there
    supplies: Mapping[str, Supply] = field(default_factory=dict)
    #: where certificates of keys that sign modules are kept
    certificates: Path = Path("certificates")
    #: where public keys of machines that build are on record
    builders: Path = Path("builders")
    #: id of the run, which locks each host until it ends, and the owner that other runs see; empty: no run
    run: str = ""
    who: str = ""
    #: stands for its host
    image: Image | None = None


def packages_for(target: Target, *, host: bool, build: bool) -> list[Package]:
    """The locked packages that a machine needs, given whether it runs the stack and whether it builds modules."""
    places = {"both"} | ({"host"} if host else set()) | ({"build"} if build else set())
    return [package for package in target.packages if package.needed_by in places]


def packaged_files(target: Target) -> list[PackagedFile]:
    """The module files that locked packages bring, with the packages' versions."""
    versions = target.versions_of_modules()
    return [PackagedFile(p.module, p.file, p.sha256, p.package, versions[p.package]) for p in target.packaged]


def superseded(target: Target) -> list[managers.Package]:
    """Sources that DKMS builds for one version of the driver: other versions leave before it comes, on any host.

    Where packages bring the modules, every version leaves: what DKMS builds would have precedence.  They leave with the
    kernel's packages too: the driver's userland may be there already.
    """
    if target.packaged:
        names = stack_platform_for(target.os).displaced_packages(target.driver.version.partition(".")[0])
        return [managers.Package(name, "") for name in names]
    return exactly(p for p in target.packages if p.part in {"driver-source", "nvidia-fs-source"})


def exactly(packages: Iterable[Package]) -> list[managers.Package]:
    """Locked packages in their versions, as the host program takes them."""
    return [managers.Package(package.package, package.version) for package in packages]


def addresses(target: Target) -> list[str]:
    """Where the lock's repositories are, each once."""
    return list(dict.fromkeys(index.uri for index in target.indices))


def keyrings(fleet: Fleet, target: Target, fleet_dir: Path) -> dict[str, str]:
    """Place on a host → keyring to bring there: the fleet's own that no package of the operating system carries."""
    keyrings: dict[str, str] = {}
    platform = stack_platform_for(target.os)
    for index in target.indices:
        setting = repo_settings.setting(fleet, index.repository, platform, target.arch)
        keyring = str(setting.declared().keyring)
        if not setting.entry.signed_by and keyring not in (".", index.host_keyring):
            keyrings[index.host_keyring] = str(paths.locate(fleet_dir, keyring))
    return dict(sorted(keyrings.items()))


def indices(target: Target) -> list[managers.Index]:
    """The lock's repositories, as the host program takes them."""
    presets = stack_platform_for(target.os).presets()
    return [
        managers.Index(
            repository=index.repository,
            uri=index.uri,
            suite=index.suite,
            components=list(index.components),
            host_keyring=index.host_keyring,
            exclusive=index.repository not in presets,
            metadata=index.metadata,
        )
        for index in target.indices
    ]


@dataclass(frozen=True)
class Machine:
    """A host or a builder, and what a run has for it.

    controller: reads the files that desired states contain.
    """

    fleet: Fleet
    lock: Lock
    name: str
    files: RunFiles = RunFiles()
    controller: Files = field(default_factory=NoFiles)

    @cached_property
    def supply(self) -> Supply:
        """Where its modules come from."""
        return self.files.supplies.get(self.name) or by_intent(self.fleet, self.lock, self.name)

    @property
    def profile_name(self) -> str:
        return self.fleet.machine(self.name).profile

    @cached_property
    def profile(self) -> Profile:
        """What the fleet file says about machines like it."""
        return self.fleet.profiles[self.profile_name]

    @cached_property
    def target(self) -> Target:
        """What is locked for its profile; raises LockStale."""
        target = self.lock.targets.get(self.profile_name)
        if target is None:
            raise LockStale(f"the lock has nothing for profile {self.profile_name}", hint="Run `gdsdeploy lock` again")
        return target

    @cached_property
    def platform(self) -> StackPlatform:
        """Its operating system."""
        return stack_platform_for(self.target.os)

    @property
    def kind(self) -> Hashable:
        """What else than its name and its builder's decides about its desired states, given the files of a run."""
        fleet, name, fitted = self.fleet, self.name, self.files.fits.get(self.name)
        own = (fleet.modules(name), fleet.imex_nodes(name), tuple(selection.waivers_of(fleet, name)), self.image)
        return (self.profile_name, self.is_host, replace(self.supply, origin=""), *own, name if fitted else "")

    @property
    def release(self) -> str:
        """The locked kernel's."""
        return self.target.kernel.release

    @property
    def manager(self) -> str:
        """Its package manager."""
        return self.platform.manager

    @property
    def is_host(self) -> bool:
        """Whether it runs the stack; a builder doesn't."""
        return self.name in self.fleet.hosts

    @property
    def builds(self) -> bool:
        """Whether it builds its modules."""
        return self.supply.mode == "build"

    @property
    def boots(self) -> bool:
        """Whether gdsdeploy chooses its kernel."""
        return self.is_host and self.profile.own_kernel

    @property
    def image(self) -> str:
        """Of the root folder of an image: ``network`` or ``disk``, without or with a boot loader; empty: it is none."""
        image = self.files.image
        if image is None or image.name != self.name:
            return ""
        return "disk" if image.root.has_loader else "network"

    @cached_property
    def packages(self) -> list[Package]:
        """The locked packages that it needs."""
        return packages_for(self.target, host=self.is_host, build=self.builds)

    @cached_property
    def pins(self) -> list[managers.Pin]:
        """The same, with the checksums of their files."""
        return [managers.Pin(package.package, package.version, package.sha256) for package in self.packages]

    @cached_property
    def packages_of(self) -> Mapping[str, list[Package]]:
        """Those packages by what brings them: ``kernel``, ``cufile``, ``driver`` and ``modules``.

        A builder has one set for all that isn't its kernel's: its packages need each other's.
        """
        sets: dict[str, list[Package]] = {"kernel": [], "cufile": [], "driver": [], "modules": []}
        for package in self.packages:
            if package.part in KERNEL_PARTS:
                sets["kernel"].append(package)
            elif package.part in {"libcufile", "gds-tools"}:
                sets["cufile"].append(package)
            elif package.needed_by == "build":
                sets["modules"].append(package)
            else:
                sets["driver"].append(package)
        if self.is_host:
            return sets
        return {**sets, "modules": [*sets["driver"], *sets["modules"]], "driver": [], "cufile": []}

    @cached_property
    def locked(self) -> list[str]:
        """The names of all packages that the lock has for its profile."""
        return sorted(package.package for package in self.target.packages)

    @cached_property
    def sources(self) -> tuple[list[managers.Index], dict[str, str]]:
        """Its repositories, or the fleet's mirror; and place on the host → keyring on the controller."""
        brought = keyrings(self.fleet, self.target, self.files.fleet_dir)
        if self.fleet.mirror is None:
            return indices(self.target), brought
        return host_sources.of_mirror(self.fleet.mirror, self.target, self.files.fleet_dir, brought)

    def fitted(self, host: FitTarget) -> Machine:
        """The same, whose cufile.json is fitted to what it is."""
        return replace(self, files=replace(self.files, fits={self.name: host}))

    @cached_property
    def cufile(self) -> str:
        """The text of a host's cufile.json; empty while the facts that it is fitted to are not known.

        Raises FleetInvalid and HostUnfit.
        """
        fit = self.files.fits.get(self.name)
        if not self.is_host or (self.profile.fit is not None and fit is None):
            return ""
        return render(self.profile_name, self.profile, self.target.libcufile.version, fit)

    @cached_property
    def loads(self) -> list[str]:
        """Modules that a host's boot loads, in order, without those that a unit loads."""
        nvidia_fs = self.profile.mode == "nvidia-fs" and self.target.nvidia_fs is not None
        return ["nvidia", *(["nvidia-fs"] if nvidia_fs else [])]

    @property
    def umad(self) -> list[str]:
        """The kernel's module over which NVLSM reaches NVSwitches, loaded before the fabric manager starts NVLSM."""
        return ["ib_umad"] if "nvlink5" in self.profile.companions else []

    @property
    def peermem(self) -> list[str]:
        """The module that a unit loads, because it has to come after the RDMA core."""
        return [PEERMEM] if self.profile.rdma == "peermem" else []

    @cached_property
    def archive_path(self) -> str:
        """The archive of modules that it hands over or receives; empty where it does neither."""
        if self.supply.mode == "packaged" or self.supply.source == "kept":
            return ""
        alone = self.builds and (not self.supply.delivers if self.name in self.files.supplies else self.is_host)
        return "" if alone else str(archive_of(self.supply.want, self.files.modules))

    @property
    def builder_key_path(self) -> str:
        """Where the public key of the machine that builds for it is on record; empty: no machine does."""
        return str(self.files.builders / f"{self.supply.origin}.pub") if self.supply.origin else ""

    @cached_property
    def certificate_path(self) -> str:
        """Where the controller keeps the certificate of its modules; empty: they aren't signed.

        The name is of the fleet, the profile and the builder's file: a profile with another key has no certificate here
        until its builder has handed that over.
        """
        if self.profile.signing is None:
            return ""
        parts = (self.files.fleet_dir, self.profile_name, self.profile.signing.certificate)
        owner = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
        return str(self.files.certificates / f"{owner}.der")
