"""Parts of a profile: how its hosts boot, what runs beside the driver, devices, mounts, services, signed modules.

NVIDIA's IMEX guide: every node's ``/etc/nvidia-imex/nodes_config.cfg`` lists the addresses of all nodes of its domain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, Strict, StringConstraints, field_validator, model_validator

from gdsdeploy.model.hostnames import grouped
from gdsdeploy.model.text import SECRET, AbsolutePath, MaybePath, Model, Name, matching

if TYPE_CHECKING:
    from gdsdeploy.model.fleet import FleetHost

#: As in ``gdsdeploy/host/boot/arguments.py``, which hosts judge by; a test compares both.
FORBIDDEN_ARGUMENTS = frozenset(
    {
        *("BOOT_IMAGE", "root", "rootflags", "rootfstype", "rootdelay", "rootwait", "ro", "rw", "resume"),
        *("resume_offset", "init", "rdinit", "initrd", "noinitrd", "single", "emergency", "rescue", "S", "s", "boot"),
    }
)
FORBIDDEN_ARGUMENT_PREFIXES = ("rd.", "systemd.", "luks.")


def _text(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError('YAML reads on, off, yes, no, true and false as booleans: write the value in quotes, "off"')
    return str(value) if isinstance(value, int) else value


Argument = Annotated[
    str, matching(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", "write the name of a kernel argument, such as nvme_core.multipath")
]
ArgumentValue = Annotated[
    str,
    matching(r"^[A-Za-z0-9_.,:=@/+%~-]*$", "write the value of a kernel argument: one word without blanks and quotes"),
    BeforeValidator(_text),
]
Module = Annotated[
    str, matching(r"^[A-Za-z0-9][A-Za-z0-9_-]*$", "write the name of a kernel module, such as nvme_core")
]
ModuleParameter = Annotated[str, matching(r"^[A-Za-z0-9_]+$", "write the name of a parameter, such as multipath")]
ModuleValue = Annotated[
    str,
    matching(r"^[^\s\"'\\#\x00-\x1f\x7f]*$", "write the value of a parameter: one word without quotes"),
    BeforeValidator(_text),
]


class Boot(Model):
    """The next boot of a profile's hosts, beside the kernel; nothing is set that isn't written here."""

    #: ``auto``: what NVIDIA's guide has for the profile's mode; see ``converge/boot.py``.
    preset: Literal["none", "auto"] = "none"
    #: Name → value; without a value, the name alone.
    arguments: dict[Argument, ArgumentValue | None] = Field(default_factory=dict)
    #: Module → parameter → value, in modprobe.d and in the initramfs.
    module_options: dict[Module, dict[ModuleParameter, ModuleValue]] = Field(default_factory=dict)

    @field_validator("arguments")
    @classmethod
    def _allowed(cls, value: dict[str, str | None]) -> dict[str, str | None]:
        names: list[str] = []
        for name in value:
            if name in FORBIDDEN_ARGUMENTS or name.startswith(FORBIDDEN_ARGUMENT_PREFIXES):
                raise ValueError(f"{name} decides which system boots: leave it to the boot loader")
            names.append(name.replace("-", "_"))
            if names.count(names[-1]) > 1:
                raise ValueError(f"{name} is listed twice: the kernel reads - and _ as one")
        return value

    @field_validator("module_options")
    @classmethod
    def _not_the_driver(cls, value: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        if "nvidia" in value:
            raise ValueError("parameters of nvidia belong into driver.options")
        return value


#: ``nvlink5``: the fabric manager with NVLSM, for fourth-generation NVSwitches.
Companion = Literal["persistenced", "fabricmanager", "imex", "nvlink5"]


def check_companions(companions: tuple[Companion, ...], gpu: str | None) -> None:
    """Raise ValueError for companions that can't serve these GPUs.

    Fabric Manager User Guide: on B200 and B300 it needs NVLSM, and no other Blackwell machine has a fabric manager.
    """
    if gpu == "blackwell" and "fabricmanager" in companions and "nvlink5" not in companions:
        raise ValueError("companions: on Blackwell the fabric manager needs NVLSM; write nvlink5, which brings both")


def _ip(value: str) -> str:
    try:
        return str(ip_address(value))
    except ValueError:
        raise ValueError("write an IP address: IMEX's nodes file has no names") from None


class ImexNode(Model):
    """A host's place in an IMEX domain; the domain's name is short for ``{domain: NAME}``."""

    domain: Name
    #: None: the host's address, which has to be an IP address then
    address: Annotated[str, AfterValidator(_ip)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        return {"domain": value} if isinstance(value, str) else value


def imex_domains(hosts: Mapping[str, FleetHost]) -> dict[str, tuple[str, ...]]:
    """Domain → the addresses of its hosts, in the order of the hosts' names."""
    nodes = ((_address(name, host), host.imex.domain) for name, host in sorted(hosts.items()) if host.imex is not None)
    return {domain: tuple(addresses) for domain, addresses in grouped(nodes).items()}


def domain_problems(
    hosts: Mapping[str, FleetHost], companions: Mapping[str, tuple[Companion, ...]]
) -> Iterator[tuple[str, str]]:
    """(name, what is wrong with its place in a domain); companions: of each profile.

    The hosts of a domain have one profile, because their IMEX services have to be of one version.
    """
    first: dict[str, str] = {}
    owners: dict[tuple[str, str], str] = {}
    for name, host in hosts.items():
        if host.imex is None:
            continue
        domain, address = host.imex.domain, _address(name, host)
        other = first.setdefault(domain, name)
        if "imex" not in companions.get(host.profile, ("imex",)):
            yield name, f"profile {host.profile} doesn't have imex among its companions"
        elif hosts[other].profile != host.profile:
            yield name, f"{other} is in domain {domain}, too, and has another profile"
        try:
            twin = owners.setdefault((domain, _ip(address)), name)
        except ValueError:
            yield name, f"{address} isn't an IP address; write imex: {{domain: {domain}, address: ADDRESS}}"
            continue
        if twin != name:
            yield name, f"{twin} of domain {domain} has the same address, {address}"


