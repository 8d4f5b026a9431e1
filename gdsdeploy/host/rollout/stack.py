"""What belongs to NVIDIA's modules while they run: devices, services, and the order in which it all stops."""

from __future__ import annotations

import os
import re
from typing import List, NamedTuple, Tuple

from .. import process
from ..apply import gpu
from ..kmod.module import build_id_of
from ..rootdir import list_folder, read_text

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

    #: sentences about users that gdsdeploy may not end
    foreign: List[str]
    #: units that run now, in the order in which they stop
    services: List[str]


def use(stack: Stack, root: str = "/") -> Use:
    """Who uses the modules: services that can be stopped, and all others."""
    running = [unit for unit in stack.services if is_active(unit)]
    foreign = []
    for user in gpu.open_files(root, stack.devices):
        unit = unit_of(user["pid"], root)
        if unit not in running:
            process_id = f"process {user['pid']}{f', of {unit}' if unit else ''}"
            foreign.append(f"{user['program'] or 'a program'} ({process_id}) has {', '.join(user['files'])} open")
    return Use(foreign + _references(stack, bool(running), root) + _instances(root), running)


def is_active(unit: str) -> bool:
    return process.run(["systemctl", "--quiet", "is-active", unit], _TIMEOUT).status == 0


def unit_of(pid: int, root: str = "/") -> str:
    """The service that a process belongs to; empty where it is of none."""
    units = re.findall(r"/([^/\n]+\.service)(?=/|$)", read_text(root, f"/proc/{pid}/cgroup"), re.MULTILINE)
    return units[-1] if units else ""


def systemctl(verb: str, unit: str) -> str:
    """Stop or start a unit; returns why that failed, empty otherwise."""
    output = process.run(["systemctl", verb, unit], _TIMEOUT)
    first_line = output.stderr.strip().partition("\n")[0]
    return "" if output.status == 0 else f"systemctl {verb} {unit}: {first_line}"


def _references(stack: Stack, services: bool, root: str) -> List[str]:
    """Other users of the modules.  While services run, their references cannot be told from other programs'."""
    reasons = []
    for module in gpu.modules(root, stack.modules):
        others = [name for name in module["users"] if name not in stack.modules]
        rest = module["references"] - len(module["users"])
        if others:
            reasons.append(f"{module['name']} is used by {', '.join(others)}")
        elif rest > 0 and not services:
            reasons.append(f"{module['name']} has {rest} references that belong to no module")
    return reasons


def _instances(root: str) -> List[str]:
    """GPUs that are divided: unloading the module deletes their instances."""
    base = "/proc/driver/nvidia/capabilities"
    return [
        f"{card} has MIG instances, which an exchange would delete"
        for card in list_folder(root, base)
        if any(name.startswith("gi") for name in list_folder(root, f"{base}/{card}/mig"))
    ]


def build_id(name: str, root: str = "/") -> str:
    """Of a loaded module; empty where it has none."""
    try:
        with open(os.path.join(root, "sys/module", name, "notes/.note.gnu.build-id"), "rb") as file:
            return build_id_of(file.read().hex())
    except OSError:
        return ""
