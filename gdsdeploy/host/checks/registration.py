"""GPU memory registered with the RDMA adapters: the proof of GPUDirect RDMA."""

from __future__ import annotations

from typing import List, Sequence

from ..explain import userspace_rdma
from ..facts import HostFacts, Unknown, require
from ..facts.unknown import if_known
from ..model.expectation import Expectation
from .network import NOT_ASKED
from .registry import Answer, check, failed, not_applicable, passed, unknown

UNTRIED_HINT = "Validate this host: gdsdeploy validate tries it; evidence that was collected by hand has no such trial"


@check(
    "rdma.registration",
    "the RDMA adapters register memory of the GPUs",
    expects="each adapter in use registers and deregisters memory of each GPU by {rdma}",
    prevents="RDMA through CPU memory, or failing programs, on a host whose modules and symbols all look right",
    of_running=True,
)
def registration(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return not_applicable(NOT_ASKED)
    if not require(facts.pci.gpus):
        return not_applicable("not proven: this host has no GPU")
    if not require(facts.peermem.rdma_devices):
        return not_applicable("not proven: this host has no RDMA adapter")
    tried = [result for result in require(facts.registrations) if result.by == expectation.rdma]
    adapters = _in_use(facts)
    used = [result for result in tried if not adapters or result.adapter in adapters]
    if not used:
        return unknown("no registration was tried", UNTRIED_HINT)
    lines = [result.words for result in used]
    failures = [result for result in used if result.ok is False]
    if failures:
        words = f"{len(failures)} of {len(used)} registrations fail; the first: {failures[0].words}"
        return failed(words, _hint(expectation.rdma), lines)
    undecided = next((result.ok for result in used if isinstance(result.ok, Unknown)), None)
    if undecided is not None:
        return unknown(undecided.reason, "Correct that, then validate again")
    return passed(f"{len(used)} registrations succeed", lines)


def _in_use(facts: HostFacts) -> List[str]:
    """The adapters of cufile.json's lists, else those with an active port; empty where neither is known."""
    addresses = if_known(userspace_rdma.listed_addresses(facts), ())
    active = [entry for entry in if_known(facts.network.rdma, ()) if entry.active]
    used = if_known(userspace_rdma.adapters_at(facts, addresses), []) or active
    return list(dict.fromkeys(entry.device for entry in used))


def _hint(rdma: str) -> str:
    others: Sequence[str] = {
        "peermem": ("nvidia-peermem", "lsmod | grep peermem; dmesg | tail", "dmabuf"),
        "dmabuf": ("the open driver and an adapter driver that accepts DMA-BUF", "gdsdeploy explain", "peermem"),
    }[rdma]
    return "It needs {}: {}; or set rdma: {} in the profile".format(*others)
