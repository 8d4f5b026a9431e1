"""What the collector records today and did not when the recordings in tests/evidence were made.

The values are those of the machines that were recorded: no container, no variables of libcufile, plain folders.
"""

from __future__ import annotations

import re
from typing import Any

from gdsdeploy.host.paths import (
    APT_PARTS,
    APT_PREFERENCES,
    APT_SOURCES,
    CONTAINER_FILES,
    CUFILE,
    DKMS,
    DKMS_FRAGMENTS,
    DKMS_SETTINGS,
    HOLDERS,
    HOLDS_RECORD,
    LEGACY_SERVICE,
    LOADER_UNITS,
    MODULE_LOADER,
    OWN_NAME,
    OWN_PARENTS,
    PREFERENCE_PARTS,
    PROCESSES,
    RUNFILE_PROGRAM,
    SERVICE_FOLDERS,
)
from gdsdeploy.host.subjects.storage import FLAGS

#: FS_EXTENT_FL, which ext4 sets on nearly every inode.
PLAIN = 0x80000
assert not any(PLAIN & bit for bit in FLAGS.values())
ABSENT = {"error": "ENOENT"}


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` with the pieces added in place; what was recorded stays as it is."""
    files, excerpts, listings = document["files"], document["excerpts"], document["listings"]
    for path in CONTAINER_FILES:
        files.setdefault(path, dict(ABSENT))
    excerpts.setdefault("/proc/1/cgroup", {"pattern": "", "lines": []})
    for path in ("/etc/environment", "/etc/profile", "/etc/security/pam_env.conf", "/etc/systemd/system.conf"):
        excerpts.setdefault(path, {"pattern": "", "lines": []})
    excerpts.setdefault("/proc/cpuinfo", {"pattern": "", "lines": CPU})
    for path in ("/etc/profile.d", "/etc/environment.d", "/etc/systemd/system.conf.d"):
        listings.setdefault(path, [])
    for parent in OWN_PARENTS:
        listings.setdefault(
            f"{parent}/{OWN_NAME}", [OWN_NAME] if isinstance(files.get("/etc/cufile.json"), str) else []
        )
    document.setdefault("environment", {})
    document.setdefault("load", {})
    document.setdefault("configs", {})
    document.setdefault("processes", {PROCESSES: {"programs": [], "unread": 0, "more": False}})
    with_ended_programs(document)
    for path in (*HOLDERS, *(f"{folder}/{LEGACY_SERVICE}" for folder in SERVICE_FOLDERS)):
        listings.setdefault(path, [])
    files.setdefault(DKMS_SETTINGS, dict(ABSENT))
    listings.setdefault(DKMS_FRAGMENTS + "/*.conf", dict(ABSENT))
    listings.setdefault("/sys/devices/system/node/node*", ["node0"])
    listings.setdefault("/run/udev", ["control", "data", "queue", "tags"])
    listings.setdefault("/dev/infiniband", dict(ABSENT))
    points = [line.split() for line in files["/proc/self/mountinfo"].splitlines()]
    document.setdefault("inodes", {words[4]: PLAIN for words in points if not words[2].startswith("0:")})
    document.setdefault("features", {})
    document.setdefault("acs", {})
    document.setdefault("opens", {"/dev/nvidia-fs0": "ok"})
    _userland(document)
    _audits(document)
    _devices(document)
    _kernel_log(document)
    _foreign(document)
    return document


def with_ended_programs(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` with the number of segments that ended programs have left: none."""
    record = document["processes"].get(PROCESSES)
    if record:
        record.setdefault("dead", 0)
    return document


def _foreign(document: dict[str, Any]) -> None:
    """DKMS installed the modules of these machines, packages have their libraries, and nobody pinned anything."""
    files, excerpts, listings = document["files"], document["excerpts"], document["listings"]
    release = document["host"]["uname"]["release"]
    folder = f"/lib/modules/{release}/"
    modules = [path for path, module in document["modules"].items() if "error" not in module]
    entries = [
        {"file": path.removeprefix(folder), "place": path, "chosen": True, "dkms": "nvidia/1", "own": False}
        for path in modules
    ]
    document.setdefault("modulefiles", {release: {"files": entries}})
    owners = document.setdefault("owners", {})
    document.setdefault("excludes", {})
    for path in re.findall(r"=> (/\S+)$", document["commands"].get("ldconfig", {}).get("stdout", ""), re.MULTILINE):
        owners.setdefault(document["links"].setdefault(path, path), "libcuda1")
    document["links"].setdefault(CUFILE, CUFILE)
    for path in (HOLDS_RECORD, APT_PREFERENCES):
        files.setdefault(path, dict(ABSENT))
    excerpts.setdefault(APT_SOURCES, dict(ABSENT))
    folder, name = RUNFILE_PROGRAM
    for key in (APT_PARTS, PREFERENCE_PARTS, DKMS, f"{folder}/{name}", "/usr/local/cuda-*"):
        listings.setdefault(key, [])
    for folder in LOADER_UNITS:
        listings.setdefault(f"{folder}/{MODULE_LOADER}", [])


def _kernel_log(document: dict[str, Any]) -> None:
    """The kernel's first message, which dmesg still had on these machines; a journal without kernel messages."""
    banner = f"[    0.000000] {_version(document)}\n"
    if not document["commands"]["dmesg"]["stdout"].startswith(banner):
        document["commands"]["dmesg"]["stdout"] = banner + document["commands"]["dmesg"]["stdout"]
    none = {
        "argv": ["journalctl"],
        "status": 1,
        "stdout": "",
        "stderr": "No journal files were found.\n",
        "seconds": 0.1,
    }
    document["commands"].setdefault("journal", none)
    release = document["host"]["uname"]["release"]
    nouveau = f"insmod /lib/modules/{release}/kernel/drivers/gpu/drm/nouveau/nouveau.ko.xz \n"
    document["commands"].setdefault(
        "modprobe:nouveau", {**none, "argv": [], "status": 0, "stdout": nouveau, "stderr": ""}
    )


