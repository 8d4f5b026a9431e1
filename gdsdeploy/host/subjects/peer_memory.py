"""How RDMA adapters reach the memory of GPUs: PeerDirect with nvidia-peermem, or DMA-BUF; shown by registrations.

Registrations are those of a trial: see host/proof/proof.py.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Tuple

from ..facts.document import TIMED_OUT, Document, Ran, there
from ..facts.driver import PEER_MEMORY
from ..facts.kernel import KernelFacts
from ..facts.processes import events
from ..facts.unknown import Facts, Maybe, UndecidedError, Unknown, fact, given, if_known
from ..paths import HOLDERS, INFINIBAND, LEGACY_SERVICE, NVIDIA, PEERS, REGISTRATION, SERVICE_FOLDERS
from .register import collector

if TYPE_CHECKING:
    from ..evidence.recorder import EvidenceRequest, Recorder


@collector("registration")
def collect_registration(recorder: Recorder, request: EvidenceRequest) -> None:
    if request.registration and recorder.names(NVIDIA + "/gpus") and recorder.names(INFINIBAND):
        from ..proof.proof import register_memory

        register_memory(recorder.command)


KALLSYMS = "/proc/kallsyms"
#: The RDMA core's end of DMA-BUF, since Linux 5.12.
RDMA_DMABUF = "ib_umem_dmabuf_get"
#: End of the name of the function by which an adapter's driver takes DMA-BUF memory.
ADAPTER_DMABUF = "reg_user_mr_dmabuf"


class P2pFacts(Facts):
    """The host's mechanisms between GPUs and adapters."""

    #: those that registered with PeerDirect; None: the kernel shows no list of them
    clients = given(lambda document: document.names(PEERS))

    @fact
    def rdma_users(self) -> Tuple[str, ...]:
        """Modules that use the RDMA core, by in-kernel name."""
        return tuple(sorted({path.rpartition("/")[2] for path in self._paths(HOLDERS)}))

    #: nv_peer_mem, the module before nvidia-peermem, is loaded
    legacy_loaded = given(lambda document: "nv_peer_mem" in KernelFacts(document).modules)

    @fact
    def legacy_services(self) -> Tuple[str, ...]:
        """Files of its service."""
        # gdsdeploy keeps the service from starting with a folder of its name.
        return tuple(path for path in self._paths(SERVICE_FOLDERS, "/" + LEGACY_SERVICE) if not path.endswith(".d"))

    @fact
    def peer_memory(self) -> Optional[str]:
        """PeerDirect in the RDMA core: the module that has it; None: none."""
        return self._exporter(PEER_MEMORY)

    @fact
    def rdma_dmabuf(self) -> Optional[str]:
        """DMA-BUF in the RDMA core, likewise."""
        return self._exporter(RDMA_DMABUF)

    @fact
    def adapters_dmabuf(self) -> Tuple[str, ...]:
        """Adapters' drivers that take DMA-BUF memory."""
        modules = {module for _, module in _symbols(self.document, ADAPTER_DMABUF)}
        return tuple(sorted(module for module in modules if module and not module.startswith("ib_")))

    def _paths(self, folders: Tuple[str, ...], pattern: str = "") -> Tuple[str, ...]:
        """The entries of all folders."""
        listings = [(folder, self.document.names(folder + pattern) or ()) for folder in folders]
        return tuple(f"{folder}/{name}" for folder, names in listings for name in names)

    def _exporter(self, name: str) -> Optional[str]:
        symbols = _symbols(self.document, name)
        return next((module or "the kernel itself" for symbol, module in symbols if symbol == name), None)


def _symbols(document: Document, word: str) -> Tuple[Tuple[str, str], ...]:
    """(name, module) of the symbols that end in ``word``."""
    lines = there(document.lines(KALLSYMS), KALLSYMS)
    key = word.replace("ib_register_", "register_") if word == PEER_MEMORY else word
    if not document.looked_for(KALLSYMS, key):
        raise UndecidedError(f"{word} was not looked for in {KALLSYMS}")
    rows = [line.split() for line in lines]
    return tuple(
        (row[2], row[3].strip("[]") if len(row) > 3 else "") for row in rows if len(row) > 2 and row[2].endswith(word)
    )


#: Ways of registration, as proof/child.py names them; HOST is memory of the host, for comparison.
HOST, PEERMEM, DMABUF = "host", "peermem", "dmabuf"


