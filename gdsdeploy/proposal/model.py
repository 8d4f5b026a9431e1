"""What the proposal of a fleet file is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