def _version(document: dict[str, Any]) -> str:
    return str(document["files"]["/proc/version"]).strip()


def _audits(document: dict[str, Any]) -> None:
    """The modules of these machines were audited by provision; those of a bare one are not there."""
    good = [
        {"module": module["name"], "file": path, "ok": True, "findings": []}
        for path, module in document["modules"].items()
        if "error" not in module
    ]
    audit = {"release": document["host"]["uname"]["release"], "results": good}
    document.setdefault("audits", {"running": audit, "next": audit})


def _devices(document: dict[str, Any]) -> None:
    """None of these machines has a virtual function; a disk's controller names its PCI function."""
    files, listings = document["files"], document["listings"]
    functions = listings.get("/sys/bus/pci/devices")
    for name in functions if isinstance(functions, list) else []:
        folder = f"/sys/bus/pci/devices/{name}"
        kind = str(files.get(folder + "/class"))
        if not kind.startswith("0x06"):
            document["links"].setdefault(folder + "/physfn", dict(ABSENT))
        if kind.startswith("0x0108"):
            controllers = [
                c for c in listings["/sys/class/nvme"] if files[f"/sys/class/nvme/{c}/address"].strip() == name
            ]
            listings.setdefault(folder + "/nvme", controllers)


def _userland(document: dict[str, Any]) -> None:
    """The driver's libraries and firmware, in the version of the module that ran."""
    running = document["files"].get("/proc/driver/nvidia/version")
    match = (
        re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", running, re.MULTILINE) if isinstance(running, str) else None
    )
    document["files"].setdefault("/sys/module/firmware_class/parameters/path", "\n")
    document["listings"].setdefault("/lib/firmware/nvidia/[0-9]*", [match[1]] if match else [])
    if not match:
        return
    document["listings"].setdefault(f"/lib/firmware/nvidia/{match[1]}/gsp*.bin*", ["gsp_ga10x.bin", "gsp_tu10x.bin"])
    shown = document["commands"].get("ldconfig", {}).get("stdout", "")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        path = re.search(rf"^\s*{re.escape(name)}\s.*=>\s*(/\S+)$", shown, re.MULTILINE)
        if path:
            document["links"].setdefault(path[1], f"{path[1].removesuffix('.1')}.{match[1]}")


#: As the lab's virtual machine has it: no bridge of QEMU's is in the kernel's list.
CPU = ["vendor_id\t: GenuineIntel", "cpu family\t: 6"]
