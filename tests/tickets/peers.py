"""Hosts with RDMA adapters whose peer memory has one fault."""

from __future__ import annotations

import copy
from typing import Any

from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.subjects import mechanisms
from gdsdeploy.host.subjects.condition import Cause, weigh
from tests.unit.host.explain.capable_host import GPU, PROVISIONED, Change, Document, dmesg, file, loaded, with_gpu

CLIENT = "ib_register_peer_memory_client"


def _with_core(document: Document) -> None:
    """OFED's RDMA core, and a peermem that was built against it."""
    for record in document["modules"].values():
        if record["name"] == "nvidia_peermem":
            record["imports"][CLIENT] = None
    document["excerpts"]["/proc/kallsyms"]["lines"].append(f"0000000000000000 T {CLIENT}\t[ib_core]")


def _registered(document: Document) -> None:
    _with_core(document)
    loaded("nvidia_peermem 16384 0 - Live 0x0000000000000000 (OE)")(document)
    document["listings"]["/sys/kernel/mm/memory_peers"] = ["nv_mem"]


def _not_loaded(document: Document) -> None:
    _with_core(document)
    file("/etc/modules-load.d/gdsdeploy.conf", "nvidia\n")(document)


def _of_another_driver(document: Document) -> None:
    _with_core(document)
    dmesg("nvidia_peermem: disagrees about version of symbol nvidia_p2p_get_pages")(document)


def _of_another_core(document: Document) -> None:
    _with_core(document)
    dmesg(f"nvidia_peermem: disagrees about version of symbol {CLIENT}")(document)


def _small_bar1(document: Document) -> None:
    _registered(document)
    bars = "".join(f"{size:#018x} {2 * size - 1:#018x} 0x40200\n" for size in (16 << 20, 256 << 20, 32 << 20))
    file(f"/sys/bus/pci/devices/{GPU}/resource", bars)(document)


FAULTS: dict[str, Change] = {
    "no peer memory": lambda document: None,
    "not loaded": _not_loaded,
    "built with other versions of the driver's symbols": _of_another_driver,
    "built against another OFED": _of_another_core,
    "small BAR1": _small_bar1,
}


def causes(name: str) -> list[Cause]:
    """What rules PeerDirect out on the host with this fault, or may."""
    document: dict[str, Any] = with_gpu(copy.deepcopy(PROVISIONED))
    FAULTS[name](document)
    verdict = weigh(list(mechanisms.peerdirect(facts_from(document))))
    return [*verdict.causes, *verdict.suspects]
