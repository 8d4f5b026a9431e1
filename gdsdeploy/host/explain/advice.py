"""Advice on direct paths: nearness of GPUs, queues of disks, links and choice of RDMA adapters."""

from __future__ import annotations

from typing import Dict, Iterator, List, Tuple

from ..facts import HostFacts, Unknown
from ..facts.pci import DISK, DISTANCES, GPU, NIC, NODE, Topology
from ..facts.storage import NVME, Mount
from . import quote, reference
from .blocks import stack
from .cause import Cause
from .rules import NOTES, rule

#: Requests that NVIDIA's gds-diag expects a queue to hold for throughput.
REQUESTS = 1024
#: Filesystems for which libcufile itself does RDMA, and so chooses the adapter.
OWN_RDMA = ("gpfs", "mmfs", "wekafs")
POLICY = "rdma_load_balancing_policy"
#: Policies that use several adapters of a host well.
SPREADING = ("RoundRobinMaxMin", "MaxMinFit")


@rule(NOTES, 40)
def notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Advice on one mount; none where the evidence doesn't show it."""
    yield from _nearness(facts, mount)
    yield from _queues(mount)
    if mount.filesystem in OWN_RDMA:
        yield from _policy(facts)
        yield from links(facts)


def _nearness(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    topology = facts.topology
    if isinstance(topology, Unknown) or not topology.of_kind(GPU):
        return
    addresses = {device.pci_address for device in stack(mount) if device.pci_address}
    disks = [disk.label for disk in topology.of_kind(DISK) if disk.address in addresses]
    nearest = {label: _nearest(topology, label, GPU) for label in disks}
    far = [label for label, (distance, _) in nearest.items() if DISTANCES.index(distance) >= DISTANCES.index(NODE)]
    evidence = quote.with_source(
        "topology",
        ["{}: {} from {}".format(label, distance, ", ".join(gpus)) for label, (distance, gpus) in nearest.items()],
    )
    if far:
        what = "the nearest GPU to {} is at distance {}".format(", ".join(far), nearest[far[0]][0])
        fix = "move the data to disks under the same host bridge as the GPUs, or run the work on the nearest GPU"
        yield Cause("platform.far-gpu", what, fix, evidence, reference.ACS)
    if len(set(nearest.values())) > 1:
        what = "the disks under this mount are near different GPUs, so part of every large read crosses the host"
        fix = "stripe over disks that are near the same GPUs"
        yield Cause("storage.spread", what, fix, evidence, reference.ACS)


def _nearest(topology: Topology, label: str, kind: str) -> Tuple[str, Tuple[str, ...]]:
    """The smallest distance of a device to those of a kind, and the devices at this distance."""
    by_distance: Dict[str, List[str]] = {}
    for device in topology.of_kind(kind):
        pair = topology.pair(label, device.label)
        distance = pair.distance if pair is not None and isinstance(pair.distance, str) else DISTANCES[-1]
        by_distance.setdefault(distance, []).append(device.label)
    best = min(by_distance, key=DISTANCES.index)
    return best, tuple(by_distance[best])


def _queues(mount: Mount) -> Iterator[Cause]:
    queues = [(device.name, device.requests) for device in stack(mount) if device.kind == NVME]
    shallow = [(name, size) for name, size in queues if isinstance(size, int) and size < REQUESTS]
    if shallow:
        name, size = shallow[0]
        what = f"the queue of {name} holds {size} requests"
        path = f"/sys/block/{name}/queue/nr_requests"
        fix = f"for more throughput, raise {path} towards {REQUESTS}, as far as the disk allows"
        evidence = quote.with_source(path, [f"{name}: {size}" for name, size in shallow])
        yield Cause("storage.queue-depth", what, fix, evidence, reference.ACS)


def _policy(facts: HostFacts) -> Iterator[Cause]:
    """Which adapter libcufile uses for a GPU; its default is round robin."""
    topology = facts.topology
    if isinstance(topology, Unknown):
        return
    gpus, adapters = topology.of_kind(GPU), topology.of_kind(NIC)
    if len(gpus) < 2 or len(adapters) < 2:
        return
    policy = facts.cufile.setting("properties", POLICY, "RoundRobin")
    if policy not in SPREADING:
        host = f"a host with {len(gpus)} GPUs and {len(adapters)} network adapters"
        what = f"properties.{POLICY} is {policy} on {host}"
        fix = f"set properties.{POLICY} to RoundRobinMaxMin, which spreads GPUs over their nearest adapters"
        yield Cause("rdma.policy", what, fix, quote.setting(facts, "properties", POLICY), reference.PARAMETERS)
    distances = {_nearest(topology, gpu.label, NIC)[0] for gpu in gpus}
    if len(distances) > 1 and facts.cufile.setting("properties", "rdma_dynamic_routing", False) is not True:
        what = "some GPUs are farther from every adapter than others, and dynamic routing is off"
        fix = "set properties.rdma_dynamic_routing to true: far GPUs then reach an adapter through the nearest GPU"
        evidence = quote.setting(facts, "properties", "rdma_dynamic_routing")
        yield Cause("rdma.no-routing", what, fix, evidence, reference.PARAMETERS)


def links(facts: HostFacts) -> Iterator[Cause]:
    """RDMA adapters without an active port."""
    rdma = facts.network.rdma
    down = [] if isinstance(rdma, Unknown) else [port.device for port in rdma if not port.active]
    if down:
        what = "no port of {} is active".format(", ".join(dict.fromkeys(down)))
        fix = "connect the adapter's cable, or remove its addresses from rdma_dev_addr_list in cufile.json"
        evidence = tuple(f"/sys/class/infiniband/{device}/ports: no port is ACTIVE" for device in down)
        yield Cause("rdma.link-down", what, fix, evidence, reference.NFS)
