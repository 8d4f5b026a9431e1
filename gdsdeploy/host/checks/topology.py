"""The PCIe tree: links, access control, IOMMU, BAR1, distances, and what has moved since it was right."""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from ..facts import HostFacts, UndecidedError, Unknown, known
from ..facts.pci import Link
from ..facts.topology import (
    DISK,
    DISTANCES,
    GPU,
    NIC,
    OFF,
    PASSTHROUGH,
    TRANSLATING,
    Node,
    Pair,
    Topology,
    degraded,
    link_words,
    resting,
)
from ..model.expectation import Expectation
from ..topology import golden
from .registry import Answer, check, failed, passed, subject

subject("topology", after="kernel")

#: KiB of bounce buffers that libcufile maps through BAR1 where cufile.json says nothing.
CACHE_KIB = 131072
#: With static BAR1 it maps the whole memory, and no GPU that has the mode has less than this.
STATIC_BYTES = 16 << 30
NO_GPU = "not proven: this host has no GPU"
#: Keys of the fleet's topology → kind of device.
KINDS = {"nvme": DISK, "nic": NIC}


def _not_asked(facts: HostFacts, expectation: Expectation, needed: str) -> Optional[Answer]:
    """The answer for hosts without a GPU, or whose mode goes through CPU memory anyway."""
    if not known(facts.topology).of_kind(GPU):
        return passed(NO_GPU, expected=needed)
    if expectation.mode == "compat" and expectation.rdma == "none":
        return passed("not needed: the mode is compat, and the fleet asks for no RDMA", expected="nothing")
    return None


@check(
    "topology.link",
    "every PCIe link of a GPU, NVMe disk or network adapter is as fast and as wide as both of its ends can be",
    expects="no degraded link; a GPU at rest may lower its speed, never its width",
    prevents="half of the bandwidth after a card was not seated well, or a riser or cable went bad",
)
def link(facts: HostFacts, _expectation: Expectation) -> Answer:
    topology = known(facts.topology)
    bad: List[str] = []
    linked = [node for node in topology.nodes() if node.link is not None]
    for node in linked:
        short = known(degraded(node))
        if short:
            bad.append(f"{_name(node)} runs at {short}")
    if bad:
        hint = "Seat the card, riser or cable again; ask the firmware's settings for a limit of that slot"
        return failed("; ".join(bad), hint, [_link_line(node) for node in linked if degraded(node)])
    words = f"{_links(len(linked))} at what both ends can do" if linked else "no device has a PCIe link of its own"
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
    prevents="direct I/O at a fraction of its speed, because ACS was switched on in the firmware or by the kernel",
)
def acs(facts: HostFacts, expectation: Expectation) -> Answer:
    early = _not_asked(facts, expectation, "no ACS redirect")
    if early:
        return early
    topology = known(facts.topology)
    pairs = [pair for pair in _of_gpus(topology) if pair.bridge]
    hint = (
        "Switch ACS off in the firmware, or boot with pci=disable_acs_redir=…, and the IOMMU off, which needs it; on a"
        " virtual machine's host, let ATS do it"
    )
    named = facts.nvidia_fs.bridges if isinstance(facts.nvidia_fs.bridges, tuple) else ()
    lines = [f"/proc/driver/nvidia-fs/bridges: {name}" for name in named]
    bad = [pair for pair in pairs if isinstance(pair.redirecting, tuple) and pair.redirecting]
    lines += ["{} to {}: {} redirects".format(pair.one, pair.other, ", ".join(known(pair.redirecting))) for pair in bad]
    if lines:
        what = "{} of {} pairs of a GPU and a peer below one switch are redirected"
        return failed(what.format(len(bad), len(pairs)) if bad else "nvidia-fs names bridges with ACS", hint, lines)
    for pair in pairs:
        known(pair.redirecting)
    if not pairs:
        return passed("no GPU shares a switch with a disk or adapter: there is nothing to redirect")
    return passed(f"none of {len(pairs)} pairs of a GPU and a peer below one switch is redirected")


def _of_gpus(topology: Topology) -> List[Pair]:
    """Pairs of a GPU and a disk or adapter."""
    gpus = {item.label for item in topology.of_kind(GPU)}
    return [pair for pair in topology.pairs if pair.one in gpus and pair.other not in gpus]


@check(
    "topology.iommu",
    "the IOMMU does not slow down or break peer traffic of GPUs, as the mode needs",
    expects="on x86: off, or passing addresses through where the mode is not p2pdma",
    prevents="direct I/O that is slow or corrupt because an IOMMU came on with a firmware update",
)
def iommu(facts: HostFacts, expectation: Expectation) -> Answer:
    early = _not_asked(facts, expectation, "off or pt")
    if early:
        return early
    topology = known(facts.topology)
    words = known(topology.iommu_words)
    found = known(topology.iommu)
    line = "/proc/cmdline: {}".format(" ".join(words) or "no word about an IOMMU")
    if known(facts.os.machine) == "aarch64":
        return passed(f"{found}; this machine's GPUs expect it on", [line], expected="whatever it is: aarch64")
    groups = [
        f"/sys/bus/pci/devices/{item.address}/iommu_group: {item.iommu_group} ({item.iommu})"
        for item in topology.devices
        if isinstance(item.iommu_group, str)
    ]
    if found == OFF:
        return passed("off", [line])
    if found == PASSTHROUGH and expectation.mode != "p2pdma":
        return passed("pt: it passes addresses through", [line, *groups])
    hint = "Boot with intel_iommu=off or amd_iommu=off"
    if found == TRANSLATING and expectation.mode != "p2pdma":
        hint += "; where it has to stay, with iommu=pt"
    return failed("the IOMMU is {}".format("on" if found == TRANSLATING else "in passthrough"), hint, [line, *groups])


