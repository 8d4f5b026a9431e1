"""PCI functions: GPUs, network adapters, disks and the bridges above them, from sysfs alone; and how many there are.

Hardware is counted by physical functions, whether a driver runs them or not.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..facts.document import Document, collected, group_of, once_for_alike, there
from ..facts.unknown import (
    Facts,
    Maybe,
    UndecidedError,
    Unknown,
    any_of,
    fact,
    follows,
    given,
    if_known,
    known,
    or_else,
    require,
)
from ..io.reading import acs_control, port_type, switch_mark
from ..io.wording import first_few
from ..model.expectation import Expectation
from ..paths import INFINIBAND, INTERFACES, NODES, PCI
from .register import Answer, check, collector, failed, not_applicable, passed, unknown
from .types import EvidenceRequest, HostFacts, Recorder

if TYPE_CHECKING:
    from .driver import DriverFacts

#: Beginnings of class codes: mass storage, network, display, bridge, InfiniBand, processing accelerator.
CLASSES = ("0x01", "0x02", "0x03", "0x06", "0x0c06", "0x12")
FILES = ("numa_node", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width", "enable")
#: Files that tell one part from another of the same kind.
PART = ("revision", "subsystem_vendor", "subsystem_device")
#: Class → folder in which the kernel names the function's devices.
DEVICE_FOLDERS = {"0x0108": "nvme", "0x02": "infiniband", "0x0c06": "infiniband"}
#: More functions than this are listed, but not described.
LIMIT = 2048


@collector("pci")
def collect_pci(recorder: Recorder, _request: EvidenceRequest) -> None:
    for name in recorder.names(PCI)[:LIMIT]:
        folder, kind = PCI + "/" + name, identify(recorder, name)
        recorder.link(folder)
        if not kind.startswith(CLASSES):
            continue
        recorder.texts(FILES, folder)
        recorder.link(folder + "/driver")
        if recorder.link(folder + "/iommu_group") is not None:
            recorder.text(folder + "/iommu_group/type")
        if kind.startswith("0x0604"):
            recorder.value("acs", name, acs_control, folder + "/config")
            recorder.value("ports", name, port_type, folder + "/config")
        if kind.startswith(("0x03", "0x01", "0x12")):
            recorder.text(folder + "/resource")
        if not kind.startswith("0x06"):
            recorder.texts(PART, folder)
            recorder.link(folder + "/physfn")
        devices = (name for beginning, name in DEVICE_FOLDERS.items() if kind.startswith(beginning))
        recorder.paths(*(f"{folder}/{name}" for name in devices))
    recorder.names(NODES, "node*")
    # An interface may lie deeper than its function: with virtio, below a device of that bus.
    for interface in recorder.paths(INTERFACES)[:LIMIT]:
        recorder.link(interface)
    recorder.paths("/sys/class/iommu", "/sys/kernel/iommu_groups")


def identify(recorder: Recorder, name: str) -> str:
    """Record what a function is; returns its class as sysfs shows it."""
    folder = PCI + "/" + name
    kind = recorder.text(folder + "/class") or ""
    recorder.texts(("vendor", "device"), folder)
    if kind.startswith("0x0207") and recorder.document["files"][folder + "/vendor"] == "0x15b3\n":
        recorder.value("vpd", name, switch_mark, folder + "/vpd")
    return kind


NVIDIA_VENDOR = 0x10DE
#: Vendor and class of NVSwitches, up to the third generation, and of what leads to those of the fourth.
NVSWITCH, SWITCH_BRIDGE = (NVIDIA_VENDOR, 0x068000), (0x15B3, 0x020700)
#: What stands for a GPU's model where the driver doesn't say it.
UNNAMED = "a model that the driver doesn't name"
#: GPUs whose NVSwitches, if there are any, are PCI functions of the host: Hopper and older, and cards; and those of
#: Grace, whose switches are machines of their own.
OTHER_FABRICS = r"\b(GeForce|TITAN|Quadro|RTX|NVS|GRID|Tesla|[KMPTVALH]\d+\w*|G[HB]\d+)\b"
#: Class codes.  GPU_CLASSES: VGA and 3D controllers; a GPU's audio function has 0x0403, an NVSwitch 0x0680 (bridge).
DISPLAY, NVME, BRIDGE = 0x03, 0x010802, 0x0604
NETWORK, INFINIBAND_CLASS = 0x02, 0x0C06
GPU_CLASSES = (0x0300, 0x0302)
#: Kinds of devices in a topology.
GPU, NIC, DISK = "gpu", "nic", "nvme"
#: Bits of the control register of Access Control Services that send peers' requests up to the root (pci_regs.h).
REDIRECTS = 0x04 | 0x08 | 0x20
#: Not a width: sysfs shows these where the register is empty or all ones (seen for emulated functions).
_NO_WIDTH = (0, 63, 255)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_CODE = re.compile(r"0x[0-9a-f]{4,6}$")
_GENERATION = re.compile(r"\d{1,3}(\.\d)?(?=$| GT/s)")
_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}$")
#: The flag of a BAR that has no address: the firmware and the kernel found no room for it (linux/ioport.h).
_UNSET = 0x20000000
#: Types of bridges whose link the device below them reports: root ports, downstream ports of switches.
_DOWNWARD = (4, 6)


class Link(NamedTuple):
    """A PCI Express link as one of its ends sees it: gigatransfers a second and lanes.

    ``max_*`` is the limit of this end; the other end may have a lower one.
    """

    speed: float
    width: int
    max_speed: float
    max_width: int


@once_for_alike
def addresses(path: str) -> Tuple[str, ...]:
    """The PCI addresses in a path below /sys/devices, the root's side first.

    A host bridge in the middle of it, as Intel's VMD makes one, begins a tree: the function before it is no bridge.
    """
    parts = path.split("/")
    begin = max((place for place, part in enumerate(parts) if _BRIDGE.match(part)), default=0)
    return tuple(part for part in parts[begin:] if _ADDRESS.match(part))


@once_for_alike
def _bars(text: str) -> Mapping[int, int]:
    """Sizes from sysfs' ``resource``: one line ``begin end flags`` per BAR, zeros where there is none.

    The size of one without an address is 0.
    """
    sizes = {}
    for index, line in enumerate(text.splitlines()[:6]):
        words = line.split()
        if len(words) == 3 and all(re.match(r"0x[0-9a-f]{1,16}$", word) for word in words):
            begin, end, flags = (int(word, 16) for word in words)
            if end > begin:
                sizes[index] = 0 if flags & _UNSET else end - begin + 1
    return sizes


class Function(Facts):
    """One PCI function; ``kind`` is its 24-bit class code."""

    def __init__(self, document: Document, address: str) -> None:
        """Raises UndecidedError where the evidence doesn't show what it is."""
        super().__init__(document)
        self.address, self._folder = address, f"{PCI}/{address}"
        self.vendor, self.device, self.kind = (
            _code(document, f"{self._folder}/{file}") for file in ("vendor", "device", "class")
        )

    def _link(self, name: str) -> str:
        """The end of a link; empty where there is none, or it isn't known."""
        return if_known(lambda: self.document.link(self._folder + name), None) or ""

    driver: str = follows(lambda self: self._link("/driver").rpartition("/")[2])
    #: behind an IOMMU
    iommu: bool = follows(lambda self: self.document.link(self._folder + "/iommu_group") is not None)
    #: index of the BAR → bytes, 0 for one without an address
    bars: Mapping[int, int] = follows(
        lambda self: _bars(if_known(lambda: self.document.text(self._folder + "/resource"), None) or "")
    )
    #: addresses of the bridges above it, the root's side first
    bridges: Tuple[str, ...] = follows(lambda self: addresses(self._link(""))[:-1])
    #: the root that it hangs from, as the kernel names it, e.g. ``pci0000:00``; empty: the path names none.  Behind
    #: Intel's VMD it's the root of the VMD, which is part of the processor
    host_bridge: str = follows(lambda self: next(filter(_BRIDGE.match, self._link("").split("/")), ""))
    #: what tells parts of one kind apart: ``vendor:device rev revision`` of its subsystem, or empty
    subsystem: str = follows(lambda self: if_known(self._subsystem, ""))
    #: a virtual function of a part that is listed itself
    virtual: bool = follows(lambda self: self._link("/physfn") != "")
    #: what the kernel calls it: network interfaces, RDMA devices, NVMe controllers
    names: Tuple[str, ...] = follows(lambda self: _names(self.document, self.address))

    @fact
    def is_switch_bridge(self) -> bool:
        """Whether it leads to NVSwitches of the fourth generation, and isn't an adapter of the network."""
        is_candidate = (self.vendor, self.kind) == SWITCH_BRIDGE
        return is_candidate and bool(self.document.text(self.address, "vpd"))

    @property
    def is_inside(self) -> bool:
        """Whether it is a bridge whose link the plugged-in device reports.

        Where its type isn't known: every second bridge.  Root ports have no bridge above them, upstream ports of
        switches one, downstream ports two, and so on.
        """
        if self.kind >> 8 != BRIDGE:
            return False
        type_ = if_known(lambda: self.document.number("ports", self.address), None)
        return len(self.bridges) % 2 == 0 if type_ is None else type_ in _DOWNWARD

    @property
    def bar1(self) -> Optional[int]:
        """Bytes of a GPU's BAR1: the second one that exists, because a 64-bit BAR takes two places."""
        sizes = [self.bars[index] for index in sorted(self.bars)]
        return sizes[1] if len(sizes) > 1 else None

    @fact
    def numa_node(self) -> int:
        """-1 where the platform names none."""
        text = if_known(lambda: self.document.line(self._folder + "/numa_node"), None)
        return int(text) if text is not None and re.match(r"-?\d{1,4}$", text) else -1

    @fact
    def iommu_domain(self) -> Optional[str]:
        """``identity``: the IOMMU passes addresses through; ``DMA`` and ``DMA-FQ``: it translates; None: no IOMMU."""
        path = self._folder + "/iommu_group/type"
        return there(self.document.line(path), path) if self.iommu else None

    @fact
    def iommu_group(self) -> Optional[str]:
        """Number of its IOMMU group; None: no IOMMU."""
        link = self.document.link(self._folder + "/iommu_group")
        return None if link is None else link.rpartition("/")[2]

    @fact
    def link(self) -> Optional[Link]:
        """None: it has no PCI Express link of its own, as functions on the root bus."""
        files = [f"{which}_link_{unit}" for which in ("current", "max") for unit in ("speed", "width")]
        values = [self.document.line(f"{self._folder}/{file}") for file in files]
        speed, width, max_speed, max_width = (_GENERATION.match(str(value)) for value in values)
        if not (speed and width and max_speed and max_width):
            return None
        link = Link(float(speed.group()), int(width.group()), float(max_speed.group()), int(max_width.group()))
        return None if {link.width, link.max_width} & set(_NO_WIDTH) else link

    def _subsystem(self) -> str:
        files = ("subsystem_vendor", "subsystem_device", "revision")
        lines = [there(self.document.line(f"{self._folder}/{file}"), file) for file in files]
        return "{}:{} rev {}".format(*(re.sub("^0x", "", line) for line in lines))


