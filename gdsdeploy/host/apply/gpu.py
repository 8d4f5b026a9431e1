"""Who uses the GPUs or nvidia-fs now: open device files, references to modules, mounts with direct I/O."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, List, Sequence

from ..io.mounts import Mounts
from ..paths import MOUNTINFO
from ..rootdir import inside, list_folder, read_text
from .packages.state import program

#: Device files of the driver and of nvidia-fs begin like this.
DEVICES = ("/dev/nvidia",)
#: All modules of the stack by what the kernel calls them, in the order in which they can be unloaded.
ORDER = ("nvidia_peermem", "nv_peer_mem", "nvidia_fs", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia")

#: What it calls drivers of disks.
_DISKS = ("nvme", "sd")


def users(root: str = "/") -> Dict[str, Any]:
    """``{"open": [...], "modules": [...], "mounts": [...]}`` as the package's docstring has it."""
    return {"open": open_files(root), "modules": modules(root), "mounts": mounts(root)}


def open_files(root: str = "/", devices: Sequence[str] = DEVICES) -> List[Dict[str, Any]]:
    """Processes with an open or mapped device file: ``[{"pid", "program", "files"}]``; all of them only as root."""
    pids = sorted(int(name) for name in list_folder(root, "/proc") if name.isdigit())
    opened = {pid: sorted({p for p in _open_paths(root, pid) if p.startswith(tuple(devices))}) for pid in pids}
    return [{"pid": pid, "program": program(pid, root), "files": files} for pid, files in opened.items() if files]


def _open_paths(root: str, pid: int) -> List[str]:
    paths = []
    folder = f"/proc/{pid}/fd"
    place = inside(root, folder)
    for name in list_folder(root, folder):
        # It may have ended, or closed the file, meanwhile.
        with contextlib.suppress(OSError):
            paths.append(os.readlink(os.path.join(place, name)))
    # A mapping outlives its descriptor, and holds the device as well.
    mapped = (line.partition(" /")[2] for line in read_text(root, f"/proc/{pid}/maps").splitlines())
    paths += ["/" + path for path in mapped if path]
    return [path[: -len(" (deleted)")] if path.endswith(" (deleted)") else path for path in paths]


def modules(root: str = "/", names: Sequence[str] = ORDER) -> List[Dict[str, Any]]:
    """Loaded modules of the stack, as they can be unloaded: ``[{"name", "references", "users": [module]}]``.

    references counts users that are modules, too.
    """
    table = {words[0]: words for words in map(str.split, read_text(root, "/proc/modules").splitlines()) if words}
    return [
        {
            "name": name,
            "references": int(table[name][2]),
            "users": [user for user in table[name][3].split(",") if user not in ("", "-", "[permanent]")],
        }
        for name in names
        if name in table
    ]


def mounts(root: str = "/") -> List[Dict[str, str]]:
    """Mounts whose driver nvidia-fs is registered with now, as ``/proc/driver/nvidia-fs/modules`` lists them.

    It registers when its device is opened and leaves when that is closed, so each is a path that may be in use.
    """
    # A lab reads this module's names, and none of the hosts' pages.
    from ..subjects.filesystem import NETWORK

    #: filesystem → what nvidia-fs calls the driver that serves it and registers with it
    drivers = {**NETWORK, "wekafs": "wekafsio"}
    lines = read_text(root, "/proc/driver/nvidia-fs/modules").splitlines()
    registered = {line.split()[0].rstrip(":") for line in lines if line.strip()}
    rows = []
    for row in Mounts(read_text(root, MOUNTINFO)).by_id.values():
        kind, source = row.filesystem, row.source
        rows += [
            {"module": name, "target": row.point, "source": source, "fstype": kind}
            for name in sorted(registered)
            if name == drivers.get(kind) or (name in _DISKS and source.startswith("/dev/" + name))
        ]
    return rows
