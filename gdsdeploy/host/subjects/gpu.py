"""GPUs: what libcufile expects of them and of the PCI tree above them, their BAR1, and what is pinned in it.

WSL, and some virtual machines, lack the PCI tree that libcufile expects; older releases abort there.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Iterable, Iterator, Optional, Sequence, Tuple

from ..facts.unknown import UndecidedError, Unknown, if_known, known, require
from ..model.expectation import Expectation
from ..paths import CUFILE, CUFILE_OPEN, NVFS, PCI
from . import quote
from .condition import DIRECT_PATH, NOTES, USABLE, Cause, Condition, condition, listed_cause, required, rule, weigh
from .pci import GPU, Function
from .types import HostFacts, Mount

if TYPE_CHECKING:
    from ..gdscheck.reader import Gpu, Report

#: GPUs that cuFile serves in compat mode only.
CONSUMER = re.compile(r"\b(GeForce|TITAN)\b")
#: libcufile's reasons for the same.
UNSUPPORTED = r"Model Not Supported|does not have supported"
#: GPUs that a coherent link, NVLink-C2C, connects to a Grace; and the core of Grace: Arm's Neoverse V2.
COHERENT = r"\b(GH200|GB200|GB300)\b"
GRACE_CORE = (0x41, 0xD4F)
ARM, X86 = "aarch64", ("x86_64",)
#: KiB of bounce buffers that libcufile maps through BAR1 by default.
CACHE_KIB = 131072
#: Static BAR1 maps the whole memory, and no GPU that P2PDMA mode is for has less than this.
STATIC_BYTES = 16 << 30
WHOLE = "too small for all of its memory"
VERSION, MAKER = "/proc/version", "(?i)microsoft"
#: What libcufile prints before it aborts, with the place in its source (rapidsai/kvikio issues 11 and 97).
ABORTED = "Assertion failure, file index :cufio-udev"
STATS = NVFS + "/stats"
#: A GPU's row, whose last number is the most that was ever pinned on it (nvfs-stat.c).
_PINNED = r"^GPU (?P<address>[0-9a-fA-F:.]+)\s.*max_pinned_MiB=(?P<most>\d{1,9})"
#: A share of BAR1 that comes close to all of it: the driver needs some itself.
NEARLY = 0.9


def grace(facts: HostFacts) -> bool:
    """Whether the processor is NVIDIA's Grace: by the GPU's model, else by its core beside an NVIDIA GPU.

    Other machines with this core, AWS Graviton4, have no NVIDIA GPU.  Raises UndecidedError.
    """
    if facts.os.machine != ARM:
        return False
    if any(isinstance(model, str) and re.search(COHERENT, model) for model in facts.driver.models.values()):
        return True
    return facts.os.core == GRACE_CORE and bool(facts.pci.gpus)


def of_all(gpus: Iterable[Iterable[Condition]]) -> Iterator[Condition]:
    """What all GPUs lack, of the conditions of each; nothing where one has it all: a program on it takes the path."""
    judged = [tuple(conditions) for conditions in gpus]
    if not any(weigh(conditions).holds is True for conditions in judged):
        yield from itertools.chain(*judged)


def of_some(gpus: Iterable[Iterable[Condition]]) -> Iterator[Cause]:
    """What some GPUs lack, of the conditions of each, beside others that have it all."""
    verdicts = [weigh(conditions) for conditions in gpus]
    if any(verdict.holds is True for verdict in verdicts):
        for cause in (cause for verdict in verdicts for cause in verdict.shown):
            yield cause._replace(fix=f"run this work on the other GPUs, or {cause.fix}")


def with_bar1(facts: HostFacts) -> Tuple[Function, ...]:
    """GPUs whose memory others reach through BAR1: on Grace NVLink-C2C does that."""
    return () if if_known(lambda: grace(facts), False) else if_known(lambda: facts.pci.gpus, ())


def present(facts: HostFacts) -> Condition:
    """The host has a GPU of NVIDIA; WSL shows none as a PCI device."""
    return required(
        Unknown("WSL doesn't show its GPUs") if _is_wsl(facts) else lambda: bool(facts.pci.gpus),
        "gpu.none",
        (f"{PCI}: no display device of NVIDIA",),
    )


def _is_wsl(facts: HostFacts) -> bool:
    """WSL's kernel names its maker in its version."""
    return "microsoft" in (if_known(lambda: facts.document.text(VERSION), None) or "").lower()


@rule(USABLE, 5)
def pci_tree_usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """The library ended the program that opened it here; it does so with every other program."""
    ran = if_known(lambda: facts.document.attempted(CUFILE_OPEN), None)
    lines = (ran.stdout + ran.stderr).splitlines() if ran else []
    evidence = quote.with_source("libcufile", [line for line in lines if ABORTED in line])
    if evidence:
        yield required(False, "platform.no-pci-tree", evidence)


