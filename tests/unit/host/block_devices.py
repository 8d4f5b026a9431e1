"""Mounts and block devices for the evidence of composed hosts, in the words of sysfs and /proc (Linux 6.12).

block/genhd.c, block/blk-sysfs.c, drivers/md/md.c and dm-sysfs.c, drivers/nvme/host/sysfs.c, fs/proc_namespace.c.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gdsdeploy.host.subjects.storage import FILES

ABSENT = {"error": "ENOENT"}
#: Name → major number, as the kernel has it or hands it out.
MAJORS = {
    "nvme": 259, "sd": 8, "vd": 252, "md": 9, "dm-": 253, "loop": 7, "bcache": 251, "drbd": 147, "rbd": 250,
    "zram": 245,
}  # fmt: skip
#: Words of a device and of a mount: tests/cases/README.md describes them.
DEVICE = {
    "over", "of", "transport", "subsystem", "level", "name", "uuid", "table", "block", "requests", "flag", "format",
}  # fmt: skip
MOUNT = {"is", "from", "device", "options", "under", "journal", "features", "flags", "id", "root"}
#: EXT4_EXTENTS_FL, which every plain folder has.
PLAIN = 0x80000


def with_storage(document: Mapping[str, Any], storage: Mapping[str, Any]) -> dict[str, Any]:
    """``document`` with these block devices, by name, and mounts, by mount point; ``dmsetup`` follows from both."""
    changed = copy.deepcopy(dict(document))
    for section in ("files", "links", "listings", "inodes", "features", "commands"):
        changed.setdefault(section, {})
    devices, mounts = storage.get("devices", {}), storage.get("mounts", {})
    for name, words in devices.items():
        if set(words or {}) - DEVICE:
            raise ValueError(f"{name}: a device has of {sorted(DEVICE)}, not {sorted(words)}")
        for section, key, value in _device(name, words or {}):
            changed[section][key] = value
    tables = [f"{words['name']}: {line}\n" for words in devices.values() for line in (words or {}).get("table", [])]
    if tables:
        record = {"argv": ["dmsetup", "table"], "status": 0, "stdout": "".join(tables), "stderr": "", "seconds": 0.01}
        changed["commands"]["dmsetup-table"] = record
        changed["listings"]["/sys/block"] = sorted(devices)
    for point, words in mounts.items():
        if set(words) - MOUNT or not {"is", "from"} <= set(words):
            raise ValueError(f"{point}: a mount has is and from, and of {sorted(MOUNT)}: not {sorted(words)}")
        _mount(changed, point, words)
    return changed


def number(name: str) -> str:
    """major:minor of a device or a partition."""
    prefix = next(prefix for prefix in MAJORS if name.startswith(prefix))
    digits = re.findall(r"\d+", name)
    minor = sum(int(part) * 16**place for place, part in enumerate(reversed(digits))) if digits else ord(name[2]) - 97
    return f"{MAJORS[prefix]}:{minor}"


def _device(name: str, words: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    link = f"/sys/dev/block/{number(name)}"
    folder = _folder(name, words)
    yield "links", link, "../../" + folder.removeprefix("/sys/")
    files: dict[str, str] = {"dm/name": words.get("name", ""), "dm/uuid": words.get("uuid", "")}
    files |= {"md/level": words.get("level", ""), "queue/logical_block_size": str(words.get("block", 512))}
    files |= {"queue/nr_requests": str(words.get("requests", 1023))}
    files |= {"integrity/format": words.get("format", "none")}
    files |= {"integrity/device_is_integrity_capable": str(words.get("flag", int("format" in words)))}
    is_part = "of" in words
    for file in FILES:
        value = ("1" if file == "partition" else "") if is_part else files.get(file, "")
        yield "files", f"{link}/{file}", f"{value}\n" if value else ABSENT
    yield "files", f"/run/udev/data/b{number(name)}", "E:ID_FS_USAGE=filesystem\n"
    yield "files", f"{folder.rpartition('/')[0]}/dev" if is_part else f"{folder}/dev", _dev(words.get("of", name))
    yield "files", f"/sys/class/block/{name}/dev", _dev(name)
    yield "listings", f"{link}/slaves", words.get("over", [])
    for slave in words.get("over", []):
        yield "files", f"{link}/slaves/{slave}/dev", _dev(slave)
    if "transport" in words or (name.startswith("nvme") and not is_part):
        controller = f"/sys/class/nvme/nvme{re.findall(r'[0-9]+', name)[0]}"
        yield "files", f"{controller}/transport", words.get("transport", "pcie") + "\n"


def _dev(name: str) -> str:
    return number(name) + "\n"


def _folder(name: str, words: Mapping[str, Any]) -> str:
    if "of" in words:
        return f"{_folder(words['of'], {})}/{name}"
    if name.startswith("nvme"):
        controller = "nvme" + re.findall(r"[0-9]+", name)[0]
        if words.get("subsystem"):
            return f"/sys/devices/virtual/nvme-subsystem/{words['subsystem']}/{name}"
        if words.get("transport", "pcie") != "pcie":
            return f"/sys/devices/virtual/nvme-fabrics/ctl/{controller}/{name}"
        return f"/sys/devices/pci0000:00/0000:00:03.0/nvme/{controller}/{name}"
    if name.startswith("sd"):
        return f"/sys/devices/pci0000:00/0000:00:05.0/ata1/host0/target0:0:0/0:0:0:0/block/{name}"
    if name.startswith("vd"):
        return f"/sys/devices/pci0000:00/0000:00:04.0/virtio1/block/{name}"
    return f"/sys/devices/virtual/block/{name}"


def _mount(document: dict[str, Any], point: str, words: Mapping[str, Any]) -> None:
    files, text = document["files"], document["files"]["/proc/self/mountinfo"]
    rows = [line.split() for line in text.splitlines()]
    ids = {row[4]: row[0] for row in rows}
    ident = str(words.get("id", max(int(row[0]) for row in rows) + 1))
    kind, on = words["is"], words["from"]
    name = words.get("device", on.removeprefix("/dev/") if on.startswith("/dev/") else "")
    place = number(name) if name else f"0:{40 + int(ident)}"
    own, _, of_filesystem = words.get("options", "rw,noatime rw").partition(" ")
    source, target = (part.replace(" ", "\\040") for part in (on, point))
    line = f"{ident} {ids[words.get('under', '/')]} {place} {words.get('root', '/')} {target} {own} shared:{ident}"
    line += f" - {kind} {source} {of_filesystem or 'rw'}"
    files["/proc/self/mountinfo"] = text + line + "\n"
    if name:
        document["inodes"][point] = words.get("flags", PLAIN if kind == "ext4" else 0)
    if kind == "ext4" and name:
        journal = words.get("journal", "data=ordered")
        files[f"/proc/fs/ext4/{name}/options"] = f"rw\ndelalloc\n{journal}\n" if journal else "rw\ndelalloc\n"
        document["features"][name] = {"compat": 0, "incompat": words.get("features", 0), "ro_compat": 0}
    elif name:
        files.setdefault(f"/proc/fs/ext4/{name}/options", dict(ABSENT))