class PciFacts(Facts):
    """Known only if every function could be read."""

    functions = given(lambda document: tuple(Function(document, name) for name in document.names(PCI) or ()))
    #: NVIDIA's display functions, without virtual functions of SR-IOV
    gpus: Tuple[Function, ...] = follows(lambda self: tuple(one for one in self.functions if kind_of(one) == GPU))
    #: addresses of NVSwitches; and those that are known to lead to some
    switches: Tuple[str, ...] = follows(
        lambda self: tuple(one.address for one in self.functions if (one.vendor, one.kind) == NVSWITCH)
    )
    switch_bridges: Tuple[str, ...] = follows(
        lambda self: tuple(one.address for one in self.functions if _is_known_bridge(one))
    )

    @fact
    def acs(self) -> Mapping[str, Maybe[int]]:
        """Bridges → the control register of their access control, 0 without any."""
        bridges = [one.address for one in if_known(lambda: self.functions, ()) if one.kind >> 8 == BRIDGE]
        return {address: known(partial(_acs, self.document, address)) for address in bridges}

    @fact
    def cpu(self) -> Optional[Tuple[str, int]]:
        """Vendor and family of the processor; None: the kernel names none, as on machines that are not x86."""
        lines = there(self.document.lines("/proc/cpuinfo"), "/proc/cpuinfo")
        pairs = [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]
        # Arm's lines are others, and this fact is about x86 only.
        pairs = [pair for pair in pairs if not pair[0].startswith("CPU ")][:2]
        if [key for key, _ in pairs] == ["vendor_id", "cpu family"] and pairs[1][1].isdigit():
            return pairs[0][1], int(pairs[1][1])
        if pairs:
            raise UndecidedError("/proc/cpuinfo is not understood: {}".format("; ".join(lines[:2])))
        return None

    def find(self, address: str) -> Optional[Function]:
        """The function with this address; None: there is none, or the functions aren't known."""
        return next((one for one in if_known(lambda: self.functions, ()) if one.address == address), None)

    def control(self, bridge: str) -> int:
        """The control register of a bridge's access control; raises UndecidedError."""
        return require(self.acs.get(bridge, Unknown(f"the access control of {bridge} was not read")))


