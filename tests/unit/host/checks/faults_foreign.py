"""Faults of what others have installed: after gdsdeploy has provisioned the host, or beside it."""

from __future__ import annotations

from gdsdeploy.host.paths import APT_PREFERENCES, MOUNTINFO, RUNFILE_PROGRAM
from tests.unit.host.checks.changes import EXPECTATION, Change, Document


def run_file(document: Document) -> None:
    path = "/".join(RUNFILE_PROGRAM)
    document["listings"][path] = [RUNFILE_PROGRAM[1]]
    document["owners"][path] = ""


def copied_module(document: Document) -> None:
    """It was copied over the one that DKMS installed, or lies in a folder that depmod prefers."""
    release = document["host"]["uname"]["release"]
    place = f"/lib/modules/{release}/updates/nvidia.ko"
    entry = {"file": "updates/nvidia.ko", "place": place, "chosen": True, "dkms": "", "own": False}
    document["modulefiles"][release]["files"].append(entry)
    document["owners"][place] = ""


def strange_library(document: Document) -> None:
    path = "/usr/local/lib/libcufile.so.0"
    run = document["commands"]["ldconfig"]
    run["stdout"] = f"\tlibcufile.so.0 (libc6,x86-64) => {path}\n" + run["stdout"]
    document["links"][path] = path
    document["owners"][path] = ""


def forbidding_pin(document: Document) -> None:
    name = min(EXPECTATION.packages)
    document["files"][APT_PREFERENCES] = f"Package: {name}\nPin: release *\nPin-Priority: -1\n"


def container(document: Document) -> None:
    document["files"][MOUNTINFO] += "99 1 0:77 / /run/nvidia/driver rw - overlay overlay rw\n"


FAULTS: dict[str, tuple[Change, set[str]]] = {
    "a run file installed a driver later": (run_file, {"host.foreign"}),
    "a module is copied into the kernel's folder": (copied_module, {"host.foreign"}),
    "programs get a libcufile without a package": (strange_library, {"host.foreign"}),
    "another pin forbids a locked package": (forbidding_pin, {"host.foreign"}),
    "an operator's container brings the driver": (container, {"host.foreign"}),
}