@check(
    "topology.bar1",
    "BAR1 of every GPU is large enough for what goes through it",
    expects="at least the bounce buffers of cufile.json; in mode p2pdma the whole memory of the GPU",
    prevents="bounce buffers that cannot be mapped, after Resizable BAR or Above 4G Decoding was lost in the firmware",
)
def bar1(facts: HostFacts, expectation: Expectation) -> Answer:
    early = _not_asked(facts, expectation, "a BAR1")
    if early:
        return early
    cache = facts.cufile.setting("properties", "max_device_cache_size_kb", CACHE_KIB)
    needed = STATIC_BYTES if expectation.mode == "p2pdma" else (cache if isinstance(cache, int) else CACHE_KIB) * 1024
    bad: List[Node] = []
    good: List[Node] = []
    lines: List[str] = []
    for gpu in known(facts.topology).of_kind(GPU):
        lines.append(f"{gpu.label} ({gpu.address}): {gpu.bar1} bytes")
        (bad if gpu.bar1 is None or gpu.bar1 < needed else good).append(gpu)
    expected = f"{needed >> 20} MiB or more"
    if bad:
        words = ", ".join(f"{gpu.label} {_mib(gpu)}" for gpu in bad)
        hint = "Enable Above 4G Decoding and Resizable BAR in the firmware; of a virtual machine, map the whole GPU"
        return failed(words, hint, lines, expected=expected)
    return passed(", ".join(f"{gpu.label} {_mib(gpu)}" for gpu in good), lines, expected=expected)


def _mib(gpu: Node) -> str:
    return "has none" if gpu.bar1 is None else f"{gpu.bar1 >> 20} MiB"


@check(
    "topology.distance",
    "every GPU has a disk and an adapter as near as the fleet asks for",
    expects="topology.nvme and topology.nic of the profile",
    prevents="I/O across CPU sockets after cards changed their slots",
)
def distance(facts: HostFacts, expectation: Expectation) -> Answer:
    asked = {key: str(expectation.topology[key]) for key in KINDS if key in expectation.topology}
    if not asked:
        return passed("not asked: the fleet sets no distance", expected="nothing")
    topology = known(facts.topology)
    gpus = topology.of_kind(GPU)
    expected = ", ".join(f"{key} at most {most}" for key, most in asked.items())
    if not gpus:
        return passed(NO_GPU, expected=expected)
    far: List[str] = []
    near: Dict[str, List[str]] = {}
    for key, most in asked.items():
        for gpu in gpus:
            name, found = _nearest(topology, gpu, KINDS[key])
            near.setdefault(gpu.label, []).append("{} {}".format(name or "no " + key, found).strip())
            if not found or DISTANCES.index(found) > DISTANCES.index(most):
                far.append("{}: {}".format(gpu.label, f"no {key}" if not found else name + " at " + found))
    lines = ["{}: {}".format(label, ", ".join(words)) for label, words in near.items()]
    if far:
        hint = (
            "Move the cards so that each GPU shares a switch or socket with its own: gdsdeploy topology shows the tree"
        )
        return failed("; ".join(far), hint, lines, expected=expected)
    return passed("; ".join(lines), expected=expected)


def _nearest(topology: Topology, gpu: Node, kind: str) -> Tuple[str, str]:
    """Label and distance of the nearest device of a kind; raises UndecidedError where one is not known."""
    found: List[Tuple[int, str]] = []
    unread: Optional[Unknown] = None
    for item in topology.of_kind(kind):
        pair = topology.pair(gpu.label, item.label)
        if pair is None or isinstance(pair.distance, Unknown):
            unread = pair.distance if pair is not None and isinstance(pair.distance, Unknown) else unread
        else:
            found.append((DISTANCES.index(pair.distance), item.label))
    if not found and unread is not None:
        raise UndecidedError(unread.reason)
    return (min(found)[1], DISTANCES[min(found)[0]]) if found else ("", "")


@check(
    "topology.golden",
    "the PCIe tree is the golden one of this kind of machine",
    expects="every slot, part, link, bridge and distance as in the profile's golden topology",
    prevents="a part that was swapped for another, put into another slot, or not found any more",
)
def as_golden(facts: HostFacts, expectation: Expectation) -> Answer:
    wanted = expectation.topology.get("golden")
    if wanted is None:
        return passed("not asked: the profile names no golden topology", expected="nothing")
    try:
        differ = golden.differences(golden.checked(wanted), known(facts.topology))
    except golden.GoldenError as error:
        raise UndecidedError(f"the expectation's golden topology: {error}") from None
    expected = "the tree of {}".format(wanted.get("label") or "the profile")
    if not differ:
        return passed("it is", expected=expected)
    hint = "Put back what moved; if it is right as it is: gdsdeploy topology FLEET --limit HOST --golden write"
    return failed("; ".join(_first(differ)), hint, differ, expected=expected)


def _first(lines: Sequence[str], most: int = 3) -> Iterable[str]:
    return [*lines[:most], *([f"and {len(lines) - most} more"] if len(lines) > most else [])]


def _links(number: int) -> str:
    return "{} link{}".format(number, "" if number == 1 else "s")
