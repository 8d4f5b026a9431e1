"""Intent: what ``fleet.yml`` says, and nothing that had to be looked up; names in it that point nowhere."""

from __future__ import annotations

import datetime as dt
import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, Strict, StringConstraints, field_validator, model_validator

from gdsdeploy.model.profile_parts import (
    AdapterCount,
    Boot,
    Companion,
    Gate,
    ImexNode,
    Load,
    ModelCount,
    Signing,
    Watch,
    check_companions,
    imex_domains,
)
from gdsdeploy.model.rollout_settings import Labels, Rollout, Seconds
from gdsdeploy.model.text import (
    SECRET,
    AbsolutePath,
    Address,
    Fingerprint,
    FleetId,
    Model,
    Name,
    NetworkAddress,
    PackageName,
    PackagePattern,
    SshFile,
    Suite,
    matching,
)


class Repository(Model):
    """A signed package repository; what is left out comes from the platform's preset of the same name."""

    kind: Literal["apt", "rpm"] | None = None
    #: Base address; without it, the controller's own apt configuration says where this archive is.
    uri: Address | None = Field(default=None, json_schema_extra=SECRET)
    suites: Annotated[tuple[Suite, ...], Strict(False)] | None = None
    components: Annotated[tuple[Suite, ...], Strict(False)] | None = None
    #: OpenPGP keyring file on the controller that holds the signing keys.
    keyring: AbsolutePath | None = None
    #: Full fingerprints of the primary keys that may sign; one good signature by one of them is required.
    fingerprints: Annotated[tuple[Fingerprint, ...], Strict(False)] | None = None
    #: ``unsigned``: use its index without a signature, for the reason ``why``; rpm only.
    metadata: Literal["signed", "unsigned"] = "signed"
    #: Full fingerprints of the primary keys, in ``keyring``, that sign each package of an unsigned repository.
    package_keys: Annotated[tuple[Fingerprint, ...], Strict(False)] | None = None
    why: Annotated[str, matching(r"^[^\x00-\x1f\x7f]+$", "write the reason in one line")] | None = None
    #: Keyring path on the host for apt's Signed-By; default: one that is installed from ``keyring``.
    signed_by: AbsolutePath | None = None
    #: Seconds that an index may be old, whatever its Valid-Until says; without it, an old one is a warning.
    max_age: Annotated[Seconds, Field(ge=3600, le=10 * 365 * 86400)] | None = None

    @model_validator(mode="after")
    def _choice_with_a_reason(self) -> Self:
        if self.metadata == "signed":
            if self.package_keys or self.why:
                raise ValueError("package_keys and why belong to a repository with `metadata: unsigned`")
            return self
        if self.kind == "apt":
            raise ValueError("metadata: apt packages have no signatures, so their index has to be signed")
        if not self.why:
            raise ValueError("metadata: say `why` an index without a signature is used")
        if self.fingerprints:
            raise ValueError("fingerprints sign an index, and this one is unsigned: write package_keys")
        return self


class Mirror(Model):
    """A mirror that `gdsdeploy mirror` wrote, which the hosts use instead of the original repositories."""

    #: As the hosts reach it.
    uri: Address = Field(json_schema_extra=SECRET)
    #: File on the controller that has its key, relative to the fleet file; the mirror's folder has it.
    keyring: Annotated[str, StringConstraints(min_length=1)]


class InventorySource(Model):
    """An Ansible inventory that the hosts come from."""

    #: file or folder, relative to the fleet file
    file: Annotated[str, matching(r"^[^,\x00-\x1f\x7f]+$", "write the name of a file, in one line and without commas")]
    #: group of the inventory → profile of its hosts
    groups: dict[Annotated[str, StringConstraints(min_length=1)], Name] = Field(min_length=1)


GpuClass = Literal[
    "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "grace-hopper", "blackwell", "rubin"
]  # fmt: skip

#: Where a host's kernel modules come from: ``build``: it builds them; ``receive``: another host does; ``auto``: it
#: receives them where one of its suppliers builds for its key, and builds them for itself where none does.
HostModules = Literal["auto", "build", "receive"]
#: Of a profile also ``packaged``: its lock has packages with modules that the distribution has built and signed.
Modules = Literal["auto", "build", "receive", "packaged"]

#: How data reaches GPU memory: ``direct`` accepts either direct mechanism, ``compat`` accepts the bounce buffer.
PathSetting = Literal["direct", "nvidia-fs", "p2pdma", "compat"]

