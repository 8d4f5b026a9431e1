"""The driver's libraries, firmware, services and options, all with the version of its module."""

from __future__ import annotations

import re
import shlex
from typing import Dict, Iterator, Mapping, Tuple

from ..facts import HostFacts, require
from ..facts.pci import NVIDIA_VENDOR
from ..model.companions import FABRIC, NVSWITCH, services_of
from ..model.expectation import Expectation
from ..paths import IMEX_NODES
from .registry import Answer, check, failed, not_applicable, passed


@check(
    "driver.userland",
    "the driver's libraries that programs load have the loaded module's version",
    expects="libcuda and libnvidia-ml of driver {driver_version}",
    prevents="'API mismatch' and 'Driver/library version mismatch' after half of a driver was upgraded",
)
def userland(facts: HostFacts, expectation: Expectation) -> Answer:
    version = require(facts.driver.version) or expectation.driver_version
    libraries = {name: require(library) for name, library in facts.userland.libraries.items()}
    paths = ["{}: {}".format(name, library.path if library else "none") for name, library in libraries.items()]
    missing = [name for name, library in libraries.items() if library is None]
    if missing:
        hint = "Provision the host again: the driver's libraries are in the lock"
        return failed("the loader finds no {}".format(" and no ".join(missing)), hint, paths)
    wrong = [
        f"{name} {library.version}" for name, library in libraries.items() if library and library.version != version
    ]
    if wrong:
        hint = "Provision the host again; to find another copy in front of it: ldconfig -p | grep libcuda"
        return failed("{} under driver {}".format(", ".join(wrong), version), hint, paths)
    return passed(f"both are {version}", paths)


@check(
    "driver.firmware",
    "the GPU firmware that the driver loads is installed in the driver's version",
    expects="gsp_*.bin for driver {driver_version}",
    prevents="open modules that find no firmware after an upgrade, and GPUs that do not come up",
)
def firmware(facts: HostFacts, expectation: Expectation) -> Answer:
    by_version = require(facts.userland.firmware)
    version = require(facts.driver.version) or expectation.driver_version
    if by_version.get(version):
        return passed("{}: {}".format(version, ", ".join(by_version[version])))
    if expectation.driver_flavour != "open":
        return not_applicable(f"none for {version}; the proprietary modules don't need it on many GPUs")
    others = ", ".join(sorted(other for other, files in by_version.items() if files)) or "none"
    hint = "Install the firmware package of this driver: provision the host again"
    return failed(f"none for driver {version}; there is firmware for: {others}", hint)


@check(
    "driver.services",
    "the driver's services that the lock has or the hardware needs are running",
    expects="all of them active, IMEX with the addresses of the host's domain",
    prevents="GPUs behind NVSwitch that no program can use because the fabric manager is missing or failed",
)
def services(facts: HostFacts, expectation: Expectation) -> Answer:
    if not require(facts.pci.gpus):
        return not_applicable("not needed: this host has no GPU")
    services = services_of(expectation.packages)
    switches = [
        function.address
        for function in require(facts.pci.functions)
        if (function.vendor, function.kind) == (NVIDIA_VENDOR, NVSWITCH)
    ]
    if switches and FABRIC not in services:
        hint = "Add fabricmanager to the profile's companions, then lock and provision"
        return failed(f"this host has {len(switches)} NVSwitches, and the lock holds no fabric manager", hint, switches)
    if not services:
        return not_applicable("the lock holds none, and there is no NVSwitch")
    units = require(facts.boot.units)
    states = {unit: units.get(unit, {}).get("ActiveState", "not known to systemd") for unit in services}
    down = [unit for unit, state in states.items() if state != "active"]
    if down:
        lines = [f"{unit}: {state}" for unit, state in states.items()]
        return failed("; ".join(lines), "Read why: systemctl status {0}; journalctl -b -u {0}".format(down[0]), lines)
    nodes = require(facts.boot.imex_nodes) if expectation.imex_nodes else ()
    if sorted(nodes) != sorted(expectation.imex_nodes):
        words = f"{IMEX_NODES} has {', '.join(nodes) or 'no addresses'}, not {', '.join(expectation.imex_nodes)}"
        return failed(words, "Provision the hosts of this IMEX domain again", nodes)
    return passed(", ".join(services) + " active")


@check(
    "driver.parameters",
    "the options that modprobe.d sets for the nvidia module are in effect",
    expects="every option of modprobe.d and of the kernel's command line, as /proc/driver/nvidia/params shows it",
    prevents="an option that was edited later, or set for a module of another name, and has no effect",
    of_running=True,
)
def parameters(facts: HostFacts, _expectation: Expectation) -> Answer:
    options = _options(require(facts.boot.options), require(facts.kernel.command_line))
    if not options:
        return not_applicable("no option is set")
    params = require(facts.driver.params)
    if params is None:
        return failed("the nvidia module is not loaded", "See the check driver.loaded-version")
    wrong = [
        f"{name} is {params[name] or 'empty'}, not {value} as in {place}"
        if name in params
        else f"{name}={value} ({place}): the loaded driver has no such option"
        for name, (value, place) in sorted(options.items())
        if name not in params or not _is_equal(value, params[name])
    ]
    if wrong:
        hint = "Reload the module or reboot; an option for a module of another name (modinfo nvidia) has no effect"
        return failed("; ".join(wrong), hint, wrong)
    return passed("{} as set".format(", ".join(sorted(options))))


def _options(
    lines: Mapping[str, Tuple[Tuple[str, str], ...]], command_line: Tuple[str, ...]
) -> Dict[str, Tuple[str, str]]:
    """Option without NVreg_ → (value, where it is set); the last one wins, as for modprobe."""
    # Debian's driver has these names too, and its options belong to the name of the file.
    modules = sorted(name for name in lines if re.fullmatch(r"nvidia(_current)?(_open)?(_tesla)?(_\d+)?", name))
    words = [word.partition(".")[2] for word in command_line if word.startswith("nvidia.")]
    texts = [*(row for module in modules for row in lines[module]), (" ".join(words), "the kernel's command line")]
    return {name: (value, place) for text, place in texts for name, value in _pairs(text)}


def _pairs(text: str) -> Iterator[Tuple[str, str]]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    for word in words:
        name, separator, value = word.partition("=")
        if separator and name.startswith("NVreg_"):
            yield name[len("NVreg_") :], value


def _is_equal(value: str, shown: str) -> bool:
    """The driver shows all numbers as unsigned 32 bits."""
    try:
        return int(value, 0) & 0xFFFFFFFF == int(shown, 0) & 0xFFFFFFFF
    except ValueError:
        return value.strip('"') == shown
