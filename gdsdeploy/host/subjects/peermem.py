"""How RDMA adapters reach the memory of GPUs: PeerDirect with nvidia-peermem, or DMA-BUF; shown by registrations.

nv_peer_mem is the module before nvidia-peermem.  Registrations are those of a trial: see proof.py.
"""

from __future__ import annotations

import itertools
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..facts.document import Document, there
from ..facts.unknown import Facts, Maybe, UndecidedError, Unknown, fact, follows, given, if_known, known
from ..model.expectation import Expectation
from ..paths import HOLDERS, INFINIBAND, LEGACY_SERVICE, NVIDIA, PEERS, REGISTRATION, SERVICE_FOLDERS
from . import gpu, kernel, quote, rdma
from .condition import DMABUF, PEERMEM, Cause, Condition, condition, listed_cause, numbers, required
from .driver import OPEN
from .kernel import KernelFacts, check_messages
from .modules import ModuleFacts, loaded
from .proof import Trial, ended, given_gpus, not_given, register_memory, served
from .rdma import no_rdma
from .register import Answer, Steps, check, collector, failed, passed, unknown
from .topology import iommu
from .types import EvidenceRequest, HostFacts, Recorder


@collector("registration")
def collect_registration(recorder: Recorder, request: EvidenceRequest) -> None:
    if request.registration and recorder.names(NVIDIA + "/gpus") and recorder.names(INFINIBAND):
        register_memory(recorder.command)


KALLSYMS = "/proc/kallsyms"
#: The RDMA core's end of PeerDirect.
PEER_MEMORY = "ib_register_peer_memory_client"
#: The RDMA core's end of DMA-BUF, since Linux 5.12.
RDMA_DMABUF = "ib_umem_dmabuf_get"
#: End of the name of the function by which an adapter's driver takes DMA-BUF memory.
ADAPTER_DMABUF = "reg_user_mr_dmabuf"


class P2pFacts(Facts):
    """The host's mechanisms between GPUs and adapters."""

    #: those that registered with PeerDirect; None: the kernel shows no list of them
    clients = given(lambda document: document.names(PEERS))

    #: modules that use the RDMA core, by in-kernel name
    rdma_users: Tuple[str, ...] = follows(
        lambda self: tuple(sorted({path.rpartition("/")[2] for path in self._paths(HOLDERS)}))
    )
    #: nv_peer_mem, the module before nvidia-peermem, is loaded
    legacy_loaded = given(lambda document: "nv_peer_mem" in KernelFacts(document).modules)
    #: PeerDirect in the RDMA core: the module that has it; None: none
    peer_memory: Optional[str] = follows(lambda self: self._exporter(PEER_MEMORY))
    #: DMA-BUF in the RDMA core, likewise
    rdma_dmabuf: Optional[str] = follows(lambda self: self._exporter(RDMA_DMABUF))

    #: files of the older module's service; gdsdeploy keeps the service from starting with a folder of its name
    legacy_services: Tuple[str, ...] = follows(
        lambda self: tuple(
            path for path in self._paths(SERVICE_FOLDERS, "/" + LEGACY_SERVICE) if not path.endswith(".d")
        )
    )

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


class PeermemFacts(Facts):
    """nvidia-peermem and the kernel's other end of PeerDirect."""

    module = given(lambda document: ModuleFacts(document, "nvidia-peermem"))

    @fact
    def stub(self) -> Optional[bool]:
        """Built without OFED's peer memory symbols: it can never be loaded; None: there is no file."""
        file = self.module.file
        return None if file is None else PEER_MEMORY not in file.imports

    #: clients that registered with the RDMA core
    peers = given(lambda document: document.names(PEERS) or ())
    rdma_devices = given(lambda document: document.names("/sys/class/infiniband") or ())


#: Beside PEERMEM and DMABUF a way of registration of proof/child.py: memory of the host, for comparison.
HOST = "host"


class Registration(NamedTuple):
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
    return _Registrations(run, served(document)).results() if run is not None else ()


class _Registrations(Trial):
    """One that registers memory."""

    def results(self) -> Tuple[Registration, ...]:
        gpus, adapters = self._gpus(), self._event("adapters").get("adapters")
        if gpus is None or not isinstance(adapters, list):
            raise UndecidedError(self._ending())
        closed = [event.get("adapter") for event in self._events if event.get("event") == "no adapter"]
        pairs = itertools.product(gpus, map(str, [*adapters, *closed]), (PEERMEM, DMABUF))
        return tuple(Registration(*pair, *self._result(*pair)) for pair in pairs)

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
        if gpu not in (given_gpus(self._events) or ()):
            return not_given(self._events, gpu)
        memory = self._event("no memory", gpu=gpu)
        if memory:
            return f"GPU {gpu}: no memory could be allocated: CUDA error {memory.get('status')}"
        return self._ending()

    def _ending(self) -> str:
        """Why the trial stopped."""
        library, gpu = self._event("not loaded"), self._event("no GPU")
        if library:
            return f"a library was not loaded: {library.get('reason')}"
        if gpu:
            return f"CUDA gives no GPU: {gpu.get('call')} returned {gpu.get('status')}"
        last: Mapping[str, Any] = next((event for event in reversed(self._events) if event.get("event") == "begin"), {})
        place = f" at {last.get('adapter')} with GPU {last.get('gpu')}" if last.get("gpu") else ""
        return ended(self._run, "the registration", place)


