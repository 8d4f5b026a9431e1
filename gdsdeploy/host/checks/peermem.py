"""GPU memory for RDMA adapters: nvidia-peermem or DMA-BUF."""

from __future__ import annotations

from typing import List

from ..explain import mechanisms
from ..explain.cause import Condition, weigh
from ..facts import HostFacts, UndecidedError, Unknown, known
from ..model.expectation import Expectation
from .driver import messages
from .registry import Answer, check, failed, passed

OFED = "install MLNX_OFED or DOCA first and build the driver after it, or use DMA-BUF (rdma: dmabuf), which needs none"


@check(
    "peermem.usable",
    "RDMA adapters can reach GPU memory in the way the fleet asks for",
    expects="rdma: {rdma}",
    prevents="a peermem that cannot be loaded ('Invalid argument') because the driver was built without OFED",
    of_running=True,
)
def usable(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return passed(f"not needed: the fleet asks for no RDMA; {_state(facts)}")
    if expectation.rdma == "dmabuf":
        return _dmabuf(facts)
    if known(facts.peermem.module.loaded):
        return _registered(mechanisms.registered(facts))
    if known(facts.peermem.stub):
        words = "the installed nvidia-peermem is a stub: it was built without OFED's peer memory symbols"
        return failed(words, OFED[0].upper() + OFED[1:], messages(facts, "peermem", "peer_mem"))
    if known(facts.peermem.module.file) is None:
        return failed("there is no nvidia-peermem for this kernel", "Provision the host again")
    return failed(
        "nvidia-peermem is not loaded",
        "Start its unit and read what it says: systemctl start gds-peermem; journalctl -u gds-peermem",
        messages(facts, "peermem"),
    )


def _registered(condition: Condition) -> Answer:
    if isinstance(condition.holds, Unknown):
        raise UndecidedError("nvidia-peermem is loaded; whether it registered is not known: " + condition.holds.reason)
    if condition.holds:
        return passed("nvidia-peermem is loaded and registered with the RDMA core")
    assert condition.cause is not None
    hint = "Load it again after OFED's ib_core: systemctl restart gds-peermem"
    return failed("nvidia-peermem is loaded, but not registered with the RDMA core", hint, condition.cause.evidence)


def _state(facts: HostFacts) -> str:
    loaded, stub = facts.peermem.module.loaded, facts.peermem.stub
    if loaded is True:
        return "nvidia-peermem is loaded"
    if isinstance(stub, Unknown):
        return "nvidia-peermem was not looked into"
    if stub is None:
        return "nvidia-peermem is not installed"
    return "the installed nvidia-peermem is " + ("a stub, built without OFED" if stub else "complete")


def _dmabuf(facts: HostFacts) -> Answer:
    """Driver and kernel decide; adapters are judged where there are any."""
    found = weigh(mechanisms.dmabuf_of_host(facts))
    if found.causes:
        cause = found.causes[0]
        return failed(cause.what, cause.fix[0].upper() + cause.fix[1:], cause.evidence)
    known(found.holds)
    release = known(facts.kernel.release)
    words = f"the open driver and kernel {release} offer DMA-BUF; peermem is not needed"
    if known(facts.peermem.module.loaded):
        words += ", but nvidia-peermem is loaded"
    if isinstance(facts.p2p.adapters_dmabuf, tuple) and facts.p2p.adapters_dmabuf:
        words += "; adapters' drivers that take it: {}".format(", ".join(facts.p2p.adapters_dmabuf))
    return passed(words)


@check(
    "peermem.legacy",
    "nv_peer_mem, which nvidia-peermem has replaced, is neither loaded nor about to be",
    expects="no nv_peer_mem",
    prevents="an old module that registers in place of nvidia-peermem, or that no longer fits after a driver upgrade",
    of_running=True,
)
def legacy(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return passed("not needed: the fleet asks for no RDMA", expected="nothing")
    if known(facts.p2p.legacy_loaded):
        hint = "Unload it: systemctl stop nv_peer_mem; then provision the host again, which keeps it out"
        return failed("nv_peer_mem is loaded", hint, ["/proc/modules: nv_peer_mem"])
    services: List[str] = list(known(facts.p2p.legacy_services))
    if services:
        # Provision keeps it from starting by a condition, and its module from loading.
        return passed("it is not loaded; its service is still installed: {}".format(", ".join(services)))
    return passed("there is none")


@check(
    "peermem.mechanism",
    "the host's mechanisms between GPUs and adapters are those that the fleet is built for",
    expects="RDMA by {rdma}, usable by the adapters that are here",
    prevents="RDMA through CPU memory because core, adapter or driver lack their part of the mechanism",
    of_running=True,
)
def mechanism(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return passed("not needed: the fleet asks for no RDMA", expected="nothing")
    if not known(facts.pci.gpus):
        return passed("not proven: this host has no GPU")
    wanted = mechanisms.DMABUF if expectation.rdma == "dmabuf" else mechanisms.PEERDIRECT
    found = next(item for item in mechanisms.mechanisms(facts) if item.name == wanted)
    lines = [*found.evidence, *found.why]
    if known(found.usable):
        return passed(f"{found.title} is usable", lines)
    hint = "; ".join(found.fixes) or "Read the reasons above"
    choice = mechanisms.choose(facts)
    if isinstance(choice.rdma, str) and choice.rdma not in (expectation.rdma, mechanisms.NONE):
        hint += f"; or set rdma: {choice.rdma} in the profile, which this host offers"
    return failed("{}: {}".format(found.title, "; ".join(found.why)), hint[0].upper() + hint[1:], lines)