#: "newest", a branch, an exact version or bounds; host/model/compat.py reads it.
_VERSION = r"[0-9][0-9A-Za-z.+~:_-]*"
_PIN = re.compile(rf"^(newest|(<|<=|>|>=|==|=)?\s*{_VERSION}(\s*,\s*(<|<=|>|>=)\s*{_VERSION})*)$")


def _check_pin(value: object) -> object:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f'a version is text: write it in quotes, "{value}"')
    if isinstance(value, str) and not _PIN.match(value):
        raise ValueError(
            'a version pin is "newest", a branch ("550"), an exact version ("550.163.01") or bounds (">=550, <560")'
        )
    return value


#: Name and value of a parameter of a kernel module, which are part of a line of modprobe.d.
Parameter = Annotated[
    str, matching(r"^[A-Za-z0-9_]+$", "write the name of a parameter, such as NVreg_EnableStreamMemOPs")
]
ParameterValue = Annotated[str, matching(r"^[^\x00-\x1f\x7f]*$", "write the value of a parameter in one line")]


class Driver(Model):
    """The NVIDIA driver asked for."""

    version: str = "newest"
    flavour: Literal["open", "proprietary"] = "open"
    #: Parameters of the nvidia module, rendered into modprobe.d.
    options: dict[Parameter, ParameterValue | int] = Field(default_factory=dict)

    _pin = field_validator("version", mode="before")(_check_pin)


class KernelPin(Model):
    """The kernel asked for."""

    version: str = "newest"
    #: Which of the distribution's builds, such as ``nvidia-64k``; None: the one that the system has by default.
    flavour: (
        Annotated[str, matching(r"^[a-z0-9][a-z0-9.-]*$", "write the name of a kernel flavour, such as nvidia-64k")]
        | None
    ) = None

    _pin = field_validator("version", mode="before")(_check_pin)


class Mount(Model):
    """A storage mount of a profile and the path that its I/O has to take."""

    mount: AbsolutePath
    path: PathSetting = "direct"
    #: Whether validate may make a scratch file on it, to try direct I/O and to prove the path.
    scratch: bool = True
    #: What it has to deliver when it is tried under load; without it, it is not.
    load: Load | None = None

    @model_validator(mode="after")
    def _load_needs_a_file(self) -> Self:
        if self.load is not None and not self.scratch:
            raise ValueError("load reads from a scratch file, which scratch: false forbids")
        return self


def _check_cufile(value: object, where: str = "") -> object:
    """cufile.json knows booleans, whole numbers, text, lists of those, and objects; it has no null and no fractions."""
    match value:
        case dict():
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise ValueError(f"{where}{key!r}: a key is text")
                _check_cufile(inner, f"{where}{key}.")
        case list():
            for inner in value:
                _check_cufile(inner, where)
        case _ if not isinstance(value, (bool, int, str)):
            raise ValueError(f"{where.rstrip('.')}: cufile.json has no value like {value!r}")
    return value


class FleetWaiver(Model):
    """A check that need not pass until a day."""

    #: Id of a check, with or without a subject.
    check: Annotated[str, StringConstraints(min_length=1)]
    #: The last day on which it holds, in UTC.
    until: dt.date
    reason: Annotated[str, StringConstraints(min_length=1)]
    #: Names of hosts or shell patterns.
    hosts: Annotated[tuple[str, ...], Strict(False)] = ("*",)

    @field_validator("until", mode="before")
    @classmethod
    def _day(cls, value: object) -> object:
        return dt.date.fromisoformat(value) if isinstance(value, str) else value


class Fit(Model):
    """What of a profile's cufile.json is fitted to each host, from what that host is."""

    #: RDMA interfaces whose addresses are listed: ``rail``: one for each network; ``near``: the nearest to each GPU.
    addresses: Literal["none", "all", "rail", "near"] = "none"
    family: Literal["any", "ipv4", "ipv6"] = "any"
    #: Whether pools are made smaller where the host's memory or its GPUs' BAR1 are too small for the library's own.
    pools: bool = True


#: As `nvidia-smi topo` has them, nearest first.
Distance = Literal["PIX", "PXB", "PHB", "NODE", "SYS"]


class TopologySettings(Model):
    """What the PCIe tree of a profile's hosts has to be."""

    #: The farthest that the nearest NVMe disk, or network adapter, of each GPU may be.
    nvme: Distance | None = None
    nic: Distance | None = None
    #: File with the golden topology of this kind of machine, relative to the fleet file.
    golden: Annotated[str, StringConstraints(min_length=1)] | None = None
    #: What is in that file, or why it cannot be used; set by the reader of the fleet file.
    _document: dict[str, Any] | str = PrivateAttr(default="it was not read")

    @property
    def document(self) -> dict[str, Any] | str:
        """The golden topology, or why it can't be used."""
        return self._document


