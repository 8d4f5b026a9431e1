"""How GPUs, disks and adapters are connected, and the network that RDMA uses."""

from __future__ import annotations

from typing import Dict, Iterator, List, Mapping, Optional, Tuple

from ..explain import mechanisms
from ..explain.hardware import cache_bytes, grace
from ..explain.p2pdma import STATIC_BYTES
from ..facts import HostFacts, UndecidedError, Unknown, require
from ..facts.cufile import given_keys
from ..facts.unknown import if_known
from ..io.wording import first_few
from ..model.expectation import Expectation
from ..subjects.pci import DISK, GPU, NIC, Link
from ..subjects.register import Answer, check, failed, not_applicable, passed
from ..subjects.topology import (
    DISTANCES,
    OFF,
    PASSTHROUGH,
    TRANSLATING,
    GoldenError,
    Node,
    Topology,
    degraded,
    differences,
    link_words,
    resting,
    validate_golden,
)

LIST = "rdma_dev_addr_list"
TABLE = "mount_table"
NOT_ASKED = "not needed: the fleet asks for no RDMA"


@check(
    "rdma.link",
    "the RDMA adapters have a link",
    expects="a port of every RDMA device is active",
    prevents="storage traffic through one adapter only, or a failover, because a cable or switch port is down",
)
def network_link(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return not_applicable(NOT_ASKED)
    interfaces = facts.network.rdma
    if not interfaces:
        return failed("this host has no RDMA device", "Load the adapter's driver, or set the fleet's rdma to none")
    shown = ["{} ({}): {}".format(i.device, i.interface, "active" if i.active else "down") for i in interfaces]
    down = list(dict.fromkeys(interface.device for interface in interfaces if not interface.active))
    if down:
        hint = "Check the cable, the switch port and, for InfiniBand, the subnet manager: ibstat, rdma link"
        return failed("no port of {} is active".format(", ".join(down)), hint, shown)
    return passed("{} active".format(", ".join(dict.fromkeys(interface.device for interface in interfaces))), shown)


@check(
    "rdma.addresses",
    "the addresses in cufile.json's RDMA lists belong to this host's RDMA adapters",
    expects="every address of {cufile_path} on an RDMA interface of this host",
    prevents="a file copied from another node, with which libcufile finds no adapter and falls back to compat mode",
)
def addresses(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.rdma == "none":
        return not_applicable(NOT_ASKED)
    config = facts.cufile.config
    listed = list(_listed(config)) if config is not None else []
    without = _without_addresses(facts, expectation)
    if without:
        hint = f"Set properties.{LIST}: the profile's `fit` does it for each host"
        return failed("no address of an RDMA adapter is listed for {}".format(", ".join(without)), hint)
    if not listed:
        return not_applicable("no list has an address: libcufile chooses the adapters")
    own = {entry.address: f"{i.device} on {i.interface}" for i in facts.network.rdma for entry in i.addresses}
    foreign = [f"{key}: {address}" for key, address in listed if address not in own]
    if foreign:
        hint = "Render the file for this host: the profile's `fit` fills these lists from the host itself"
        shown = [f"{address}: {place}" for address, place in sorted(own.items())]
        return failed("not an address of this host's RDMA adapters: {}".format("; ".join(foreign)), hint, shown)
    return passed("{} as listed".format(", ".join(dict.fromkeys(own[address] for _, address in listed))))


def _without_addresses(facts: HostFacts, expectation: Expectation) -> List[str]:
    """Mounts that take a direct path only with an address, and have none; Spectrum Scale can also use nvidia-fs."""
    mounts = facts.storage.mounts
    if expectation.mode == "compat":
        return []
    clients = [(mount, mechanisms.CLIENTS.get(mount.filesystem)) for mount in mounts.values()]
    return [
        f"{mount.mount_point} ({mount.filesystem})"
        for mount, client in clients
        if client is not None
        and not (client.hooks and expectation.mode == "nvidia-fs")
        and mechanisms.listed_addresses(facts, client, mount) == ()
    ]


def _listed(config: Mapping[str, object]) -> Iterator[Tuple[str, str]]:
    """(key, address) of every list, those of mount tables too."""
    for key, value in given_keys(config):
        if key.endswith(TABLE) and isinstance(value, Mapping):
            for mount, row in value.items():
                addresses = row.get(LIST) if isinstance(row, Mapping) else row
                yield from ((f"{key}.{mount}", address) for address in _strings(addresses))
        elif key.endswith(LIST):
            yield from ((key, address) for address in _strings(value))


def _strings(value: object) -> List[str]:
    return [text for text in value if isinstance(text, str) and text] if isinstance(value, list) else []


NO_GPU = "not proven: this host has no GPU"
#: Differences named in a finding; the rest is counted.
NAMED = 3
#: Keys of the fleet's topology → kind of device.
KINDS = {"nvme": DISK, "nic": NIC}


def _not_asked(facts: HostFacts, expectation: Expectation, needed: str) -> Optional[Answer]:
    """The answer for hosts without a GPU, or whose mode goes through CPU memory anyway."""
    if not facts.topology.of_kind(GPU):
        return not_applicable(NO_GPU, expected=needed)
    if expectation.mode == "compat" and expectation.rdma == "none":
        return not_applicable("not needed: the mode is compat, and the fleet asks for no RDMA")
    return None


@check(
    "topology.link",
    "every PCIe link of a GPU, NVMe disk or network adapter has the highest speed and width that both ends support",
    expects="no degraded link; a GPU at rest may lower its speed, never its width",
    prevents="half of the bandwidth because a card is not seated well, or a riser or cable is damaged",
)
def link(facts: HostFacts, _expectation: Expectation) -> Answer:
    linked = [node for node in facts.topology.nodes() if node.link is not None]
    slow = [(node, words) for node, words in ((node, degraded(node)) for node in linked) if words]
    if slow:
        hint = "Seat the card, riser or cable again; check the firmware's settings for a limit of that slot"
        words = "; ".join(f"{_name(node)} runs at {words}" for node, words in slow)
        return failed(words, hint, [_link_line(node) for node, _ in slow])
    if not linked:
        return not_applicable("no device has a PCIe link")
    words = f"{len(linked)} link{'' if len(linked) == 1 else 's'} at what both ends can do"
    rest = [node.label for node in linked if resting(node)]
    return passed(words + ("; at rest, so their speed is not proven: {}".format(", ".join(rest)) if rest else ""))


def _name(node: Node) -> str:
    return f"{node.label} ({node.address})" if node.label else f"the switch at {node.address}"


def _link_line(node: Node) -> str:
    assert isinstance(node.link, Link)
    now, most = link_words(node.link.speed, node.link.width), link_words(node.link.max_speed, node.link.max_width)
    return f"/sys/bus/pci/devices/{node.address}: current {now}, max {most}"


@check(
    "topology.acs",
    "no PCIe switch sends traffic between a GPU and its peers up to the host bridge (ACS redirect)",
    expects="Access Control Services do not redirect between a GPU and the disks and adapters below its switch",
    prevents="direct I/O at a fraction of its speed, because the firmware or the kernel enabled ACS",
)
def acs(facts: HostFacts, expectation: Expectation) -> Answer:
    if early := _not_asked(facts, expectation, "no ACS redirect"):
        return early
    topology = facts.topology
    gpus = {gpu.label for gpu in topology.of_kind(GPU)}
    pairs = [pair for pair in topology.pairs if pair.bridge and pair.one in gpus and pair.other not in gpus]
    hint = (
        "Disable ACS in the firmware, or boot with pci=disable_acs_redir=…, and with the IOMMU off, which needs ACS; on"
        " a virtual machine's host, use ATS"
    )
    bridges = if_known(lambda: facts.nvidia_fs.bridges, None) or ()
    lines = [f"/proc/driver/nvidia-fs/bridges: {name}" for name in bridges]
    bad = [pair for pair in pairs if isinstance(pair.redirecting, tuple) and pair.redirecting]
    lines += [
        "{} to {}: {} redirects".format(pair.one, pair.other, ", ".join(require(pair.redirecting))) for pair in bad
    ]
    if lines:
        words = f"{len(bad)} of {len(pairs)} pairs of a GPU and a peer below one switch are redirected"
        return failed(words if bad else "nvidia-fs names bridges with ACS", hint, lines)
    for pair in pairs:
        require(pair.redirecting)
    if not pairs:
        return not_applicable("no GPU shares a switch with a disk or adapter: there is nothing to redirect")
    return passed(f"none of {len(pairs)} pairs of a GPU and a peer below one switch is redirected")


@check(
    "topology.iommu",
    "the IOMMU does not slow down or break peer traffic of GPUs in this mode",
    expects="on x86: off, or passing addresses through where the mode is not p2pdma",
    prevents="direct I/O that is slow or corrupt because a firmware update enabled an IOMMU",
)
def iommu(facts: HostFacts, expectation: Expectation) -> Answer:
    if early := _not_asked(facts, expectation, "off or pt"):
        return early
    topology = facts.topology
    words, mode = require(topology.iommu_words), require(topology.iommu)
    line = "/proc/cmdline: {}".format(" ".join(words) or "no word about an IOMMU")
    if facts.os.machine == "aarch64":
        return passed(f"{mode}; this machine's GPUs expect it on", [line], expected="any mode: aarch64")
    groups = [
        f"/sys/bus/pci/devices/{device.address}/iommu_group: {device.iommu_group} ({device.iommu})"
        for device in topology.devices
        if isinstance(device.iommu_group, str)
    ]
    if mode == OFF:
        return passed("off", [line])
    if mode == PASSTHROUGH and expectation.mode != "p2pdma":
        return passed("pt: it passes addresses through", [line, *groups])
    hint = "Boot with intel_iommu=off or amd_iommu=off; boot: auto in the profile sets both"
    if mode == TRANSLATING and expectation.mode != "p2pdma":
        hint += "; where it has to stay, with iommu=pt; boot: {arguments: {iommu: pt}} sets it"
    return failed("the IOMMU is {}".format("on" if mode == TRANSLATING else "in passthrough"), hint, [line, *groups])


@check(
    "topology.bar1",
    "BAR1 of every GPU is large enough for this mode",
    expects="at least the bounce buffers of cufile.json; in mode p2pdma the whole memory of the GPU",
    prevents="bounce buffers that cannot be mapped, after Resizable BAR or Above 4G Decoding was reset in the firmware",
)
def bar1(facts: HostFacts, expectation: Expectation) -> Answer:
    if early := _not_asked(facts, expectation, "a BAR1"):
        return early
    if if_known(lambda: grace(facts), False):
        # Linux, drivers/vfio/pci/nvgrace-gpu: the GPU has a BAR1 that isn't used once the link is up.
        return not_applicable("not needed: NVLink-C2C reaches the memory of this machine's GPUs, not BAR1")
    needed = STATIC_BYTES if expectation.mode == "p2pdma" else cache_bytes(facts)
    gpus = facts.topology.of_kind(GPU)
    lines = [f"{gpu.label} ({gpu.address}): {gpu.bar1} bytes" for gpu in gpus]
    small = [gpu for gpu in gpus if gpu.bar1 is None or gpu.bar1 < needed]
    shown = [gpu.label + (" has none" if gpu.bar1 is None else f" {gpu.bar1 >> 20} MiB") for gpu in small or gpus]
    expected = f"{needed >> 20} MiB or more"
    # Where it isn't known whether this is a Grace, a small BAR1 may do.
    if small and not grace(facts):
        hint = "Enable Above 4G Decoding and Resizable BAR in the firmware; for a virtual machine, map the whole GPU"
        return failed(", ".join(shown), hint, lines, expected=expected)
    return passed(", ".join(shown), lines, expected=expected)


@check(
    "topology.distance",
    "every GPU has a disk and an adapter within the fleet's distance",
    expects="topology.nvme and topology.nic of the profile",
    prevents="I/O across CPU sockets after cards changed their slots",
)
def distance(facts: HostFacts, expectation: Expectation) -> Answer:
    limits = {key: str(expectation.topology[key]) for key in KINDS if key in expectation.topology}
    if not limits:
        return not_applicable("not asked: the fleet sets no distance")
    topology = facts.topology
    gpus = topology.of_kind(GPU)
    expected = ", ".join(f"{key} at most {most}" for key, most in limits.items())
    if not gpus:
        return not_applicable(NO_GPU, expected=expected)
    far: List[str] = []
    near: Dict[str, List[str]] = {}
    for key, most in limits.items():
        for gpu in gpus:
            name, nearness = _nearest(topology, gpu, KINDS[key])
            near.setdefault(gpu.label, []).append(f"{name} {nearness}" if nearness else f"no {key}")
            if not nearness or DISTANCES.index(nearness) > DISTANCES.index(most):
                far.append("{}: {}".format(gpu.label, f"{name} at {nearness}" if nearness else f"no {key}"))
    lines = ["{}: {}".format(label, ", ".join(words)) for label, words in near.items()]
    if far:
        hint = (
            "Move the cards so that each GPU shares a switch or socket with them; to see the tree: gdsdeploy topology"
        )
        return failed("; ".join(far), hint, lines, expected=expected)
    return passed("; ".join(lines), expected=expected)


def _nearest(topology: Topology, gpu: Node, kind: str) -> Tuple[str, str]:
    """Label and distance of the nearest device of a kind; raises UndecidedError where no distance is known."""
    pairs = [(topology.pair(gpu.label, device.label), device.label) for device in topology.of_kind(kind)]
    distances = [(pair.distance, label) for pair, label in pairs if pair is not None]
    places = [(DISTANCES.index(nearness), label) for nearness, label in distances if isinstance(nearness, str)]
    unread = [nearness for nearness, _ in distances if isinstance(nearness, Unknown)]
    if unread and not places:
        raise UndecidedError(unread[-1].reason)
    return (min(places)[1], DISTANCES[min(places)[0]]) if places else ("", "")


@check(
    "topology.golden",
    "the PCIe tree is the golden one of this kind of machine",
    expects="every slot, part, link, bridge and distance as in the profile's golden topology",
    prevents="a part that was replaced by another, moved to another slot, or disappeared",
)
def as_golden(facts: HostFacts, expectation: Expectation) -> Answer:
    tree = expectation.topology.get("golden")
    if tree is None:
        return not_applicable("not asked: the profile names no golden topology")
    try:
        lines = differences(validate_golden(tree), facts.topology)
    except GoldenError as error:
        raise UndecidedError(f"the expectation's golden topology: {error}") from None
    expected = "the tree of {}".format(tree.get("label") or "the profile")
    if not lines:
        return passed("the same tree", expected=expected)
    hint = "Put the parts back; if this tree is right: gdsdeploy topology FLEET --limit {} --golden write"
    hint = hint.format(expectation.host or facts.name)
    return failed(first_few(lines, NAMED, "; "), hint, lines, expected=expected)
