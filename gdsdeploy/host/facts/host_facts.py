"""All facts of one host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Tuple, Union

from .cufile import CufileFacts, cufile_facts
from .document import Document
from .driver import (
    DriverFacts,
    NvidiaFsFacts,
    P2pFacts,
    PeermemFacts,
    driver_facts,
    nvidia_fs_facts,
    p2p_facts,
    peermem_facts,
)
from .environment import VARIABLE, EnvironmentFacts, UserlandFacts, environment_facts, userland_facts
from .foreign import ForeignFacts, foreign_facts
from .gdscheck import GdscheckFacts, gdscheck_facts
from .kernel import AuditFacts, BootFacts, KernelFacts, OsFacts, audit_facts, boot_facts, kernel_facts, os_facts
from .packages import DriftFacts, PackageFacts, drift_facts, package_facts
from .pci import HardwareFacts, PciFacts, Topology, hardware_facts, pci_facts, topology_facts
from .processes import ProcessFacts, process_facts
from .rdma import NetworkFacts, Registration, memory, network_facts, registrations
from .storage import StorageFacts, storage_facts
from .unknown import Maybe, Unknown


@dataclass(frozen=True)
class HostFacts:
    """One host at one moment."""

    name: Maybe[str]
    #: UTC, RFC 3339
    collected_at: str
    #: how long the collection took
    seconds: float
    #: collectors that didn't finish
    gaps: Tuple[str, ...]
    os: OsFacts
    kernel: KernelFacts
    boot: BootFacts
    driver: DriverFacts
    nvidia_fs: NvidiaFsFacts
    peermem: PeermemFacts
    audits: AuditFacts
    p2p: P2pFacts
    userland: UserlandFacts
    packages: PackageFacts
    drift: DriftFacts
    foreign: ForeignFacts
    cufile: CufileFacts
    gdscheck: GdscheckFacts
    storage: StorageFacts
    pci: PciFacts
    hardware: HardwareFacts
    topology: Maybe[Topology]
    environment: EnvironmentFacts
    processes: ProcessFacts
    network: NetworkFacts
    #: trials of GPU memory with adapters; empty where none was made
    registrations: Maybe[Tuple[Registration, ...]]
    #: bytes
    memory: Maybe[int]
    #: the evidence itself, to quote from
    document: Document = field(repr=False, compare=False)


def _plain(name: Union[str, Unknown]) -> Union[str, Unknown]:
    """The name of a host, with which lines begin; one that is more than a name is in quotes."""
    return ascii(name) if isinstance(name, str) and not re.fullmatch(r"[A-Za-z0-9._-]+", name) else name


def facts_from(evidence: Any) -> HostFacts:
    """Read every fact; never raises, however malformed the document is."""
    document = Document(evidence)
    driver, pci = driver_facts(document), pci_facts(document)
    environment = environment_facts(document)
    cufile = cufile_facts(document, environment.variables.get(VARIABLE))
    return HostFacts(
        name=_plain(document.host("name")),
        collected_at=document.collected_at(),
        seconds=document.seconds(),
        gaps=document.gaps(),
        os=os_facts(document),
        kernel=kernel_facts(document),
        boot=boot_facts(document),
        driver=driver,
        nvidia_fs=nvidia_fs_facts(document),
        peermem=peermem_facts(document),
        audits=audit_facts(document),
        p2p=p2p_facts(document),
        userland=userland_facts(document),
        packages=package_facts(document),
        drift=drift_facts(document),
        foreign=foreign_facts(document),
        cufile=cufile,
        gdscheck=gdscheck_facts(document),
        storage=storage_facts(document),
        pci=pci,
        hardware=hardware_facts(document, pci, driver),
        topology=topology_facts(document, pci, driver),
        environment=environment,
        processes=process_facts(document, cufile),
        network=network_facts(document),
        registrations=registrations(document),
        memory=memory(document),
        document=document,
    )


def as_dict(value: Any) -> Any:
    """Facts as JSON values; an unknown one becomes ``{"unknown": reason}``."""
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    if is_dataclass(value):
        return {entry.name: as_dict(getattr(value, entry.name)) for entry in fields(value) if entry.repr}
    if isinstance(value, Mapping):
        return {str(key): as_dict(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_dict(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted(as_dict(entry) for entry in value)
    return value