_SYSTEM = "write the name of the system, a hyphen and its release, such as debian-13 or rhel-9.4"
SystemName = Annotated[str, matching(r"^[a-z]+-[0-9]+(\.[0-9]+)?$", _SYSTEM)]


class Profile(Model):
    """One kind of host: operating system, pins, configuration."""

    os: SystemName
    arch: Literal["x86_64", "aarch64"] = "x86_64"
    repositories: Annotated[tuple[Name, ...], Strict(False)] | None = None
    kernel: KernelPin = KernelPin()
    driver: Driver = Driver()
    nvidia_fs: str = "newest"
    libcufile: str = "newest"
    #: The mechanism this profile is built for; ``compat`` installs no nvidia-fs.
    mode: Literal["nvidia-fs", "p2pdma", "compat"] = "nvidia-fs"
    #: How adapters reach GPU memory; a fleet file may also say ``auto``.
    rdma: Literal["none", "peermem", "dmabuf"] = "none"
    #: What has to run beside the driver, in its own version.
    companions: Annotated[tuple[Companion, ...], Strict(False)] = ()
    #: Packages that may leave hosts although the lock doesn't replace them.
    removes: Annotated[tuple[PackagePattern, ...], Strict(False)] = ()
    #: CUDA packages to lock and install; none that pulls a driver.
    cuda: Annotated[tuple[PackageName, ...], Strict(False)] = ()
    #: DOCA or OFED packages to lock and install; the version of the first is the release that rules judge.
    doca: Annotated[tuple[PackageName, ...], Strict(False)] = ()
    #: Which GPUs the hosts have, for the rules that depend on it.
    gpu: GpuClass | None = None
    #: Sections of cufile.json laid over the rendered defaults.
    cufile: dict[str, dict[str, Any]] = Field(default_factory=dict)
    #: Statistics that each process with cuFile keeps for others to read; 1 and 2 have no paths.
    cufile_stats: Literal[0, 3] = 0
    #: Without it the file is the same on every host of the profile, and none is asked.
    fit: Fit | None = None
    storage: Annotated[tuple[Mount, ...], Strict(False)] = ()
    topology: TopologySettings = TopologySettings()
    #: Devices that every host has; without a key, their number is not checked.
    gpus: ModelCount | None = None
    nics: AdapterCount | None = None
    nvme: ModelCount | None = None
    #: Without it modules are signed as DKMS does by itself, or not at all.
    signing: Signing | None = None
    #: Name of the builder whose audited modules the hosts receive; without it see :meth:`Fleet.suppliers`.
    builder: Name | None = None
    #: Whether other machines that the fleet file has build may supply them where that builder doesn't.
    builder_fallback: bool = False
    modules: Modules = "auto"
    #: Whether provision may reboot a host of this profile.
    reboot: bool = True
    #: Whether its hosts choose the kernel that they run; not so containers, images and what boots from the network.
    own_kernel: bool = True
    #: Kernel arguments and module options; also ``auto`` for the preset alone.
    boot: Boot = Boot()
    gate: Gate = Gate()
    watch: Watch = Watch()

    _pins = field_validator("nvidia_fs", "libcufile", mode="before")(_check_pin)
    _cufile = field_validator("cufile")(_check_cufile)

    @model_validator(mode="before")
    @classmethod
    def _automatic_rdma(cls, value: object) -> object:
        """``rdma: auto`` is DMA-BUF where it serves: it needs no module that has to be built against OFED."""
        if not isinstance(value, dict) or value.get("rdma") != "auto":
            return value
        driver = value.get("driver")
        flavour = driver.get("flavour", "open") if isinstance(driver, dict) else "open"
        return {**value, "rdma": "dmabuf" if flavour == "open" else "peermem"}

    @field_validator("driver", "kernel", mode="before")
    @classmethod
    def _short_pin(cls, value: object) -> object:
        return value if isinstance(value, dict) else {"version": _check_pin(value)}

    @field_validator("boot", mode="before")
    @classmethod
    def _short_boot(cls, value: object) -> object:
        return {"preset": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _boot_needs_a_kernel(self) -> Self:
        if self.boot != Boot() and not self.own_kernel:
            raise ValueError("boot sets up a kernel that these hosts don't choose: own_kernel is false")
        return self

    @model_validator(mode="after")
    def _fitting_companions(self) -> Self:
        check_companions(self.companions, self.gpu)
        return self

    @model_validator(mode="after")
    def _packaged_modules(self) -> Self:
        unfit = {
            "signing": (self.signing, "who made the packages has signed the modules"),
            "builder": (self.builder, "no machine builds for these hosts"),
            "doca": (self.doca, "the packages' modules are not built against another RDMA core than the kernel's"),
            "rdma": (self.rdma == "peermem", "nvidia-peermem has to be built against OFED; write rdma: dmabuf"),
        }
        for key, (value, why) in unfit.items() if self.modules == "packaged" else ():
            if value:
                raise ValueError(f"modules: packaged doesn't go with {key}: {why}")
        return self

    @field_validator("gate", "watch", mode="before")
    @classmethod
    def _short_switch(cls, value: object) -> object:
        return {"enabled": value} if isinstance(value, bool) else value

    @field_validator("companions", "removes", "cuda", "doca", "storage")
    @classmethod
    def _listed_once(cls, value: tuple[str | Mount, ...]) -> tuple[str | Mount, ...]:
        names = [entry if isinstance(entry, str) else f"the mount {entry.mount}" for entry in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name} is listed twice")
        return value


class Ssh(Model):
    """How to reach a host.  Relative file names are relative to the fleet file."""

    address: NetworkAddress | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    user: (
        Annotated[str, matching(r"^[a-z_][a-z0-9_.-]*$", "write a login name: lower-case letters, digits, . _ and -")]
        | None
    ) = None
    identity_file: SshFile | None = None
    known_hosts: SshFile | None = None
    #: ssh_config(5) instead of the user's and the system's own
    config: SshFile | None = None
    #: installed: verbs that only read ask the host's installed program, which a rule of sudo can allow alone
    read_only: Literal["sent", "installed"] | None = None


class FleetHost(Ssh):
    """A host and its profile."""

    profile: Name
    modules: HostModules | None = None  # None: as its profile says
    #: by which a rollout orders and groups hosts
    labels: Labels = Field(default_factory=dict)
    imex: ImexNode | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        return {"profile": value} if isinstance(value, str) else value


class Fleet(Model):
    """The whole of a fleet file."""

    version: Literal[1]
    repositories: dict[Name, Repository] = Field(default_factory=dict)
    mirror: Mirror | None = None
    #: File of this machine with logins for its fetches, relative to the fleet file; its form is that of apt_auth.conf.
    credentials: Annotated[str, StringConstraints(min_length=1)] | None = Field(default=None, json_schema_extra=SECRET)
    #: OpenSSH's allowed_signers file: who may sign the lock; relative to the fleet file.  None: it needs no signature.
    signers: SshFile | None = None
    #: keys that no longer count, as a list or a KRL of ssh-keygen
    revoked_signers: SshFile | None = None
    #: the fleet's own id, which its locks name; needed with ``signers``
    fleet_id: FleetId | None = None
    ssh: Ssh = Ssh()
    profiles: dict[Name, Profile] = Field(min_length=1)
    builders: dict[Name, FleetHost] = Field(default_factory=dict)
    #: its hosts are among ``hosts``, where the reader of the fleet file puts them
    inventory: InventorySource | None = None
    hosts: dict[Name, FleetHost] = Field(default_factory=dict)
    waivers: Annotated[tuple[FleetWaiver, ...], Strict(False)] = ()
    rollout: Rollout = Rollout()
    #: profile → its suppliers, where they were chosen in a larger fleet
    _suppliers: dict[str, tuple[str, ...]] = PrivateAttr(default_factory=dict)
    _any_serial: bool = PrivateAttr(default=False)
    #: rules of host/model/compat.py that it has beside gdsdeploy's; set by the reader of the fleet file
    _own_rules: tuple[Any, ...] = PrivateAttr(default=())
    #: addresses by domain, with the hosts that they were read from: a copy with other hosts reads its own
    _imex: tuple[dict[str, FleetHost], dict[str, tuple[str, ...]]] | None = PrivateAttr(default=None)

    def with_any_serial(self) -> Self:
        """The same fleet, whose hosts also take a lock that is older than theirs."""
        fleet = self.model_copy()
        fleet._any_serial = True
        return fleet

    @property
    def any_serial(self) -> bool:
        """Whether hosts take a lock that is older than theirs."""
        return self._any_serial

    def imex_nodes(self, name: str) -> tuple[str, ...]:
        """The addresses in the IMEX domain of the host or builder ``name``; empty: it is in none."""
        own = self.hosts[name].imex if name in self.hosts else None
        return self._imex_domains()[own.domain] if own is not None else ()

    def _imex_domains(self) -> dict[str, tuple[str, ...]]:
        if self._imex is None or self._imex[0] is not self.hosts:
            self._imex = (self.hosts, imex_domains(self.hosts))
        return self._imex[1]

    def everyone(self) -> dict[str, FleetHost]:
        """Hosts and builders by name."""
        return {**self.builders, **self.hosts}

    def machine(self, name: str) -> FleetHost:
        """The host or builder ``name``; raises KeyError."""
        return self.hosts[name] if name in self.hosts else self.builders[name]

    def modules(self, name: str) -> Modules:
        """Where the modules of the host or builder ``name`` come from; a builder builds."""
        host = self.machine(name)
        return "build" if name in self.builders else host.modules or self.profiles[host.profile].modules

    def suppliers(self, name: str) -> tuple[str, ...]:
        """Machines whose modules the host or builder ``name`` may receive, in the order of preference.

        They are the profile's builder, with others only if ``builder_fallback`` is set; else the profile's machines
        that have to build, then builders and hosts with ``modules: build`` of other profiles, whatever hosts claim.
        """
        profile = self.machine(name).profile
        return self._suppliers.get(profile) or self._named_suppliers(profile)

    def alone(self, name: str) -> Self:
        """The fleet with no other machine than ``name``, whose suppliers and IMEX domain are what they were."""
        host, group = self.machine(name), "builders" if name in self.builders else "hosts"
        fleet = self.model_copy(update={"builders": {}, "hosts": {}, group: {name: host}})
        fleet._suppliers = {host.profile: self.suppliers(name)}
        fleet._imex = (fleet.hosts, self._imex_domains())
        return fleet

    def _named_suppliers(self, profile: str) -> tuple[str, ...]:
        everyone, pinned = self.everyone(), self.profiles[profile].builder
        machines = [name for name in everyone if everyone[name].profile == profile and self.modules(name) == "build"]
        if pinned is not None:
            others = machines if self.profiles[profile].builder_fallback else []
            return tuple(dict.fromkeys([pinned, *others]))
        single = [name for name in everyone if name in self.builders or everyone[name].modules == "build"]
        return tuple(dict.fromkeys([*machines, *single]))

    def connection(self, name: str) -> Ssh:
        """The host's own connection settings over the fleet's; None leaves a setting to OpenSSH's configuration."""
        own = self.machine(name)
        settings = {key: getattr(own, key) or getattr(self.ssh, key) for key in Ssh.model_fields}
        return Ssh(**{**settings, "address": settings["address"] or name})


def references(fleet: Fleet) -> list[tuple[tuple[str, ...], str]]:
    """What pydantic cannot see: names that point nowhere.  Returns (path of keys, message) pairs."""
    problems: list[tuple[tuple[str, ...], str]] = [
        *(
            []
            if fleet.hosts or fleet.inventory
            else [(("hosts",), "this key is required, with a host or more; or an inventory")]
        ),
    ]
    problems += [
        ((section, name, "profile"), f"there is no profile {host.profile!r}")
        for section, hosts in (("hosts", fleet.hosts), ("builders", fleet.builders))
        for name, host in hosts.items()
        if host.profile not in fleet.profiles
    ]
    problems += [
        (("hosts", name), f"{name!r} is also a builder; a machine is one or the other")
        for name in fleet.hosts.keys() & fleet.builders.keys()
    ]
    problems += [
        (("builders", name, "modules"), "a builder builds; leave this key out")
        for name, host in fleet.builders.items()
        if host.modules not in (None, "build")
    ]
    problems += [
        ((section, name, "modules"), f"its profile {host.profile!r} takes its modules from packages")
        for section, hosts in (("hosts", fleet.hosts), ("builders", fleet.builders))
        for name, host in hosts.items()
        if host.profile in fleet.profiles
        and fleet.profiles[host.profile].modules == "packaged"
        and (host.modules is not None or section == "builders")
    ]
    problems += [
        (("inventory", "groups", group), f"there is no profile {profile!r}")
        for group, profile in (fleet.inventory.groups if fleet.inventory else {}).items()
        if profile not in fleet.profiles
    ]
    for name, profile in fleet.profiles.items():
        where = ("profiles", name, "builder")
        if profile.builder is None:
            if profile.builder_fallback:
                problems.append(((*where[:2], "builder_fallback"), "there is no builder to fall back from: name one"))
            continue
        builder = fleet.builders.get(profile.builder)
        if builder is None:
            problems.append((where, f"there is no builder {profile.builder!r}"))
        elif builder.profile != name:
            words = f"builder {profile.builder!r} has profile {builder.profile!r}; it can build for that only"
            problems.append((where, words))
    return problems