@dataclass(frozen=True)
class Registration:
    """One GPU with one adapter.  ``ok``: Unknown where it was not tried or did not end."""

    #: PCI address as libcuda has it
    gpu: str
    adapter: str
    #: PEERMEM or DMABUF
    by: str
    ok: Maybe[bool]
    #: the failure, e.g. ``ibv_reg_mr: EFAULT``
    why: str = ""

    @property
    def words(self) -> str:
        """The result as one line."""
        pair = f"GPU {self.gpu} with {self.adapter}"
        if isinstance(self.ok, Unknown):
            return f"{pair}: not tried: {self.ok.reason}"
        return f"{pair}: ok" if self.ok else f"{pair}: {self.why}"


def registrations(document: Document) -> Tuple[Registration, ...]:
    """Every GPU × adapter × way of a trial; empty where none was made.

    Raises UndecidedError where it ended before it knew them.
    """
    run = if_known(lambda: document.attempted(REGISTRATION), None)
    # A trial is made only where the host has both, and the fleet uses RDMA.
    return _Trial(run).results() if run is not None else ()


class _Trial:
    """The record of proof/child.py."""

    def __init__(self, run: Ran) -> None:
        self._run, self._events = run, events(run.stdout)

    def results(self) -> Tuple[Registration, ...]:
        gpus, adapters = self._named("gpus", "no context", "gpu"), self._named("adapters", "no adapter", "adapter")
        pairs = itertools.product(gpus, adapters, (PEERMEM, DMABUF))
        return tuple(Registration(*pair, *self._result(*pair)) for pair in pairs)

    def _event(self, kind: str, **where: str) -> Mapping[str, Any]:
        expected = {"event": kind, **where}
        return next((event for event in self._events if expected.items() <= event.items()), {})

    def _named(self, kind: str, without: str, key: str) -> List[str]:
        """The usable ones, then those that gave no context."""
        names = self._event(kind).get(kind)
        if not isinstance(names, list):
            raise UndecidedError(self._ending())
        refused = [event for event in self._events if event.get("event") == without and key in event]
        return [str(name) for name in (*names, *(event[key] for event in refused))]

    def _result(self, gpu: str, adapter: str, way: str) -> Tuple[Maybe[bool], str]:
        """Whether it succeeded, and the failure."""
        event = self._event("registration", gpu=gpu, adapter=adapter, by=way)
        if event.get("ok") is True:
            left = event.get("deregistered")
            return not left, f"ibv_dereg_mr: {left}" if left else ""
        if event.get("ok") is False:
            call = "ibv_reg_mr" if way == PEERMEM else "ibv_reg_dmabuf_mr"
            return False, f"{call}: {event.get('errno')}"
        exported = self._event("export", gpu=gpu).get("status")
        if way == DMABUF and exported:
            old = "libcuda is too old to export DMA-BUF"
            return False, old if exported == -1 else f"no export as DMA-BUF: CUDA error {exported}"
        return Unknown(self._untried(gpu, adapter)), ""

    def _untried(self, gpu: str, adapter: str) -> str:
        """Why a registration has no result."""
        refused = self._event("no adapter", adapter=adapter)
        if refused:
            return f"{adapter}: {refused.get('call')} failed: {refused.get('errno')}"
        control = self._event("registration", adapter=adapter, by=HOST)
        if control.get("ok") is False:
            return f"{adapter} doesn't register memory of the host either: {control.get('errno')}"
        reasons = {"no context": "CUDA has no context for it", "no memory": "no memory could be allocated"}
        for kind, words in reasons.items():
            event = self._event(kind, gpu=gpu)
            if event:
                return f"GPU {gpu}: {words}: CUDA error {event.get('status')}"
        return self._ending()

    def _ending(self) -> str:
        """Why the trial stopped."""
        library, gpu, run = self._event("not loaded"), self._event("no GPU"), self._run
        if library:
            return f"a library was not loaded: {library.get('reason')}"
        if gpu:
            return f"CUDA gives no GPU: {gpu.get('call')} returned {gpu.get('status')}"
        last: Mapping[str, Any] = next((event for event in reversed(self._events) if event.get("event") == "begin"), {})
        place = f" at {last.get('adapter')} with GPU {last.get('gpu')}" if last.get("gpu") else ""
        if run.status == TIMED_OUT:
            return f"the registration did not return in time{place}"
        if run.status < 0:
            return f"the registration was ended by signal {-run.status}{place}"
        error = (run.stderr.strip().splitlines() or ["it printed no error"])[-1]
        return f"the registration ended with status {run.status}{place}: {error}"
