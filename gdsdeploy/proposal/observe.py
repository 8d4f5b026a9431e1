"""What a host's facts and package repositories say about a fleet file, and what its proposal is made of.

Pure: a fact that isn't known becomes a note, and never a value.  A key of a host is one that its root trusts, so its
fingerprint is proposed where no vendor's preset has one.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from gdsdeploy.errors import FleetInvalid, HostUnfit
from gdsdeploy.host.apply.packages.aptsources import Source, SourcesError, parse_sources
from gdsdeploy.host.facts import HostFacts, UndecidedError, Unknown
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.facts.unknown import if_known, known
from gdsdeploy.host.io.wording import first_few, line
from gdsdeploy.host.kmod.flavour import flavour_of
from gdsdeploy.host.model.system import gpu_class, major_version
from gdsdeploy.host.paths import APT_PARTS, APT_SOURCES, DNF_PARTS, DNF_VARIABLES
from gdsdeploy.host.subjects import filesystem
from gdsdeploy.host.subjects.condition import DIRECT
from gdsdeploy.host.subjects.mechanisms import choose
from gdsdeploy.host.subjects.modules import ModuleFile
from gdsdeploy.host.subjects.packages import Package
from gdsdeploy.host.subjects.path import path_of
from gdsdeploy.host.subjects.pci import Part
from gdsdeploy.host.subjects.stack import DOCA
from gdsdeploy.host.subjects.storage import MULTIPATH, NVME, NVMEOF, Mount
from gdsdeploy.model.fleet import Repository
from gdsdeploy.model.text import fits
from gdsdeploy.platform import Preset, StackPlatform, stack_platform_for
from gdsdeploy.platform.base import NVLSM
from gdsdeploy.repo.repository import key_fingerprints


@dataclass(frozen=True)
class Kind:
    """What decides which profile a host gets; two hosts of one kind share it.  A text is empty where it isn't known."""

    os: str
    arch: str
    #: name of the kernel's flavour, as a profile has it
    kernel: str
    #: branch of the driver, e.g. ``580``, and ``open`` or ``proprietary``
    driver: str
    flavour: str
    #: names of its package repositories, in the order of a profile
    repositories: tuple[str, ...]
    #: class of its GPUs, as a profile has it
    gpu: str
    #: as explain's rules choose them; empty while no driver runs
    mode: str
    rdma: str
    #: whether it runs a kernel that it doesn't choose
    container: bool


@dataclass(frozen=True)
class ObservedMount:
    """A mount that may hold data for GPUs."""

    mount: str
    filesystem: str
    #: whether the evidence shows that I/O on it takes a direct path; if not, why
    direct: bool
    reason: str = ""


@dataclass(frozen=True)
class ObservedRepository:
    """A repository of a host, by the name that a fleet file uses."""

    name: str
    #: keys of ``repositories.<name>`` that differ from the preset, and all of them
    entry: Mapping[str, Any]
    whole: Mapping[str, Any]
    #: public keys that the controller lacks, as they are on the host; empty: it needs none
    key: bytes = field(default=b"", repr=False)
    #: what to know about it; empty: nothing
    remark: str = ""


@dataclass(frozen=True)
class Observation:
    """One host.  Numbers are None where they aren't known; texts and tuples are then empty, and ``notes`` say why."""

    name: str
    kind: Kind
    #: as ``uname -r``
    release: str
    #: id of the boot, by which a machine with two names shows
    boot: str
    driver: str
    #: whether that driver runs, or is only installed
    driver_runs: bool
    #: whether a package has that driver
    driver_packaged: bool | None
    nvidia_fs: str
    libcufile: str
    #: GPUs, their models, and how many have no known model
    gpus: int | None
    models: tuple[str, ...]
    #: adapters with RDMA, and their driver if all have the same
    nics: int | None
    nic_driver: str
    nvme: int | None
    #: companions of the driver's version
    companions: tuple[str, ...]
    #: packages of CUDA and DOCA: names, and names with versions
    cuda: tuple[str, ...]
    doca: tuple[str, ...]
    secure_boot: bool | None
    mode_reason: str
    rdma_reason: str
    mounts: tuple[ObservedMount, ...]
    repositories: tuple[ObservedRepository, ...]
    #: what isn't known, and what an operator has to know
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """A comment on lines of its own."""

    text: str


@dataclass(frozen=True)
class Entry:
    """A key with its value, or an element of a list (``key`` empty).

    value: plain data, which takes one line; or a tuple of entries and remarks, which follow in lines below.
    off: whether the line is there for the reader only, behind a ``#``.
    """

    key: str
    value: Any
    comment: str = ""
    off: bool = False


