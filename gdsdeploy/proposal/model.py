"""What the proposal of a fleet file is made of, and names of hosts and GPUs in short."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gdsdeploy.host.io.wording import first_few


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


#: Groups of names that a comment lists.
_MOST = 6
_NUMBER = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)")
#: The word of a model that tells it from others: H100 of ``NVIDIA H100 80GB HBM3``, A100 of ``NVIDIA A100-SXM4-80GB``.
_MODEL = re.compile(r"\b(GH200|GB[23]00|[ABHLPTV][0-9]{1,3}[SG]?|RTX [A0-9]+)\b")
#: Class of GPUs → their models, of the data centre and of workstations.
_CLASSES = {
    "grace-hopper": r"\bGH200\b",
    "blackwell": r"\b(GB200|GB300|B100|B200|B300)\b|\bBlackwell\b",
    "hopper": r"\b(H100|H200|H800|H20)\b",
    "ada": r"\b(L2|L4|L20|L40|L40S)\b|\bAda Generation\b",
    "ampere": r"\b(A2|A10|A10G|A16|A30|A40|A100|A800)\b|\bRTX A[0-9]+\b",
    "turing": r"\bT4G?\b|\bQuadro RTX\b",
    "volta": r"\bV100\b",
    "pascal": r"\b(P4|P40|P100)\b",
}


def ranges(names: Iterable[str]) -> str:
    """``gpu[1-3,5], login`` for gpu1, gpu2, gpu3, gpu5 and login: in their order, and not too many."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    words: dict[str, None] = {}
    for name in names:
        match = _NUMBER.fullmatch(name)
        if match is None:
            words[name] = None
            continue
        begin, digits, end = match.groups()
        groups.setdefault((begin, end, len(digits) if digits.startswith("0") else 0), []).append(int(digits))
    for (begin, end, width), numbers in groups.items():
        spans = ",".join(_spans(sorted(set(numbers)), width))
        single = spans.isdecimal()
        words[f"{begin}{spans}{end}" if single else f"{begin}[{spans}]{end}"] = None
    return first_few(list(words), _MOST)


def _spans(numbers: Sequence[int], width: int) -> list[str]:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ["-".join(f"{number:0{width}d}" for number in dict.fromkeys((span[0], span[-1]))) for span in spans]


def gpu_class(models: Iterable[str]) -> str:
    """The class of all these GPUs; empty where a model isn't known here, or they differ."""
    classes = {next((name for name, pattern in _CLASSES.items() if re.search(pattern, model)), "") for model in models}
    return classes.pop() if len(classes) == 1 else ""


def short_model(models: Iterable[str]) -> str:
    """``h100`` for machines with H100s alone; empty where models differ or have no such word."""
    matches = [_MODEL.search(model) for model in models]
    short = {match[0].lower().replace(" ", "-") if match else "" for match in matches}
    return short.pop() if len(short) == 1 else ""
