"""What a direct path could do better: nearness of GPUs, queues of disks, links and choice of RDMA adapters."""

from __future__ import annotations

from typing import Dict, Iterator, List, Set, Tuple

from ..facts import HostFacts, Unknown
from ..facts.network import RdmaInterface
from ..facts.storage import NVME, Mount
from ..facts.topology import DISK, DISTANCES, GPU, NIC, NODE, Topology
from . import quote, reference
from .blocks import stack
from .cause import Cause
from .rules import NOTES, rule

#: Requests that NVIDIA's gds-diag wants a queue to hold for throughput.
REQUESTS = 1024
#: Filesystems whose RDMA is libcufile's own, so that it chooses the adapter.
OWN_RDMA = ("gpfs", "mmfs", "wekafs")
POLICY = "rdma_load_balancing_policy"
#: Policies that use several adapters of a host well.
SPREADING = ("RoundRobinMaxMin", "MaxMinFit")


@rule(NOTES, 40)
def notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Advice on one mount; nothing where the evidence does not show it."""
    yield from _nearness(facts, mount)
    yield from _queues(mount)
    if mount.filesystem in OWN_RDMA:
        yield from _policy(facts)
        yield from links(facts)


def _nearness(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    topology = facts.topology
    addresses = {item.pci_address for item in stack(mount) if item.pci_address}
    if isinstance(topology, Unknown) or not topology.of_kind(GPU):
        return
    disks = [item for item in topology.of_kind(DISK) if item.address in addresses]
    nearest = {disk.label: _nearest(topology, disk.label, GPU) for disk in disks}
    far = [label for label, (distance, _) in nearest.items() if DISTANCES.index(distance) >= DISTANCES.index(NODE)]
    shown = tuple("{}: {} from {}".format(label, found[0], ", ".join(found[1])) for label, found in nearest.items())
    if far:
        what = "no GPU is nearer to {} than {}".format(", ".join(far), nearest[far[0]][0])
        fix = "put the data on disks under the same host bridge as the GPUs, or the work on the nearest GPU"
        yield Cause("platform.far-gpu", what, fix, quote.placed("topology", shown), reference.ACS)
    if len({found for _, found in nearest.values()}) > 1:
        what = "the disks under this mount are near to different GPUs: part of every large read crosses the host"
        fix = "stripe over disks that are near to the same GPUs"
        yield Cause("storage.spread", what, fix, quote.placed("topology", shown), reference.ACS)


def _nearest(topology: Topology, label: str, kind: str) -> Tuple[str, Tuple[str, ...]]:
    """The smallest distance of a device to those of a kind, and which are at it."""
    found: Dict[str, List[str]] = {}
    for item in topology.of_kind(kind):
        pair = topology.pair(label, item.label)
        distance = pair.distance if pair is not None and isinstance(pair.distance, str) else DISTANCES[-1]
        found.setdefault(distance, []).append(item.label)
    best = min(found, key=DISTANCES.index)
    return best, tuple(found[best])


def _queues(mount: Mount) -> Iterator[Cause]:
    shallow = [
        item
        for item in stack(mount)
        if item.kind == NVME and isinstance(item.requests, int) and item.requests < REQUESTS
    ]
    if shallow:
        what = f"the queue of {shallow[0].name} holds {shallow[0].requests} requests"
        path = f"/sys/block/{shallow[0].name}/queue/nr_requests"
        fix = f"where throughput matters, raise {path} towards {REQUESTS}, as far as the disk allows"
        evidence = quote.placed(path, [f"{item.name}: {item.requests}" for item in shallow])
        yield Cause("storage.queue-depth", what, fix, evidence, reference.ACS)


def _policy(facts: HostFacts) -> Iterator[Cause]:
    """Which adapter libcufile takes for a GPU; its default is the next in turn."""
    topology = facts.topology
    if isinstance(topology, Unknown):
        return
    gpus, adapters = topology.of_kind(GPU), topology.of_kind(NIC)
    if len(gpus) < 2 or len(adapters) < 2:
        return
    policy = facts.cufile.setting("properties", POLICY, "RoundRobin")
    if policy not in SPREADING:
        what = "properties.{} is {} on a host with {} GPUs and {} network adapters"
        what = what.format(POLICY, policy, len(gpus), len(adapters))
        fix = "set it to RoundRobinMaxMin, which spreads GPUs over their nearest adapters"
        yield Cause("rdma.policy", what, fix, quote.setting(facts, "properties", POLICY), reference.PARAMETERS)
    if facts.cufile.setting("properties", "rdma_dynamic_routing", False) is not True and _lonely(topology):
        what = "not every GPU is at the best distance from an adapter, and dynamic routing is off"
        fix = "set properties.rdma_dynamic_routing to true, so that I/O of far GPUs goes by the nearest one"
        evidence = quote.setting(facts, "properties", "rdma_dynamic_routing")
        yield Cause("rdma.no-routing", what, fix, evidence, reference.PARAMETERS)


def _lonely(topology: Topology) -> bool:
    """Whether some GPU is farther from its nearest adapter than others are from theirs."""
    best: Set[str] = {_nearest(topology, gpu.label, NIC)[0] for gpu in topology.of_kind(GPU)}
    return len(best) > 1


def links(facts: HostFacts) -> Iterator[Cause]:
    """RDMA adapters whose ports are all down."""
    rdma = facts.network.rdma
    down: Tuple[RdmaInterface, ...] = () if isinstance(rdma, Unknown) else tuple(i for i in rdma if not i.active)
    if down:
        what = "no port of {} is active".format(", ".join(dict.fromkeys(item.device for item in down)))
        evidence = tuple(f"/sys/class/infiniband/{item.device}/ports: none is ACTIVE" for item in down)
        yield Cause("rdma.link-down", what, "plug it in, or take it out of the address lists", evidence, reference.NFS)