Node = Entry | Remark


@dataclass(frozen=True)
class Proposal:
    """A fleet file and what belongs to it."""

    nodes: tuple[Node, ...]
    #: profile → its hosts
    profiles: Mapping[str, tuple[str, ...]]
    #: name of a file in the folder of keys → its content
    keys: Mapping[str, bytes] = field(default_factory=dict)
    #: what to check before the first lock
    checks: tuple[str, ...] = ()


#: The word of a model that tells it from others: H100 of ``NVIDIA H100 80GB HBM3``, A100 of ``NVIDIA A100-SXM4-80GB``.
_MODEL = re.compile(r"\b(GH200|GB[23]00|VR200|[ABHLPTV][0-9]{1,3}[SG]?|RTX [A0-9]+)\b")


def short_model(models: Iterable[str]) -> str:
    """``h100`` for machines with H100s alone; empty where models differ or have no such word."""
    matches = [_MODEL.search(model) for model in models]
    short = {match[0].lower().replace(" ", "-") if match else "" for match in matches}
    return short.pop() if len(short) == 1 else ""


NVIDIA, EPEL = "nvidia", "epel"
#: Keys of a keyring that are proposed; Debian's has 9.
_MOST = 32
#: Why the index of EPEL may be unsigned, as its entry says.
_UNSIGNED = "EPEL signs its packages, not its index"


class _Place(NamedTuple):
    """Where a host has a repository: the part of its address before the preset's path, and the file of its keys."""

    uri: str
    keyring: str


def repositories(
    document: Document,
    platform: StackPlatform,
    arch: str,
    *,
    distributions_driver: bool,
    has_file: Callable[[Path], bool],
) -> tuple[tuple[ObservedRepository, ...], list[str]]:
    """Those of a host that a profile can list, in its order, with the presets that the system needs; and what to know.

    distributions_driver: whether the host's driver is the distribution's own.
    has_file: whether the controller has a file.
    """
    notes: list[str] = []
    is_apt = platform.kind == "apt"
    find = _apt(document, notes) if is_apt else _rpm(document, notes)
    has_sources = any(path.startswith((APT_SOURCES, APT_PARTS, DNF_PARTS)) for path in document.paths("files"))
    if not has_sources:
        notes.append("its package repositories were not looked at")
    own, vendors = platform.presets(), platform.vendor_presets()
    listed: list[ObservedRepository] = []
    for name, preset in own.items():
        place = find(preset, arch)
        if place is None and is_apt and listed and has_sources:
            notes.append(f"it has no repository {name}")
            continue
        listed.append(_observed(name, preset, place, document, platform, arch, has_file))
    if not any(each.entry or each.key or each.remark for each in listed):
        # A group stands for its members.
        groups = dict.fromkeys(own[each.name].group or each.name for each in listed)
        listed = [ObservedRepository(group, {}, {}) for group in groups]
    if not own:
        notes.append(f"{platform.os} has no presets: add its repositories (docs/repositories.md)")
    others: list[ObservedRepository] = []
    for name, preset in vendors.items():
        place = find(preset, arch)
        # Debian's own archive has the whole stack; the others need NVIDIA's repository, and RHEL's equals EPEL's dkms.
        if place is not None or platform.family != "debian":
            others.append(_observed(name, preset, place, document, platform, arch, has_file))
    nvidia = [each for each in others if each.name == NVIDIA]
    rest = [each for each in others if each.name != NVIDIA]
    first = is_apt and not distributions_driver
    chosen = [*nvidia, *listed, *rest] if first else [*listed, *rest, *nvidia]
    return tuple(chosen), notes


