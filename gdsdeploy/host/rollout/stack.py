"""What belongs to NVIDIA's modules while they run: devices, services, and the order in which it all stops."""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Tuple

from .. import process
from ..rootdir import list_folder, read_text
from . import gpu

PEERMEM_UNIT = "gds-peermem.service"
_TIMEOUT = 180.0


class Stack(NamedTuple):
    """Modules that are exchanged together."""

    #: as the kernel calls them, in the order in which they can be unloaded
    modules: Tuple[str, ...]
    #: beginnings of the names of their device files
    devices: Tuple[str, ...]
    #: units that hold them and can be stopped and started again, in the order in which they stop
    services: Tuple[str, ...]


NVIDIA = Stack(
    gpu.ORDER,
    gpu.DEVICES,
    (
        PEERMEM_UNIT,
        "nvidia-dcgm.service",
        "nvidia-imex.service",
        "nvidia-fabricmanager.service",
        "nvidia-powerd.service",
        "nvidia-persistenced.service",
    ),
)


class Use(NamedTuple):
    """What keeps modules in use."""

    #: sentences about what nobody may end
    foreign: List[str]
    #: units that run now, in the order in which they stop
    services: List[str]


def use(stack: Stack, root: str = "/") -> Use:
    """Who uses the modules: services that can be stopped, and everybody else."""
    running = [unit for unit in stack.services if active(unit)]
    foreign = []
    for item in gpu.open_files(root, stack.devices):
        unit = unit_of(item["pid"], root)
        if unit not in running:
            words = "{} (process {}{}) has {} open"
            place = f", of {unit}" if unit else ""
            foreign.append(words.format(item["program"] or "a program", item["pid"], place, ", ".join(item["files"])))
    return Use(foreign + _references(stack, bool(running), root) + _instances(root), running)


def active(unit: str) -> bool:
    return process.run(["systemctl", "--quiet", "is-active", unit], _TIMEOUT).status == 0


def unit_of(pid: int, root: str = "/") -> str:
    """The service that a process belongs to; empty where it is of none."""
    found = re.findall(r"/([^/\n]+\.service)(?=/|$)", read_text(root, f"/proc/{pid}/cgroup"), re.MULTILINE)
    return found[-1] if found else ""


def stop(unit: str) -> str:
    """Why it could not be stopped; empty when it was."""
    return _systemctl("stop", unit)


def start(unit: str) -> str:
    """Why it could not be started; empty when it was."""
    return _systemctl("start", unit)


def _systemctl(verb: str, unit: str) -> str:
    done = process.run(["systemctl", verb, unit], _TIMEOUT)
    return "" if done.status == 0 else "systemctl {} {}: {}".format(verb, unit, done.stderr.strip().partition("\n")[0])


def _references(stack: Stack, services: bool, root: str) -> List[str]:
    """Users of the modules beside each other.  While services run, what they hold cannot be told from others' use."""
    said = []
    for item in gpu.modules(root, stack.modules):
        others = [name for name in item["users"] if name not in stack.modules]
        if others:
            said.append("{} is used by {}".format(item["name"], ", ".join(others)))
        elif item["references"] > len(item["users"]) and not services:
            words = "{} has {} references that belong to no module"
            said.append(words.format(item["name"], item["references"] - len(item["users"])))
    return said


def _instances(root: str) -> List[str]:
    """GPUs that are divided: their instances go with the module, and nobody makes them again."""
    base = "/proc/driver/nvidia/capabilities"
    found: Dict[str, List[str]] = {}
    for card in list_folder(root, base):
        names = [name for name in list_folder(root, f"{base}/{card}/mig") if name.startswith("gi")]
        if names:
            found[card] = names
    return [f"{card} has MIG instances, which an exchange would delete" for card in sorted(found)]


def build_id(name: str, root: str = "/") -> str:
    """Of a loaded module; empty where it has none."""
    try:
        with open(os.path.join(root, "sys/module", name, "notes/.note.gnu.build-id"), "rb") as file:
            return file.read().hex()
    except OSError:
        return ""
