"""What a direct path could do better, on machines whose disks, GPUs and adapters sit in different places."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from gdsdeploy.host import checks
from gdsdeploy.host.explain import hardware
from gdsdeploy.host.explain.cause import Cause
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.storage import Device, Mount
from gdsdeploy.host.model.expectation import Expectation, from_json
from gdsdeploy.host.model.finding import Finding
from tests.unit.host.explain.capable_host import EVIDENCE, MOUNT, capable, with_gpu
from tests.unit.rdma_host import CARDS, PCI, host, place

EXPECTATION = from_json((EVIDENCE / "hosts" / "lab-vm.expectation.json").read_text())
Document = dict[str, Any]


def noted(document: Document, **changed: Any) -> dict[str, Cause]:
    """Advice on the mount, whose device or itself is changed."""
    facts = facts_from(document)
    assert not isinstance(facts.storage.mounts, Unknown)
    mount = facts.storage.mounts.get(MOUNT) or facts.storage.mounts["/"]
    return {note.id: note for note in hardware.nearness_notes(facts, replace(mount, **changed))}


def with_queue(requests: int, name: str = "nvme0n1") -> Mount:
    mounts = facts_from(capable()).storage.mounts
    assert not isinstance(mounts, Unknown)
    device = mounts[MOUNT].device
    assert isinstance(device, Device)
    return replace(mounts[MOUNT], device=replace(device, requests=requests, name=name))


def test_a_shallow_queue_is_named_with_its_file() -> None:
    facts = facts_from(capable())
    (cause,) = hardware.nearness_notes(facts, with_queue(128))
    assert (cause.id, cause.what) == ("storage.queue-depth", "the queue of nvme0n1 holds 128 requests")
    assert "/sys/block/nvme0n1/queue/nr_requests" in cause.fix
    assert [*hardware.nearness_notes(facts, with_queue(1024))] == []


def test_a_gpu_at_the_same_host_bridge_is_near_enough() -> None:
    document = with_gpu(capable())
    assert "platform.far-gpu" not in noted(document)
    far = document["links"]
    far["/sys/bus/pci/devices/0000:00:06.0"] = "../../../devices/pci0000:80/0000:00:06.0"
    cause = noted(document)["platform.far-gpu"]
    assert cause.what.startswith("the nearest GPU to NVME0 is at distance NODE")
    assert cause.evidence == ("topology: NVME0: NODE from GPU0",)


def test_disks_near_to_different_gpus_are_told() -> None:
    document = host()
    facts = facts_from(document)
    assert not isinstance(facts.topology, Unknown)
    disks = [replace(with_queue(1024).device, pci_address=address) for address in ("0000:15:00.0", "0000:25:00.0")]  # type: ignore[type-var]
    for disk, like in zip(disks, ("0000:10:00.0/0000:11:03.0", "0000:20:00.0/0000:21:03.0"), strict=True):
        assert isinstance(disk, Device)
        place(document, f"{like}/{disk.pci_address}", like="0000:00:03.0")
        document["files"][f"{PCI}/{disk.pci_address}/class"] = "0x010802\n"
    top = replace(disks[0], pci_address="", name="md0", kind="md", below=tuple(disks))  # type: ignore[type-var]
    notes = noted(document, device=top)
    assert "near different GPUs" in notes["storage.spread"].what
    assert notes["storage.spread"].evidence == ("topology: NVME0: PIX from GPU0", "topology: NVME1: PIX from GPU1")


def test_a_gpu_far_from_every_adapter_wants_routing() -> None:
    document = host(CARDS[:2])
    notes = noted(document, filesystem="gpfs", device=None)
    assert "dynamic routing is off" in notes["rdma.no-routing"].what


def test_several_adapters_want_a_policy_that_spreads() -> None:
    document = host()
    notes = noted(document, filesystem="wekafs", device=None)
    assert notes["rdma.policy"].what.startswith(
        "properties.rdma_load_balancing_policy is RoundRobin on a host with 2 GPUs"
    )
    document["files"]["/etc/cufile.json"] = json.dumps(
        {"properties": {"rdma_load_balancing_policy": "RoundRobinMaxMin", "rdma_dynamic_routing": True}}
    )
    assert noted(document, filesystem="wekafs", device=None) == {}
    assert noted(host(), filesystem="nfs", device=None) == {}, "its RDMA is the kernel's own"


def test_an_adapter_without_a_link_is_named() -> None:
    document = host()
    document["files"]["/sys/class/infiniband/mlx5_1/ports/1/state"] = "1: DOWN\n"
    assert noted(document, filesystem="gpfs", device=None)["rdma.link-down"].what == "no port of mlx5_1 is active"


def finding(ident: str, document: Document, expectation: Expectation) -> Finding:
    return next(entry for entry in checks.run(facts_from(document), expectation) if entry.check == ident)


RDMA = replace(EXPECTATION, rdma="dmabuf")