def _observed(
    name: str,
    preset: Preset,
    place: _Place | None,
    document: Document,
    platform: StackPlatform,
    arch: str,
    has_file: Callable[[Path], bool],
) -> ObservedRepository:
    """The entry for one repository: what the preset has is left out of it, and is in ``whole``."""
    remarks: list[str] = []
    uri = _address(place, remarks)
    entry: dict[str, Any] = {"uri": uri} if uri and uri != preset.uri else {}
    path = place.keyring if place and place.keyring else str(preset.keyring or "")
    key = _key(document, path)
    own = key_fingerprints(key)[:_MOST]
    foreign = bool(own) and not set(own) & set(preset.fingerprints)
    lacks = preset.keyring is None or not has_file(preset.keyring)
    word = "fingerprints"
    if name == EPEL:
        entry |= {"metadata": "unsigned", "why": _UNSIGNED}
        word = "package_keys"
    if foreign:
        entry[word] = list(own)
        words = "isn't the vendor's published one" if preset.fingerprints else "has no published fingerprint here"
        remarks.append(f"the key that the hosts trust {words}: compare it with its source")
    if place is None and name in (NVIDIA, EPEL):
        remarks.append("not on these hosts, but the stack needs it")
    if lacks and not own:
        remarks.append(f"this machine needs its keys: {preset.keyring or 'name the keyring and fingerprints'}")
    if own and (lacks or foreign) and platform.kind == "apt" and _is_valid(signed_by=path):
        entry["signed_by"] = path
    base = uri or preset.uri or (preset.arm_uri if arch == "aarch64" else "")
    full = preset.path_for(arch)
    whole = {
        "kind": platform.kind,
        "uri": f"{base}/{full}" if full else base,
        **({"suites": list(preset.suites)} if preset.suites else {}),
        **({"components": list(preset.components)} if preset.components else {}),
        "keyring": str(preset.keyring),
        word: list(own if foreign else preset.fingerprints),
        **({"signed_by": path} if platform.kind == "apt" and preset.known_as and _is_valid(signed_by=path) else {}),
        **{key: value for key, value in entry.items() if key not in ("uri", word)},
    }
    return ObservedRepository(name, entry, whole, key if own and (lacks or foreign) else b"", "; ".join(remarks))


def _address(place: _Place | None, remarks: list[str]) -> str:
    """The address as the fleet file may have it; empty where it can't be written there."""
    uri = place.uri if place else ""
    if not uri:
        return ""
    try:
        if urlsplit(uri).username is not None:
            remarks.append("its address on the hosts has a login in it, which was left out: add a mirror's uri")
            return ""
    except ValueError:
        uri = ""
    if not _is_valid(uri=uri):
        remarks.append("its address on the hosts is none that a fleet file can have: add a mirror's uri")
        return ""
    if uri.startswith("file:"):
        remarks.append("its address is a folder of the hosts, which this machine needs, too")
    return uri


def _is_valid(**values: str) -> bool:
    """Whether a repository of a fleet file can have these values."""
    return fits(Repository, values) and all(values.values())


def _key(document: Document, path: str) -> bytes:
    value = if_known(lambda: document.text(path, "binaries"), "") if path else ""
    try:
        return bytes.fromhex(value or "")
    except ValueError:
        return b""


Find = Callable[[Preset, str], _Place | None]


def _apt(document: Document, notes: list[str]) -> Find:
    sources: list[Source] = []
    for path in sorted(path for path in document.paths("files") if path.startswith((APT_SOURCES, APT_PARTS))):
        text = if_known(partial(document.text, path), "") or ""
        try:
            sources += parse_sources(text, path)
        except SourcesError as error:
            notes.append(f"an apt source can't be read: {error.message}")

    def find(preset: Preset, arch: str) -> _Place | None:
        path = preset.path_for(arch)
        fitting = [source for source in sources if "deb" in source.types and _fits(source, preset, path)]
        # Other vendors use a distribution's names of suites, too: its own key decides, then the number of components.
        fitting.sort(key=lambda source: (source.signed_by != str(preset.keyring), -len(_common(source, preset))))
        if not fitting:
            return None
        keyring = fitting[0].signed_by or ""
        uri = fitting[0].uri.rstrip("/")
        return _Place(uri.removesuffix("/" + path) if path else uri, keyring if keyring.startswith("/") else "")

    return find


def _fits(source: Source, preset: Preset, path: str) -> bool:
    if preset.known_as is None:
        return bool(path) and source.uri.rstrip("/").endswith("/" + path)
    least = 1 if source.signed_by in (None, str(preset.keyring)) else 2
    return bool(preset.known_as.fullmatch(source.suite)) and len(_common(source, preset)) >= least


def _common(source: Source, preset: Preset) -> set[str]:
    return set(source.components) & set(preset.components)


def _rpm(document: Document, notes: list[str]) -> Find:
    sections = list(_sections(document, notes))

    def find(preset: Preset, arch: str) -> _Place | None:
        path = preset.path_for(arch)
        for address, keyring in sections:
            if path and address.endswith("/" + path):
                return _Place(address.removesuffix("/" + path), keyring)
        # With a list of mirrors in place of an address, only the file of the keys tells whose it is.
        named = [keyring for _, keyring in sections if keyring == str(preset.keyring)]
        return _Place("", named[0]) if named else None

    return find


