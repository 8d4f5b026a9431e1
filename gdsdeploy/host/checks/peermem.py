"""GPU memory for RDMA adapters: nvidia-peermem or DMA-BUF."""

from __future__ import annotations

from ..explain import mechanisms
from ..explain.cause import DMABUF, Condition, weigh
from ..facts import HostFacts, UndecidedError, Unknown, require
from ..model.expectation import Expectation
from .driver import messages
from .registry import Answer, capitalized, check, failed, not_applicable, passed, subject

subject("peermem", after="nvidia-fs")

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
        return not_applicable(f"not needed: the fleet asks for no RDMA; {_state(facts)}")
    if expectation.rdma == "dmabuf":
        return _dmabuf(facts)
    if require(facts.peermem.module.loaded):
        return _registered(mechanisms.registration(facts))
    if require(facts.peermem.stub):
        words = "the installed nvidia-peermem is a stub: it was built without OFED's peer memory symbols"
        return failed(words, capitalized(OFED), messages(facts, "peermem", "peer_mem"))
    if require(facts.peermem.module.file) is None:
        return failed("there is no nvidia-peermem for this kernel", "Provision the host again")
    return failed(
        "nvidia-peermem is not loaded",
        "Start its unit and read its messages: systemctl start gds-peermem; journalctl -u gds-peermem",
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
    """Driver and kernel decide; the answer names the adapters' drivers, if any."""
    result = weigh(mechanisms.dmabuf_of_host(facts))
    if result.causes:
        cause = result.causes[0]
        return failed(cause.what, capitalized(cause.fix), cause.evidence)
    require(result.holds)
    words = f"the open driver and kernel {require(facts.kernel.release)} offer DMA-BUF; peermem is not needed"
    if require(facts.peermem.module.loaded):
        words += ", but nvidia-peermem is loaded"
    if isinstance(facts.p2p.adapters_dmabuf, tuple) and facts.p2p.adapters_dmabuf:
        words += "; adapters' drivers that take it: {}".format(", ".join(facts.p2p.adapters_dmabuf))
    return passed(words)


@check(
    "peermem.legacy",
    "nv_peer_mem, which nvidia-peermem replaced, is not loaded",
    expects="no nv_peer_mem",
    prevents="an old module that registers in place of nvidia-peermem, or that no longer fits after a driver upgrade",
    of_running=True,
)
def legacy(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return not_applicable("not needed: the fleet asks for no RDMA")
    if require(facts.p2p.legacy_loaded):
        hint = "Unload it: systemctl stop nv_peer_mem; then provision the host again, which keeps it out"
        return failed("nv_peer_mem is loaded", hint, ["/proc/modules: nv_peer_mem"])
    services = require(facts.p2p.legacy_services)
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
)
def mechanism(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return not_applicable("not needed: the fleet asks for no RDMA")
    if not require(facts.pci.gpus):
        return not_applicable("not proven: this host has no GPU")
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