def _acs(document: Document, address: str) -> int:
    control = document.number("acs", address, "the access control of " + address)
    return max(0, collected(control, f"the bridge {address} is gone"))


def _is_known_bridge(function: Function) -> bool:
    return if_known(lambda: function.is_switch_bridge, False)


def kind_of(function: Function) -> str:
    """What a function is among the devices of a topology; empty: none of them."""
    if function.virtual or _is_known_bridge(function):
        return ""
    if function.vendor == NVIDIA_VENDOR and function.kind >> 16 == DISPLAY:
        return GPU
    if function.kind >> 16 == NETWORK or function.kind >> 8 == INFINIBAND_CLASS:
        return NIC
    return DISK if function.kind == NVME else ""


def _names(document: Document, name: str) -> Tuple[str, ...]:
    devices = [device for folder in ("infiniband", "nvme") for device in document.existing(f"{PCI}/{name}/{folder}")]
    links = {one: known(partial(document.link, f"{INTERFACES}/{one}")) for one in document.existing(INTERFACES)}
    return (*devices, *(one for one, path in links.items() if addresses(or_else(path, "") or "")[-1:] == (name,)))


def _code(document: Document, path: str) -> int:
    text = there(document.line(path), path)
    if not _CODE.match(text):
        raise UndecidedError(f"{path} says {text!r}")
    return int(text, 16)