@rule(DIRECT_PATH, 5)
def pci_tree_direct(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    if _is_wsl(facts):
        yield required(False, "platform.wsl", quote.file(facts, VERSION, MAKER))


@rule(DIRECT_PATH, 30)
def direct(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """What either direct path requires of the GPUs; a host without a GPU passes."""
    if facts.pci.gpus:
        yield _class(facts)
        yield from of_all(cached(facts, gpu) for gpu in with_bar1(facts))


def report_of(facts: HostFacts) -> Report:
    """What libcufile reports about the platform, from its log, else through gdscheck; raises UndecidedError."""
    logged = known(lambda: facts.gdscheck.logged)
    for report in (logged, if_known(lambda: facts.gdscheck.report, None)):
        if report is not None and not isinstance(report, Unknown) and report.gpus:
            return report
    require(logged)
    raise UndecidedError("libcufile named no GPU")


@condition
def _class(facts: HostFacts) -> Condition:
    models = facts.driver.models
    consumer = [(name, model) for name, model in models.items() if isinstance(model, str) and CONSUMER.search(model)]
    if consumer and len(consumer) == len(models):
        name, model = consumer[0]
        return _unsupported(model, quote.file(facts, f"/proc/driver/nvidia/gpus/{name}/information", "^Model:"))
    try:
        require(facts.driver.gpus)
        tuple(map(require, models.values()))
        gpus = report_of(facts).gpus
    except UndecidedError as error:
        raise UndecidedError(f"whether libcufile supports these GPUs: {error}") from None
    unsupported = [gpu for gpu in gpus if re.search(UNSUPPORTED, gpu.reason)]
    if not unsupported or len(unsupported) < len(gpus):
        return Condition(True)
    return _unsupported(f"{unsupported[0].name} ({unsupported[0].reason})", _rows(unsupported))


def _unsupported(shown: str, evidence: Tuple[str, ...]) -> Condition:
    what = f"GPUDirect Storage doesn't support this class of GPU: {shown}"
    return required(False, "gpu.class", evidence, what)


def _rows(gpus: Sequence[Gpu]) -> Tuple[str, ...]:
    return quote.with_source("libcufile", [f"GPU index {gpu.index} {gpu.name}: {gpu.reason}" for gpu in gpus])


def cached(facts: HostFacts, gpu: Function, refuses: bool = False) -> Iterator[Condition]:
    """A GPU has a BAR1, large enough for libcufile's bounce buffers."""
    size = if_known(lambda: facts.cufile.setting("properties", "max_device_cache_size_kb", CACHE_KIB), CACHE_KIB)
    needed = (size if isinstance(size, int) else CACHE_KIB) << 10
    return bar1(gpu, needed, f"less than the {needed >> 20} MiB of bounce buffers in {CUFILE}", refuses)


def bar1(gpu: Function, least: int, why: str, refuses: bool = True) -> Iterator[Condition]:
    """A GPU has a BAR1 of at least ``least`` bytes.

    refuses: whether a smaller one rules the path out, else it only may.
    """
    size, source = gpu.bar1, f"{PCI}/{gpu.address}/resource"
    if not gpu.bars:
        yield Condition(Unknown(f"the evidence doesn't show the BARs of the GPU {gpu.address}"))
    elif not size:
        what = f"the GPU {gpu.address} has no BAR1, through which other devices reach its memory"
        if size == 0:
            what = f"BAR1 of the GPU {gpu.address} has no address: neither firmware nor kernel found room for it"
        shown = "BARs of {} bytes".format(", ".join(map(str, gpu.bars.values())))
        yield required(False, "gpu.no-bar1", quote.with_source(source, [shown]), what)
    elif size < least:
        what = f"BAR1 of the GPU {gpu.address} has {size >> 20} MiB, {why}"
        yield required(
            False if refuses else Unknown(what),
            "gpu.small-bar1",
            quote.with_source(source, [f"BAR1 of {size} bytes"]),
            what,
            suspect=True,
        )


@rule(NOTES, 35)
def class_notes(facts: HostFacts, _mount: Mount) -> Iterator[Cause]:
    """GPUs that are excluded from the direct path of the others."""
    gpus = report_of(facts).gpus
    unsupported = [gpu for gpu in gpus if not gpu.gds and re.search(UNSUPPORTED, gpu.reason)]
    if unsupported and len(unsupported) < len(gpus):
        what = "some GPUs take compat mode only: {}".format(", ".join(f"{gpu.index} {gpu.name}" for gpu in unsupported))
        yield listed_cause("gpu.class", _rows(unsupported), what, "run this work on the other GPUs")


@rule(NOTES, 36)
def bar1_notes(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Cause]:
    """GPUs whose memory nothing reaches, beside others."""
    yield from of_some(cached(facts, gpu) for gpu in with_bar1(facts))


@rule(NOTES, 45)
def pinned_notes(facts: HostFacts, _mount: Mount) -> Iterator[Cause]:
    """GPUs on which nearly all of BAR1 was pinned at some time: beyond it, nvidia-fs can't register a buffer."""
    for row in re.finditer(_PINNED, facts.document.text(STATS) or "", re.M):
        gpu = facts.pci.find(row["address"].lower())
        size = gpu.bar1 if gpu is not None else None
        if size and int(row["most"]) << 20 >= NEARLY * size:
            what = (
                f"up to {row['most']} MiB of the GPU {row['address']} were pinned, and BAR1 has {size >> 20} MiB:"
                " larger or more buffers can't be registered"
            )
            yield listed_cause("gpu.pinned-budget", (f"{STATS}: {row[0]}"[:200],), what)


NO_GPU = "not proven: this host has no GPU"


def not_asked(facts: HostFacts, expectation: Expectation) -> str:
    """Why it isn't asked for of hosts without a GPU, or whose mode goes through CPU memory anyway."""
    compat = expectation.mode == "compat" and expectation.rdma == "none"
    through = "not needed: the mode is compat, and the fleet asks for no RDMA" if compat else ""
    return through if facts.topology.of_kind(GPU) else NO_GPU