#: First kernel whose RDMA core accepts DMA-BUF memory.
DMABUF_KERNEL = (5, 12)
#: The client that nvidia-peermem and nv_peer_mem register; a second one only with persistent_api_support=0.
CLIENT = "nv_mem"
#: BAR1 of GPUs whose firmware doesn't map all of their memory.
SMALL_BAR1 = 256 << 20


def peerdirect(facts: HostFacts) -> Iterator[Condition]:
    """nvidia-peermem passes GPU memory to adapters."""
    yield rdma.present(facts)
    yield gpu.present(facts)
    yield from iommu(facts, None, needs_it_off=False)
    why = "and adapters can't register more than that at a time"
    yield from gpu.of_all(gpu.bar1(one, SMALL_BAR1 + 1, why, refuses=False) for one in gpu.with_bar1(facts))
    yield from peer_memory(facts)


def peer_memory(facts: HostFacts) -> Iterator[Condition]:
    """Registered, not only loaded: lsmod also shows a module whose client the RDMA core refused."""
    what = f"the loaded RDMA core has no {PEER_MEMORY}: it's the kernel's own, not OFED's"
    fix = "install MLNX_OFED or DOCA, then build the driver again; or use DMA-BUF, which needs neither"
    yield required(
        lambda: facts.p2p.peer_memory is not None,
        "rdma.no-peer-memory",
        quote.symbols(facts, (PEER_MEMORY,)),
        what,
        fix,
    )
    is_legacy = if_known(lambda: facts.p2p.legacy_loaded, False)
    is_loaded = Condition(True) if is_legacy else loaded(facts, facts.peermem.module)
    yield is_loaded
    if is_loaded.holds is True:
        yield registered(facts)


@condition
def registered(facts: HostFacts) -> Condition:
    """Whether a loaded peermem is a client of the RDMA core.

    Some kernels show no folder of clients.  The users of ib_uverbs then show that the module uses the core, which it
    does from its successful start on; that doesn't prove the registration.
    """
    clients = facts.p2p.clients
    if clients is not None:
        shown = "{} shows {}".format(PEERS, ", ".join(clients) or "none")
        evidence = tuple(f"{PEERS}: {name}" for name in clients) or (PEERS + ": empty",)
        return Condition(any(name.startswith(CLIENT) for name in clients), _unregistered(shown, evidence))
    no_list, users = f"the kernel shows no {PEERS}", known(lambda: facts.p2p.rdma_users)
    if isinstance(users, Unknown):
        raise UndecidedError(f"{no_list}; {users.reason}")
    if {"nvidia_peermem", "nv_peer_mem"} & set(users):
        raise UndecidedError(no_list + "; the module uses the RDMA core, as it does from its start on")
    evidence = ("{}: {}".format(HOLDERS[0], ", ".join(users) or "none"),)
    return Condition(False, _unregistered("the module doesn't even use the core", evidence))


def _unregistered(shown: str, evidence: Tuple[str, ...]) -> Cause:
    cause = listed_cause("peermem.not-registered", evidence)
    return cause._replace(what=f"{cause.what}: {shown}")


def dmabuf(facts: HostFacts) -> Iterator[Condition]:
    """The kernel itself passes GPU memory to adapters."""
    yield rdma.present(facts)
    yield gpu.present(facts)
    yield from dma_buf(facts)


def dma_buf(facts: HostFacts) -> Iterator[Condition]:
    """What DMA-BUF requires of driver, kernel, RDMA core and the adapters' drivers."""
    yield from dmabuf_of_host(facts)
    yield required(lambda: facts.p2p.rdma_dmabuf is not None, "rdma.no-dmabuf", quote.symbols(facts, (RDMA_DMABUF,)))
    yield required(
        lambda: bool(facts.p2p.adapters_dmabuf), "rdma.adapter-no-dmabuf", (f"{KALLSYMS}: no …{ADAPTER_DMABUF}",)
    )


def dmabuf_of_host(facts: HostFacts) -> Iterator[Condition]:
    """What DMA-BUF requires of driver and kernel, whatever the adapters."""
    flavour = if_known(lambda: facts.driver.flavour, "")
    what = f"the driver is {flavour or 'not loaded'}: only the open kernel modules export GPU memory as DMA-BUF"
    evidence = quote.file(facts, NVIDIA + "/version")
    yield required(
        lambda: facts.driver.flavour == OPEN, "driver.proprietary", evidence, what, "install the open kernel modules"
    )
    release = if_known(lambda: facts.kernel.release, "")
    yield required(
        lambda: numbers(facts.kernel.release) >= DMABUF_KERNEL,
        "kernel.no-dmabuf",
        (f"uname -r: {release}",),
        f"kernel {release} is older than 5.12",
    )