class Part(Facts):
    """One device."""

    def __init__(self, function: Function, drivers: DriverFacts) -> None:
        super().__init__(function.document)
        self.address, self._kind, self._drivers = function.address, kind_of(function), drivers
        self._folder = f"{PCI}/{function.address}"

    #: empty while no driver runs it
    driver: str = follows(lambda self: (self.document.link(self._folder + "/driver") or "").rpartition("/")[2])

    @fact
    def model(self) -> str:
        """As its driver names it; of GPUs and disks only."""
        if self._kind == GPU:
            unknown = Unknown(f"NVIDIA's driver doesn't run the GPU {self.address}")
            return require(self._drivers.models.get(self.address, unknown) if self._drivers.gpus else unknown)
        if self._kind == DISK:
            names = self.document.names(self._folder + "/nvme")
            if not names:
                raise UndecidedError(f"no driver runs the disk {self.address}")
            return collected(self.document.line(f"/sys/class/nvme/{names[0]}/model"), f"{names[0]} names no model")
        raise UndecidedError("it has no model")

    @fact
    def link(self) -> float:
        """Gbit/s of its fastest active RDMA port, 0 while none is active; of network adapters only."""
        if self._kind != NIC:
            raise UndecidedError("it has no link to a network")
        devices = self.document.names(self._folder + "/infiniband")
        if not devices:
            raise UndecidedError(f"the adapter {self.address} has no RDMA device that names its rate")
        folders = [f"{INFINIBAND}/{device}/ports" for device in devices]
        ports = [f"{folder}/{port}" for folder in folders for port in self.document.existing(folder)]
        return max((_port_rate(self.document, port) for port in ports), default=0.0)


