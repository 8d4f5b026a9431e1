"""Recorded hosts, their findings, and small changes to their evidence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gdsdeploy.host import checks
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.model.expectation import Expectation, from_json
from gdsdeploy.host.model.finding import Finding
from tests.unit.later_evidence import complete


def as_journal(lines: str) -> str:
    """Lines of dmesg as journalctl prints them with --output=short-monotonic."""
    return re.sub(r"^(\[.*?\]) ", r"\1 vm kernel: ", lines, flags=re.MULTILINE)


HOSTS = Path(__file__).parents[3] / "evidence" / "hosts"
GOOD = complete(json.loads((HOSTS / "lab-vm-provisioned.json").read_text()))
BARE = complete(json.loads((HOSTS / "lab-vm-bare.json").read_text()))
_EXPECTED = from_json((HOSTS / "lab-vm.expectation.json").read_text())
#: What it was expected to be, with the devices and the boot that it has, and a mount that has to deliver under load.
EXPECTATION = replace(
    _EXPECTED,
    storage=[{**entry, "load": {"read": 10**9, "seconds": 10}} for entry in _EXPECTED.storage],
    hardware={
        "gpus": {"count": 0},
        "nics": {"count": 1, "driver": "virtio-pci"},
        "nvme": {"count": 1, "model": "QEMU NVMe"},
    },
    boot_arguments=["net.ifnames=0"],
    module_parameters={"nvme_core.multipath": "Y"},
)
#: As gdsdeploy/host/odirect/load.py has measured it on a disk like that.
LOADED = {
    "rate": 1234567890, "bytes": 12350128128, "seconds": 10.004, "size": 1 << 30, "block": 1 << 20, "readers": 16,
    "latency": {"p50": 0.0122, "p99": 0.0491, "max": 0.0595},
}  # fmt: skip
#: As journalctl prints the same messages.
GOOD["commands"]["journal"] = {
    "argv": ["journalctl", "--dmesg"], "status": 0, "stderr": "", "seconds": 0.2,
    "stdout": as_journal(GOOD["commands"]["dmesg"]["stdout"]),
}  # fmt: skip
GOOD["load"] = {entry["mount"]: LOADED for entry in EXPECTATION.storage}
#: A job that uses cuFile as the host has it.
JOB_LIBRARY = f"/usr/lib/x86_64-linux-gnu/libcufile.so.{'.'.join(_EXPECTED.libcufile_version.split('.')[:3])}"
GOOD["processes"] = {
    "libcufile": {
        "programs": [
            {
                "pid": 4711, "program": "train", "unit": "/system.slice/train.service", "container": False,
                "libraries": [JOB_LIBRARY], "wheels": {JOB_LIBRARY: []}, "base": "/etc/cufile.json", "variables": {},
            }
        ],
        "unread": 0,
        "more": False,
        "dead": 0,
    }
}  # fmt: skip
Document = dict[str, Any]
Change = Callable[[Document], None]


def findings(
    document: Document, expectation: Expectation = EXPECTATION, memory: checks.Memory | None = None
) -> dict[str, Finding]:
    """The finding of each check.  memory: of other documents."""
    facts = facts_from(document, watched=memory is not None)
    remember = memory.of(facts, expectation) if memory else checks.anew
    return {finding.check: finding for finding in checks.run(facts, expectation, remember)}


def verdicts(
    document: Document, expectation: Expectation = EXPECTATION, memory: checks.Memory | None = None
) -> dict[str, str]:
    return {name: finding.verdict for name, finding in findings(document, expectation, memory).items()}


def module(name: str) -> str:
    """The file of a module by its in-kernel name."""
    return next(path for path, value in GOOD["modules"].items() if value["name"] == name)
