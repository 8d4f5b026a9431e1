"""Recorded hosts, their findings, and small changes to their evidence."""

from __future__ import annotations

import copy
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
OPENED = json.loads((HOSTS.parent / "cufile-open" / "libcuda-550-no-gpu.json").read_text())
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


def findings(document: Document, expectation: Expectation = EXPECTATION) -> dict[str, Finding]:
    return {finding.check: finding for finding in checks.run(facts_from(document), expectation)}


def verdicts(document: Document, expectation: Expectation = EXPECTATION) -> dict[str, str]:
    return {name: finding.verdict for name, finding in findings(document, expectation).items()}


def file(path: str, value: object) -> Change:
    return lambda document: document["files"].__setitem__(path, value)


def absent(section: str, path: str) -> Change:
    return lambda document: document[section].__setitem__(path, {"error": "ENOENT"})


def module(name: str) -> str:
    """The file of a module by its in-kernel name."""
    return next(path for path, value in GOOD["modules"].items() if value["name"] == name)


def in_module(name: str, **values: object) -> Change:
    return lambda document: document["modules"][module(name)].update(values)


def unloaded(name: str) -> Change:
    def change(document: Document) -> None:
        lines = document["files"]["/proc/modules"].splitlines(keepends=True)
        document["files"]["/proc/modules"] = "".join(line for line in lines if line.split()[0] != name)
        document["files"][f"/sys/module/{name}/version"] = {"error": "ENOENT"}
        if name == "nvidia":
            document["files"]["/proc/driver/nvidia/version"] = {"error": "ENOENT"}

    return change


def output(name: str, before: str, after: str) -> Change:
    def change(document: Document) -> None:
        run = document["commands"][name]
        assert before in run["stdout"]
        run["stdout"] = run["stdout"].replace(before, after)

    return change


def edited(path: str, before: str, after: str) -> Change:
    def change(document: Document) -> None:
        assert before in document["files"][path]
        document["files"][path] = document["files"][path].replace(before, after)

    return change


def package(name: str, version: str, status: str) -> Change:
    return output(
        "dpkg-query", f"\n{name}\t{EXPECTATION.packages[name]}\tamd64\thi ", f"\n{name}\t{version}\tamd64\t{status} "
    )


def nouveau_allowed(document: Document) -> None:
    """Debian's own packages forbid it too."""
    for path, text in document["files"].items():
        if "/modprobe.d/" in path and isinstance(text, str):
            document["files"][path] = text.replace("nouveau", "nothing")


def no_libcufile(document: Document) -> None:
    document["commands"]["cufile-open"].update(stdout="gdsdeploy: not loaded: libcufile.so.0: none\n")
    document["listings"].update({key: [] for key in document["listings"] if key.endswith("/libcufile.so*")})


def appended(path: str, text: str) -> Change:
    def change(document: Document) -> None:
        document["files"][path] += text

    return change


def opened(name: str) -> Change:
    return lambda document: document["commands"].update(copy.deepcopy(OPENED[name]))


def logged(*values: str) -> Change:
    """libcufile comes as far as its values, as it does with a GPU."""
    lines = ["CUFILE CONFIGURATION:", *values, "GPU INFO:"]
    log = "".join(f" 21-11-2026 01:01:30:411 [pid=1 tid=1] INFO   0:1509 {line}\n" for line in lines)
    return lambda document: document["commands"]["cufile-open"].update(log=log)


def crc(symbol: str) -> Change:
    def change(document: Document) -> None:
        imports = document["modules"][module("nvidia_fs")]["imports"]
        imports[symbol] = (imports[symbol] or 0) ^ 1

    return change


def not_exported(symbol: str) -> Change:
    return lambda document: document["modules"][module("nvidia")]["exports"].pop(symbol)


def without_crcs(document: Document) -> None:
    imports = document["modules"][module("nvidia_fs")]["imports"]
    document["modules"][module("nvidia_fs")]["imports"] = {
        name: None if name.startswith("nvidia_p2p_") else value for name, value in imports.items()
    }


def provenance(**values: str) -> Change:
    return lambda document: document["modules"][module("nvidia_fs")]["provenance"].update(values)


def tree(digest: str) -> Change:
    """The locked source tree on the host itself, as on hosts that build their own modules."""

    def change(document: Document) -> None:
        document["trees"][EXPECTATION.driver_tree] = {"version": "550.163.01", "flavour": "open", "digest": digest}
        document["listings"]["/usr/src/nvidia*"].append(Path(EXPECTATION.driver_tree).name)

    return change


def units(before: str, after: str) -> Change:
    def change(document: Document) -> None:
        run = document["commands"]["systemctl-units"]
        blocks = run["stdout"].split("\n\n")
        run["stdout"] = "\n\n".join(
            block.replace(before, after) if "Id=systemd-modules-load.service" in block else block for block in blocks
        )

    return change


def rebuilt(name: str) -> Change:
    """Another build of the same source on disk: what is loaded stays as it is."""
    return in_module(name, build_id="04" * 36)