def _address(name: str, host: FleetHost) -> str:
    return (host.imex.address if host.imex else None) or host.address or name


#: Part of a device's model, as drivers name it: ``H100``, ``NVIDIA H100 80GB HBM3``.
ModelWords = Annotated[
    str,
    matching(r"^[A-Za-z0-9]([A-Za-z0-9 ._/()+-]*[A-Za-z0-9)+])?$", "write part of a model's name, such as H100"),
]
#: Name of a driver, as the link ``driver`` of a PCI device ends.
DriverName = Annotated[str, matching(r"^[A-Za-z0-9_.-]+$", "write the name of a driver, such as mlx5_core")]


class Devices(Model):
    """How many devices of one kind a host has; the other fields narrow what counts."""

    count: Annotated[int, Field(ge=0, le=1024)]

    def expected(self) -> dict[str, Any]:
        """As the expectation has it: only the fields that the fleet file has."""
        return self.model_dump(exclude_none=True)


class Models(Devices):
    """GPUs or NVMe disks: those whose model contains these words, in any case."""

    model: ModelWords | None = None


class Adapters(Devices):
    """Network adapters: those that this driver runs, and those whose RDMA port has this rate in Gbit/s."""

    driver: DriverName | None = None
    link: Annotated[int, Field(ge=1, le=100_000)] | None = None


def _short(value: object) -> object:
    """``8`` stands for ``{count: 8}``."""
    return {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value


ModelCount = Annotated[Models, BeforeValidator(_short)]
AdapterCount = Annotated[Adapters, BeforeValidator(_short)]


_UNITS = {"kB": 1000, "MB": 1000**2, "GB": 1000**3, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _rate(value: object) -> object:
    """``"5 GB/s"`` → bytes a second."""
    rate = re.fullmatch(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_UNITS)})/s", value) if isinstance(value, str) else None
    if rate is None:
        raise ValueError('a rate is text such as "5 GB/s", "900 MB/s" or "2.5 GiB/s"')
    return round(float(rate[1]) * _UNITS[rate[2]])


class Load(Model):
    """A threshold that is tried only on request, or when a rollout validates."""

    #: The least that has to be read, in bytes a second.
    read: Annotated[int, BeforeValidator(_rate), Field(gt=0)]
    #: For how long.
    seconds: Annotated[int, Field(ge=1, le=60)] = 10


#: Name of a systemd unit.
Unit = Annotated[
    str, matching(r"^[A-Za-z0-9:_.@-]+\.(service|target)$", "write the name of a unit, such as slurmd.service")
]
#: Daemons of schedulers, by which a host gets work.
SCHEDULERS = (
    *("slurmd.service", "kubelet.service", "k3s.service", "k3s-agent.service", "rke2-agent.service"),
    *("pbs.service", "condor.service"),
)


class Gate(Model):
    """The boot gate of a host: see docs/gate.md."""

    enabled: bool = True
    #: Units that start after the gate, whatever it finds.
    before: Annotated[tuple[Unit, ...], Strict(False)] = SCHEDULERS
    #: Units that do not start at all while it is closed.
    required_by: Annotated[tuple[Unit, ...], Strict(False)] = ()
    #: What its look at the host may take.
    seconds: Annotated[int, Field(ge=1, le=600)] = 30
    #: A file that is there while the gate is open; empty: none.
    file: MaybePath = "/run/gdsdeploy/healthy"
    #: Whether Slurm's node is drained and resumed.
    slurm: bool = False
    #: Folder of node_exporter's textfile collector; empty: the usual ones, where they are.
    metrics: MaybePath = ""
    #: Whether each record has PCR 7 of the TPM and the state of Secure Boot.
    measured_boot: bool = False


class Watch(Model):
    """The service that counts I/O through cuFile on a host, for Prometheus: see docs/watch.md."""

    enabled: bool = False
    #: Seconds between two looks at the processes.
    every: Annotated[int, Field(ge=1, le=3600)] = 30
    #: Folder of node_exporter's textfile collector; empty: the usual ones, where they are.
    metrics: MaybePath = ""


class Signing(Model):
    """Whose signature the modules of a profile get; both files are on the machine that builds them."""

    #: Readable by root only, and never copied from there; or pkcs11:… for OpenSSL.
    key: (
        Annotated[str, matching(r"^(/|pkcs11:)[^\x00\n]*$", "write an absolute path, or an address pkcs11:…")] | None
    ) = Field(default=None, json_schema_extra=SECRET)
    certificate: AbsolutePath = "/etc/gdsdeploy-keys/modules.der"
    #: Program and arguments that sign in the key's place: module on standard input, PKCS#7 on standard output.
    signer: Annotated[tuple[Annotated[str, StringConstraints(min_length=1)], ...], Strict(False)] = Field(
        default=(), json_schema_extra=SECRET
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.key and self.signer:
            raise ValueError("a key or a signer makes the signatures, not both")
        if self.signer and not self.signer[0].startswith("/"):
            raise ValueError("signer: give the program's absolute path")
        return self

    @property
    def own_key(self) -> str:
        """The key's file or address; empty where a signer stands for it."""
        return "" if self.signer else self.key or "/etc/gdsdeploy-keys/modules.key"

    @property
    def settings(self) -> str:
        """What ``kmod sign`` reads on a machine that builds."""
        value = {"certificate": self.certificate, "key": self.own_key, "signer": list(self.signer)}
        return json.dumps(value, sort_keys=True) + "\n"
