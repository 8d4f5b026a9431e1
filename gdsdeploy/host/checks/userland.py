"""The driver's other halves: libraries, firmware, services and options, all of one version with its module."""

from __future__ import annotations

import re
import shlex
from typing import Dict, Iterator, List, Mapping, Tuple

from ..facts import HostFacts, known
from ..facts.pci import NVIDIA_VENDOR
from ..model.expectation import Expectation
from .registry import Answer, check, failed, passed

#: Class code of NVSwitch: bridge, other.
NVSWITCH = 0x068000
#: What a package of the lock is called → the service that it is for; both repositories' names.
SERVICES = (
    (re.compile(r"nvidia-persistenced"), "nvidia-persistenced.service"),
    (re.compile(r"nvidia-fabric-?manager(-\d+)?"), "nvidia-fabricmanager.service"),
    (re.compile(r"nvidia-imex(-\d+)?"), "nvidia-imex.service"),
)
FABRIC = "nvidia-fabricmanager.service"


@check(
    "driver.userland",
    "the driver's libraries that programs get are of the loaded module's version",
    expects="libcuda and libnvidia-ml of driver {driver_version}",
    prevents="'API mismatch' and 'Driver/library version mismatch' after half of a driver was upgraded",
)
def userland(facts: HostFacts, expectation: Expectation) -> Answer:
    version = known(facts.driver.version) or expectation.driver_version
    found = {name: known(library) for name, library in facts.userland.libraries.items()}
    shown = ["{}: {}".format(name, item.path if item else "none") for name, item in found.items()]
    missing = [name for name, item in found.items() if item is None]
    if missing:
        hint = "Provision the host again: the driver's libraries are in the lock"
        return failed("the loader finds no {}".format(" and no ".join(missing)), hint, shown)
    wrong = [f"{name} {item.version}" for name, item in found.items() if item and item.version != version]
    if wrong:
        hint = "Provision the host again; another copy in front of it is named by: ldconfig -p | grep libcuda"
        return failed("{} under driver {}".format(", ".join(wrong), version), hint, shown)
    return passed(f"both are {version}", shown)


@check(
    "driver.firmware",
    "the GPU firmware that the driver loads is there in the driver's version",
    expects="gsp_*.bin for driver {driver_version}",
    prevents="open modules that find no firmware after an upgrade, and GPUs that do not come up",
)
def firmware(facts: HostFacts, expectation: Expectation) -> Answer:
    found = known(facts.userland.firmware)
    wanted = known(facts.driver.version) or expectation.driver_version
    if found.get(wanted):
        return passed("{}: {}".format(wanted, ", ".join(found[wanted])))
    there = ", ".join(sorted(version for version, files in found.items() if files)) or "none"
    if expectation.driver_flavour != "open":
        return passed(f"none for {wanted}; the proprietary modules do without on many GPUs")
    hint = "Install the firmware package of this driver: provision the host again"
    return failed(f"none for driver {wanted}; there is firmware for: {there}", hint)


@check(
    "driver.services",
    "the driver's services that the lock holds or the hardware needs are running",
    expects="every one of them active",
    prevents="GPUs behind NVSwitch that no program can use because the fabric manager is missing or failed",
)
def services(facts: HostFacts, expectation: Expectation) -> Answer:
    if not known(facts.pci.gpus):
        return passed("not needed: this host has no GPU")
    wanted = [unit for pattern, unit in SERVICES if any(pattern.fullmatch(package) for package in expectation.packages)]
    switches = [item for item in known(facts.pci.functions) if (item.vendor, item.kind) == (NVIDIA_VENDOR, NVSWITCH)]
    if switches and FABRIC not in wanted:
        hint = "Add fabricmanager to the profile's companions, then lock and provision"
        found = f"this host has {len(switches)} NVSwitches, and the lock holds no fabric manager"
        return failed(found, hint, [item.address for item in switches])
    if not wanted:
        return passed("the lock holds none, and there is no NVSwitch")
    units = known(facts.boot.units)
    down = [unit for unit in wanted if units.get(unit, {}).get("ActiveState") != "active"]
    states = ["{}: {}".format(unit, units.get(unit, {}).get("ActiveState", "not known to systemd")) for unit in wanted]
    if down:
        return failed("; ".join(states), "Read why: systemctl status {0}; journalctl -b -u {0}".format(down[0]), states)
    return passed(", ".join(wanted) + " active")


@check(
    "driver.parameters",
    "the options that modprobe.d gives to the nvidia module are in effect",
    expects="every option of modprobe.d and of the kernel's command line, as /proc/driver/nvidia/params shows it",
    prevents="an option that was edited, or spelled for a module of another name, and does nothing until noticed",
    of_running=True,
)
def parameters(facts: HostFacts, _expectation: Expectation) -> Answer:
    wanted = _options(known(facts.boot.options), known(facts.kernel.command_line))
    if not wanted:
        return passed("no option is set")
    params = known(facts.driver.params)
    if params is None:
        return failed("the nvidia module is not loaded", "See the check driver.loaded-version")
    wrong: List[str] = []
    for name, (value, place) in sorted(wanted.items()):
        if name not in params:
            wrong.append(f"{name}={value} ({place}): the loaded driver has no such option")
        elif not _equal(value, params[name]):
            wrong.append("{} is {}, not {} as {} says".format(name, params[name] or "empty", value, place))
    if wrong:
        hint = "Reload the module or reboot; an option for a module of another name (modinfo nvidia) has no effect"
        return failed("; ".join(wrong), hint, wrong)
    return passed("{} as set".format(", ".join(sorted(wanted))))


def _options(
    lines: Mapping[str, Tuple[Tuple[str, str], ...]], command_line: Tuple[str, ...]
) -> Dict[str, Tuple[str, str]]:
    """Option without NVreg_ → (value, where it is set); the last one wins, as modprobe has it."""
    found: Dict[str, Tuple[str, str]] = {}
    # Debian's driver is loaded under these names too, and its options go to the name of the file.
    for module in sorted(name for name in lines if re.fullmatch(r"nvidia(_current)?(_open)?(_tesla)?(_\d+)?", name)):
        for text, place in lines[module]:
            found.update((name, (value, place)) for name, value in _pairs(text))
    words = [word.partition(".")[2] for word in command_line if word.startswith("nvidia.")]
    found.update((name, (value, "the kernel's command line")) for name, value in _pairs(" ".join(words)))
    return found


def _pairs(text: str) -> Iterator[Tuple[str, str]]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    for word in words:
        name, separator, value = word.partition("=")
        if separator and name.startswith("NVreg_"):
            yield name[len("NVreg_") :], value


def _equal(wanted: str, shown: str) -> bool:
    """Numbers are shown as unsigned 32 bits, whatever they were written as."""
    try:
        return int(wanted, 0) & 0xFFFFFFFF == int(shown, 0) & 0xFFFFFFFF
    except ValueError:
        return wanted.strip('"') == shown