def _sections(document: Document, notes: list[str]) -> Iterator[tuple[str, str]]:
    """(address, file of keys) of each repository of dnf that is in use; empty where it names none."""
    variables = _variables(document)
    for path in sorted(path for path in document.paths("files") if path.startswith(DNF_PARTS)):
        text = if_known(partial(document.text, path), "") or ""
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read_string(text)
        except configparser.Error as error:
            notes.append(f"{path} can't be read: {error}")
            continue
        for section in parser.sections():
            values = dict(parser.items(section))
            if values.get("enabled", "1").strip().lower() in ("0", "false", "no", "off"):
                continue
            address = _filled(" ".join(values.get("baseurl", "").split()[:1]), variables)
            key = next((word for word in re.split(r"[\s,]+", values.get("gpgkey", "")) if word.startswith("file:")), "")
            yield address.rstrip("/"), _filled(key.removeprefix("file://"), variables)


def _variables(document: Document) -> dict[str, str]:
    release = major_version(if_known(lambda: document.text("/etc/os-release"), "") or "")
    machine = if_known(lambda: document.host("uname", "machine"), "")
    variables = {"releasever": release, "basearch": machine}
    for path in document.paths("files"):
        value = if_known(partial(document.line, path), None) if path.startswith(DNF_VARIABLES + "/") else None
        if value is not None:
            variables[path.rpartition("/")[2]] = value
    return variables


def _filled(text: str, variables: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda match: variables.get(match[1] or match[2], match[0]), text)


T = TypeVar("T")
#: Mount points of the system itself, and on a local disk also those of accounts and temporary files.
_SYSTEM = re.compile(r"/|/(boot|dev|etc|nix|proc|root|run|snap|sys|usr|var)(/.*)?")
_LOCAL_SYSTEM = re.compile(r"/(home|tmp)(/.*)?")
_ARCHITECTURES: dict[str, Literal["x86_64", "aarch64"]] = {"x86_64": "x86_64", "aarch64": "aarch64"}
_COMPANIONS = {
    "persistenced": r"nvidia-persistenced(-[0-9]+)?",
    "fabricmanager": r"nvidia-fabric-?manager(-[0-9]+)?",
    "imex": r"nvidia-imex(-[0-9]+)?",
}
#: Packages over CUDA's own, of one release or of whichever.
_CUDA = re.compile(r"cuda(-toolkit|-runtime|-libraries)?(-[0-9]+){0,2}")
#: Ubuntu's own packages of the driver have the release in their versions, and NVIDIA's have not.
_UBUNTUS = re.compile(r"ubuntu0\.")
#: Of NVIDIA's repository for Debian, where both have nvidia-kernel-dkms.
_NVIDIAS = ("nvidia-kernel-open-dkms", "nvidia-driver-cuda")
#: Devices that a profile can count, and mounts of a host that are shown.
_MOST_DEVICES, _MOST_MOUNTS = 1024, 100
#: Reasons for a mode that a comment lists.
_REASONS = 2
_VERSION = re.compile(r"[0-9]{3,4}(\.[0-9]{1,4}){1,3}")


def observe(name: str, facts: HostFacts, *, has_file: Callable[[Path], bool]) -> Observation:
    """What of a host goes into a fleet file; raises HostUnfit for a system that no profile can name.

    has_file: whether the controller has a file.
    """
    return _Reader(name, facts, has_file).observation()