class HardwareFacts(Facts):
    """Physical functions only: no virtual functions of SR-IOV."""

    def __init__(self, document: Document, pci: PciFacts, driver: DriverFacts) -> None:
        super().__init__(document)
        self._pci, self._driver = pci, driver

    gpus: Tuple[Part, ...] = follows(
        lambda self: self._parts(lambda one: kind_of(one) == GPU and one.kind >> 8 in GPU_CLASSES)
    )
    #: a function for each port
    nics: Tuple[Part, ...] = follows(lambda self: self._parts(self._is_adapter))
    nvme: Tuple[Part, ...] = follows(lambda self: self._parts(lambda one: kind_of(one) == DISK))

    def _is_adapter(self, function: Function) -> bool:
        """Raises UndecidedError where it may lead to NVSwitches instead."""
        is_doubtful = hidden_switches(self._pci, self._driver) != ""
        return kind_of(function) == NIC and not (is_doubtful and function.is_switch_bridge)

    def _parts(self, chosen: Callable[[Function], bool]) -> Tuple[Part, ...]:
        functions = list(filter(chosen, self._pci.functions))
        physical = [self.document.link(f"{PCI}/{function.address}/physfn") for function in functions]
        return tuple(Part(one, self._driver) for one, parent in zip(functions, physical) if parent is None)


def hidden_switches(pci: PciFacts, driver: DriverFacts) -> str:
    """The model of several GPUs that NVSwitches may connect which are no PCI functions; empty: there are none."""
    models = [or_else(driver.models.get(gpu.address, UNNAMED), UNNAMED) for gpu in pci.gpus]
    others = [model for model in models if not re.search(OTHER_FABRICS, model)]
    return others[0] if len(others) > 1 else ""


def _port_rate(document: Document, folder: str) -> float:
    """Of ``400 Gb/sec (4X NDR)``; a port without a link shows a rate, too."""
    if "ACTIVE" not in there(document.line(folder + "/state"), folder + "/state"):
        return 0.0
    rate = document.line(folder + "/rate")
    match = re.match(r"(\d{1,6}(?:\.\d)?) Gb/sec", rate or "")
    return float(group_of(match, f"{folder}/rate says {rate!r}"))


#: Of the kernel's messages: a device that doesn't answer on the PCIe bus any more.
FALLEN = re.compile(r"fallen off the bus|GPU is lost", re.IGNORECASE)
#: Devices that a finding names; the rest is counted.
NAMED = 16
UNKNOWN_HINT = "Check that the driver runs all of them, then validate again"
MISSING_HINT = (
    "Look for the missing device with lspci, journalctl -k and the BMC's inventory. If it was never there, correct"
    " {} in the fleet file"
)
#: For one that the kernel has lost.
FALLEN_HINT = (
    "Read the host's event log (BMC, PCIe errors); then drain the host, power it off and on. If the device is still"
    " missing, have its slot and card checked"
)