check_messages(
    "peermem.errors",
    "nvidia-peermem has reported no fault since the boot",
    module=kernel.PEERMEM,
    expects="only errors that programs cause",
    prevents="RDMA that can't register GPU memory, although nvidia-peermem is loaded",
    unless=lambda _, fleet: "" if fleet.rdma == "peermem" else f"not needed: the fleet asks for RDMA {fleet.rdma}",
)


@check(
    "peermem.usable",
    "RDMA adapters can reach GPU memory in the way the fleet asks for",
    expects="rdma: {rdma}",
    prevents="a peermem that cannot be loaded ('Invalid argument') because the driver was built without OFED",
    of_running=True,
    unless=lambda facts, fleet: no_rdma(facts, fleet) and f"{no_rdma(facts, fleet)}; {_state(facts)}",
)
def usable(facts: HostFacts, expectation: Expectation) -> Steps:
    if expectation.rdma == "dmabuf":
        # Driver and kernel decide; the answer names the adapters' drivers, if any.
        yield from dmabuf_of_host(facts)
        words = f"the open driver and kernel {facts.kernel.release} offer DMA-BUF; peermem is not needed"
        words += ", but nvidia-peermem is loaded" if facts.peermem.module.loaded else ""
        adapters = if_known(lambda: facts.p2p.adapters_dmabuf, ())
        yield passed(words + ("; adapters' drivers that take it: " + ", ".join(adapters) if adapters else ""))
    else:
        yield loaded(facts, facts.peermem.module)
        yield registered(facts)
        yield passed("nvidia-peermem is loaded and registered with the RDMA core")


def _state(facts: HostFacts) -> str:
    if if_known(lambda: facts.peermem.module.loaded, False):
        return "nvidia-peermem is loaded"
    stub = known(lambda: facts.peermem.stub)
    if isinstance(stub, Unknown):
        return "nvidia-peermem was not looked into"
    if stub is None:
        return "nvidia-peermem is not installed"
    return "the installed nvidia-peermem is " + ("a stub, built without OFED" if stub else "complete")


@check(
    "peermem.legacy",
    "nv_peer_mem, which nvidia-peermem replaced, is not loaded",
    expects="no nv_peer_mem",
    prevents="an old module that registers in place of nvidia-peermem, or that no longer fits after a driver upgrade",
    of_running=True,
    unless=no_rdma,
)
def legacy(facts: HostFacts, _expectation: Expectation) -> Answer:
    if facts.p2p.legacy_loaded:
        hint = "Unload it: systemctl stop nv_peer_mem; then provision the host again, which keeps it out"
        return failed("nv_peer_mem is loaded", hint, ["/proc/modules: nv_peer_mem"])
    services = facts.p2p.legacy_services
    if services:
        # A condition that provision sets keeps it from starting, and its module from loading.
        return passed("it is not loaded; its service is still installed: {}".format(", ".join(services)))
    return passed("not installed")


UNTRIED_HINT = "Validate this host: gdsdeploy validate tries it; evidence that was collected by hand has no such trial"


def _untried(facts: HostFacts, expectation: Expectation) -> str:
    reason = rdma.unproven(facts, expectation)
    return reason or ("" if facts.peermem.rdma_devices else "not proven: this host has no RDMA adapter")


@check(
    "rdma.registration",
    "the RDMA adapters register memory of the GPUs",
    expects="each adapter in use registers and deregisters memory of each GPU by {rdma}",
    prevents="RDMA through CPU memory, or failing programs, on a host whose modules and symbols all look right",
    of_running=True,
    unless=_untried,
)
def registration(facts: HostFacts, expectation: Expectation) -> Answer:
    tried = [result for result in facts.registrations if result.by == expectation.rdma]
    adapters = _in_use(facts)
    used = [result for result in tried if not adapters or result.adapter in adapters]
    if not used:
        return unknown("no registration was tried", UNTRIED_HINT)
    lines = [result.words for result in used]
    failures = [result for result in used if result.ok is False]
    if failures:
        words = f"{len(failures)} of {len(used)} registrations fail; the first: {failures[0].words}"
        return failed(words, FIXES[expectation.rdma], lines)
    undecided = next((result.ok for result in used if isinstance(result.ok, Unknown)), None)
    if undecided is not None:
        return unknown(undecided.reason, "Correct that, then validate again")
    return passed(f"{len(used)} registrations succeed", lines)


#: Way of registration → what to do where it fails.
FIXES = {
    PEERMEM: "It needs nvidia-peermem: lsmod | grep peermem; dmesg | tail; or set rdma: dmabuf in the profile",
    DMABUF: "It needs the open driver and an adapter driver that accepts DMA-BUF: gdsdeploy explain; or set rdma:"
    " peermem in the profile",
}


def _in_use(facts: HostFacts) -> List[str]:
    """The adapters of cufile.json's lists, else those with an active port; empty where neither is known."""
    addresses = if_known(lambda: rdma.listed_addresses(facts), ())
    listed = if_known(lambda: rdma.adapters_at(facts, addresses), {}).values()
    active = [each for each in rdma.devices(if_known(lambda: rdma.ports(facts), ())) if each.active]
    return list(dict.fromkeys(each.device for each in listed or active))