class _Reader:
    """Reads the facts of one host; ``notes`` are what isn't known."""

    def __init__(self, name: str, facts: HostFacts, has_file: Callable[[Path], bool]) -> None:
        self.name, self.facts = name, facts
        self.platform, self.arch = _system(name, facts)
        self.notes = [f"not collected: {gap}" for gap in facts.gaps]
        self.installed = self.value(lambda: facts.packages.installed, "packages") or {}
        self.driver, self.flavour, self.runs = _driver(facts, self.value)
        self.gpus = self.value(lambda: facts.hardware.gpus, "GPUs")
        models = [if_known(partial(getattr, part, "model"), "") for part in self.gpus or ()]
        self.models = tuple(filter(None, models))
        own = _is_distributions(self.platform, self.installed)
        self.repositories, notes = repositories(
            facts.document, self.platform, self.arch, distributions_driver=own, has_file=has_file
        )
        self.notes += notes

    def value(self, fact: Callable[[], T | Unknown], what: str) -> T | None:
        """The fact; None and a note where it isn't known."""
        value = known(fact)
        if isinstance(value, Unknown):
            self.notes.append(f"{what}: {value.reason}")
            return None
        return value

    def kind(self, mode: str, rdma: str) -> Kind:
        release = if_known(lambda: self.facts.kernel.release, "")
        container = self.value(lambda: self.facts.environment.container, "whether it is a container") is not None
        own = flavour_of(release) if release and not container else None
        kernel = own.name if own and own.name in self.platform.kernel_flavours(self.arch) else ""
        if not (kernel or container):
            self.notes.append(f"its kernel {release or '(not known)'} has no flavour that {self.platform.os} offers")
        return Kind(
            os=self.platform.os,
            arch=self.arch,
            kernel=kernel,
            driver=self.driver.split(".")[0],
            flavour=self.flavour,
            repositories=tuple(each.name for each in self.repositories),
            gpu=gpu_class(self.models) if len(self.models) == len(self.gpus or ()) else "",
            mode=mode,
            rdma=rdma,
            container=container,
        )

    def mounts(self) -> tuple[ObservedMount, ...]:
        """Not so many that the fleet file becomes too large for its reader."""
        mounts = tuple(_mounts(self.facts, self.value))
        if len(mounts) > _MOST_MOUNTS:
            self.notes.append(f"mounts: {len(mounts)}, of which {_MOST_MOUNTS} are shown")
        return mounts[:_MOST_MOUNTS]

    def count(self, parts: tuple[Part, ...] | None, what: str) -> int | None:
        """Their number, if a fleet file can have it."""
        if parts is None or len(parts) <= _MOST_DEVICES:
            return None if parts is None else len(parts)
        self.notes.append(f"{what}: {len(parts)}, more than a fleet file can count")
        return None

    def observation(self) -> Observation:
        facts, installed, loaded = self.facts, self.installed, self.facts.nvidia_fs.module
        nothing = ("", "", ("no driver runs", "no driver runs"))
        mode, rdma, reasons = _modes(facts, self.value) if self.runs else nothing
        nics, nic_driver = _adapters(self.value(lambda: facts.hardware.nics, "network adapters") or ())
        library = self.value(lambda: facts.cufile.library, "libcufile")
        kind = self.kind(mode, rdma)
        observation = Observation(
            name=self.name,
            kind=kind,
            release=self.value(lambda: facts.kernel.release, "the kernel") or "",
            boot=if_known(lambda: facts.kernel.boot_id, ""),
            driver=self.driver,
            driver_runs=self.runs,
            driver_packaged=_is_packaged(installed, self.driver),
            nvidia_fs=if_known(lambda: loaded.version if loaded.loaded else "", ""),
            libcufile=library or "",
            gpus=self.count(self.gpus, "GPUs"),
            models=self.models,
            nics=nics,
            nic_driver=nic_driver,
            nvme=self.count(self.value(lambda: facts.hardware.nvme, "NVMe disks"), "NVMe disks"),
            companions=tuple(_companions(installed, self.driver, kind.gpu)),
            cuda=tuple(sorted(package for package in installed if _CUDA.fullmatch(package))),
            doca=tuple(f"{package} {installed[package][0].version}" for package in DOCA if installed.get(package)),
            secure_boot=self.value(lambda: facts.kernel.secure_boot, "Secure Boot"),
            mode_reason=reasons[0],
            rdma_reason=reasons[1],
            mounts=self.mounts(),
            repositories=self.repositories,
            notes=(),
        )
        return replace(observation, notes=tuple(dict.fromkeys(map(line, self.notes))))


def _system(name: str, facts: HostFacts) -> tuple[StackPlatform, Literal["x86_64", "aarch64"]]:
    try:
        system, machine = facts.os.name, facts.os.machine
        platform = stack_platform_for(system)
    except UndecidedError as error:
        raise HostUnfit(f"{name}: its operating system isn't known: {line(str(error))[:200]}") from None
    except FleetInvalid as error:
        raise HostUnfit(f"{name}: {line(error.message)[:200]}", hint=error.hint) from None
    if machine not in _ARCHITECTURES:
        raise HostUnfit(f"{name}: the machine is {line(machine)[:40]!r}; known: {', '.join(_ARCHITECTURES)}")
    return platform, _ARCHITECTURES[machine]