def _counted(facts: HostFacts, expectation: Expectation, key: str, noun: str) -> Answer:
    devices = expectation.hardware.get(key)
    if devices is None:
        return not_applicable(f"the profile has no key {key}")
    count = int(devices["count"])
    expected = _amount(count, noun) + "".join(f", {name} {devices[name]}" for name in devices if name != "count")
    parts: Tuple[Part, ...] = getattr(facts.hardware, key)
    answers = [(part, known(partial(_counts, part, devices))) for part in parts]
    sure = [part.address for part, answer in answers if answer is True]
    open_ones = [(part.address, answer) for part, answer in answers if isinstance(answer, Unknown)]
    others = [f"{part.address} ({_words(part)})" for part, answer in answers if answer is False]
    lines = [f"/sys/bus/pci/devices/{part.address}: {_words(part)}" for part, _ in answers]
    most = len(sure) + len(open_ones)
    if len(sure) <= count <= most:
        if open_ones:
            reason = f"{_amount(most, noun)} may count; {open_ones[0][1].reason}"
            return unknown(reason, UNKNOWN_HINT, expected=expected)
        return passed(_amount(count, noun) + _named(sure), lines, expected=expected)
    place = f"profiles.{expectation.profile}.{key}"
    present = sure + [address for address, _ in open_ones]
    rest = f"; not counted: {first_few(others, NAMED)}" if others else ""
    if most < count:
        fallen = [line for line in facts.kernel.log.lines if FALLEN.search(line)] if key == "gpus" else []
        words = f"expected {count}, found {most}: {count - most} missing; present{_named(present) or ': none'}{rest}"
        words += f"; the kernel says: {fallen[0].strip()}" if fallen else ""
        hint = FALLEN_HINT if fallen else MISSING_HINT.format(place)
        return failed(words, hint, [*fallen, *lines], expected=expected)
    words = f"expected {count}, found {len(sure)}{_named(sure)}{rest}"
    hint = f"Correct {place} in the fleet file, or give this host a profile of its own"
    return failed(words, hint, lines, expected=expected)


for _ident, _key, _noun, _prevents in (
    ("gpu", "gpus", "GPU", "a job that waits for, or silently does without, a GPU that died or was taken out"),
    (
        "nic", "nics", "network adapter",
        "storage traffic through fewer adapters after one died, lost its driver or came up at a lower rate",
    ),
    ("nvme", "nvme", "NVMe disk", "a scratch filesystem on fewer disks after one died or was taken out"),
):  # fmt: skip
    check(
        _ident + ".present",
        f"the host has as many {_noun}s as the fleet file says",
        expects=f"{_key} of the profile",
        prevents=_prevents,
        unknown_hint=UNKNOWN_HINT,
    )(partial(_counted, key=_key, noun=_noun))


def _amount(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _named(addresses: Sequence[str]) -> str:
    return f": {first_few(addresses, NAMED)}" if addresses else ""


def _counts(part: Part, devices: Mapping[str, Any]) -> bool:
    """Whether a device is one of those that the fleet file counts; raises UndecidedError."""
    differs: Dict[str, Callable[[], bool]] = {
        "model": lambda: devices["model"].lower() not in part.model.lower(),
        "driver": lambda: part.driver != devices["driver"],
        "link": lambda: part.link != devices["link"],
    }
    # One that differs decides, whatever the others are.
    return not any_of(known(differs[key]) for key in differs if key in devices)


def _words(part: Part) -> str:
    model, driver = if_known(lambda: part.model, ""), if_known(lambda: part.driver, None)
    link = if_known(lambda: part.link, None)
    words = [model] if model else []
    words += [f"driver {driver}" if driver else "no driver"] if driver is not None else []
    words += [f"{link:g} Gbit/s" if link else "no active port"] if link is not None else []
    return ", ".join(words)
