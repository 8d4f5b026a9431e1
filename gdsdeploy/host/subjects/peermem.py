"""nvidia-peermem, by which the RDMA core reaches GPU memory, and nv_peer_mem before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from ..facts.document import Document
from ..facts.unknown import Facts, Unknown, fact, given, if_known, known, require
from ..model.expectation import Expectation
from ..paths import PEERS
from . import mechanisms
from .condition import DMABUF
from .kernel import PEERMEM, check_messages
from .modules import ModuleFacts, loaded
from .peer_memory import PEER_MEMORY, dmabuf_of_host, registered
from .register import Answer, Steps, capitalized, check, failed, passed

if TYPE_CHECKING:
    from ..facts import HostFacts


class PeermemFacts(Facts):
    """nvidia-peermem and the kernel's other end of PeerDirect."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.module = ModuleFacts(document, "nvidia-peermem")

    @fact
    def stub(self) -> Optional[bool]:
        """Built without OFED's peer memory symbols: it can never be loaded; None: there is no file."""
        file = self.module.file
        return None if file is None else PEER_MEMORY not in file.imports

    #: clients that registered with the RDMA core
    peers = given(lambda document: document.names(PEERS) or ())
    rdma_devices = given(lambda document: document.names("/sys/class/infiniband") or ())


def _no_rdma(_facts: HostFacts, expectation: Expectation) -> str:
    return "not needed: the fleet asks for no RDMA" if expectation.rdma == "none" else ""


def _other_rdma(_facts: HostFacts, expectation: Expectation) -> str:
    return "" if expectation.rdma == "peermem" else f"not needed: the fleet asks for RDMA {expectation.rdma}"


def _unproven(facts: HostFacts, expectation: Expectation) -> str:
    return _no_rdma(facts, expectation) or ("" if facts.pci.gpus else "not proven: this host has no GPU")


check_messages(
    "peermem.errors",
    "nvidia-peermem has reported no fault since the boot",
    module=PEERMEM,
    expects="only errors that programs cause",
    prevents="RDMA that can't register GPU memory, although nvidia-peermem is loaded",
    unless=_other_rdma,
)


@check(
    "peermem.usable",
    "RDMA adapters can reach GPU memory in the way the fleet asks for",
    expects="rdma: {rdma}",
    prevents="a peermem that cannot be loaded ('Invalid argument') because the driver was built without OFED",
    of_running=True,
    unless=lambda facts, fleet: _no_rdma(facts, fleet) and f"{_no_rdma(facts, fleet)}; {_state(facts)}",
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
    unless=_no_rdma,
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


@check(
    "peermem.mechanism",
    "the host has the mechanism between GPUs and adapters that the fleet uses",
    expects="RDMA by {rdma}, usable by this host's adapters",
    prevents="RDMA through CPU memory because core, adapter or driver don't support the mechanism",
    of_running=True,
    unless=_unproven,
)
def mechanism(facts: HostFacts, expectation: Expectation) -> Answer:
    name = DMABUF if expectation.rdma == "dmabuf" else mechanisms.PEERDIRECT
    expected = next(candidate for candidate in mechanisms.mechanisms(facts) if candidate.name == name)
    lines = [*expected.evidence, *expected.why]
    if require(expected.usable):
        return passed(f"{expected.title} is usable", lines)
    hint = "; ".join(expected.fixes) or "Read the reasons above"
    choice = mechanisms.choose(facts)
    if isinstance(choice.rdma, str) and choice.rdma not in (expectation.rdma, mechanisms.NONE):
        hint += f"; or set rdma: {choice.rdma} in the profile, which this host offers"
    return failed("{}: {}".format(expected.title, "; ".join(expected.why)), capitalized(hint), lines)