def _driver(facts: HostFacts, value: Callable[..., object]) -> tuple[str, str, bool]:
    """(version, flavour, whether it runs) of the driver that runs, else of the one that would be loaded."""
    running, flavour = (
        value(lambda: facts.driver.version, "the driver"),
        value(lambda: facts.driver.flavour, "the driver's flavour"),
    )
    if isinstance(running, str) and _VERSION.fullmatch(running):
        return running, str(flavour or ""), True
    file = value(lambda: facts.driver.module.file, "the driver's module")
    if isinstance(file, ModuleFile) and _VERSION.fullmatch(file.version):
        return file.version, {"NVIDIA": "proprietary"}.get(file.license, "open" if "GPL" in file.license else ""), False
    return "", "", False


def _modes(facts: HostFacts, value: Callable[..., object]) -> tuple[str, str, tuple[str, str]]:
    choice = choose(facts)
    mode, rdma = value(lambda: choice.mode, "mode"), value(lambda: choice.rdma, "rdma")
    reasons = (first_few(choice.mode_why, _REASONS, "; "), first_few(choice.rdma_why, _REASONS, "; "))
    return str(mode or ""), str(rdma or ""), reasons


def _adapters(parts: tuple[Part, ...]) -> tuple[int | None, str]:
    """(number, driver) of the adapters whose rate is known, which are those with RDMA, if one driver runs them all."""
    rated = [part for part in parts if if_known(partial(getattr, part, "link"), None) is not None]
    drivers = {_driver_of(part) for part in rated} - {""}
    same = [part for part in parts if _driver_of(part) in drivers] if len(drivers) == 1 else []
    fits = 0 < len(same) == len(rated) <= _MOST_DEVICES
    return (len(same), next(iter(drivers))) if fits else (None, "")


def _driver_of(part: Part) -> str:
    return if_known(lambda: part.driver, "")


def _is_distributions(platform: StackPlatform, installed: Mapping[str, tuple[Package, ...]]) -> bool:
    """Whether the installed driver is the distribution's own, and not NVIDIA's; of rpm systems none has its own."""
    if platform.family == "debian":
        return not any(name in installed for name in _NVIDIAS)
    drivers = [packages for name, packages in installed.items() if re.match(r"nvidia-(dkms|kernel|utils)-", name)]
    return any(_UBUNTUS.search(package.version) for packages in drivers for package in packages)


def _is_packaged(installed: Mapping[str, tuple[Package, ...]], driver: str) -> bool | None:
    """Whether a package has the driver; None where there is none, or the packages aren't known."""
    if not (driver and installed):
        return None
    return any(_has_version(packages, driver) for name, packages in installed.items() if "nvidia" in name)


def _has_version(packages: tuple[Package, ...], version: str) -> bool:
    pattern = re.compile(rf"(?:[0-9]+:)?{re.escape(version)}(?![0-9])")
    return any(pattern.match(package.version) for package in packages)


def _companions(installed: Mapping[str, tuple[Package, ...]], driver: str, gpu: str) -> Iterator[str]:
    """nvlink5 in the fabric manager's place where NVLSM is there, and on Blackwell, where the profile has to say it."""
    with_nvlsm = gpu == "blackwell" or NVLSM in installed
    for companion, pattern in _COMPANIONS.items():
        packages = [packages for name, packages in installed.items() if re.fullmatch(pattern, name)]
        if driver and any(_has_version(each, driver) for each in packages):
            yield "nvlink5" if companion == "fabricmanager" and with_nvlsm else companion


def _mounts(facts: HostFacts, value: Callable[..., object]) -> Iterator[ObservedMount]:
    mounts = value(lambda: facts.storage.mounts, "mounts")
    for point, mount in sorted(mounts.items()) if isinstance(mounts, Mapping) else ():
        if not _may_hold_data(mount) or _SYSTEM.fullmatch(point):
            continue
        path = path_of(facts, mount)
        if path.path in DIRECT:
            yield ObservedMount(point, mount.filesystem, direct=True)
            continue
        unclear = path.path.reason if isinstance(path.path, Unknown) else f"it takes {path.path}"
        reason = path.causes[0].what if path.causes else unclear
        yield ObservedMount(point, mount.filesystem, direct=False, reason=reason)


def _may_hold_data(mount: Mount) -> bool:
    """Network filesystems with a direct path, and every filesystem on NVMe apart from the system's own."""
    if mount.filesystem in filesystem.NATIVE and mount.filesystem not in filesystem.LOCAL:
        return True
    kinds = {device.kind for device in mount.devices}
    return bool(kinds & {NVME, NVMEOF, MULTIPATH}) and not _LOCAL_SYSTEM.fullmatch(mount.mount_point)
