"""The hosts that cases start from, by name: recorded ones, and those with what a recorded one lacks put in."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from tests.unit import rdma_host
from tests.unit.host import patches
from tests.unit.host.checks import changes
from tests.unit.host.explain import capable_host
from tests.unit.later_evidence import complete

Document = dict[str, Any]
SWITCHES = ("switches", "switches-iommu", "switches-passthrough", "switches-swapped")
#: name → {"from": another host's, "patch"}
PATCHED: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "cases" / "hosts.yml").read_text())


def h100() -> Document:
    """A machine with a GPU and without nvidia-fs, RDMA and udev."""
    return complete(copy.deepcopy(rdma_host.H100))


def gpu_server() -> Document:
    """The provisioned host as if it had a GPU: what libcufile and gdscheck say with one, and no NVSwitch of the lab."""
    document = patches.patched(changes.GOOD, {"$pci": {"6d5e:00:00.0": None}})
    for name in ("cufile-open", "cufile-open-control"):
        document["commands"][name] = copy.deepcopy(capable_host.H100["commands"][name])
    folder = changes.HOSTS.parent / "gdscheck"
    text = (folder / "gdscheck-p.libcufile-1.9.1.ngpu1.nvfs-2.28.open-driver.txt").read_text()
    document["commands"]["gdscheck"].update(status=0, stderr="", stdout=text, log="")
    return document


def many_processors() -> Document:
    """Two sockets with 192 threads each, all brought up, and a GPU behind an IOMMU."""
    document = capable_host.with_gpu(capable_host.capable())
    address = "/sys/bus/pci/devices/0000:00:06.0/iommu_group"
    document["excerpts"]["/proc/cpuinfo"]["lines"] = ["vendor_id\t: AuthenticAMD", "cpu family\t: 25"] * 384
    document["links"][address] = "../../../kernel/iommu_groups/7"
    document["files"][f"{address}/type"] = "DMA-FQ\n"
    return document


def topology(name: str) -> Document:
    document: Document = json.loads((changes.HOSTS.parent / "topology" / f"{name}.json").read_text())
    return document


def switches(name: str) -> Document:
    """QEMU's switches, host bridges and IOMMU as a real kernel showed them; its display functions stand for GPUs."""
    document = topology(name)
    files = document["files"]
    for path in [path for path in files if path.endswith("/class") and str(files[path]).startswith("0x0380")]:
        files[path.removesuffix("class") + "vendor"] = "0x10de\n"
    return complete(document)


HOSTS: dict[str, Callable[[], Document]] = {
    "provisioned": lambda: changes.GOOD,
    "bare": lambda: changes.BARE,
    "h100": h100,
    "composed": gpu_server,
    "capable": capable_host.capable,
    "capable, with a GPU": lambda: capable_host.with_gpu(capable_host.capable()),
    "many processors": many_processors,
    "bare, as recorded": lambda: capable_host.BARE,
    "bare, with libcufile": lambda: capable_host.with_libcufile(capable_host.BARE),
    "provisioned, as recorded": lambda: capable_host.PROVISIONED,
    "h100, as recorded": lambda: capable_host.H100,
    "a refused cufile.json": lambda: {"commands": capable_host.RUNS["1.9.1 wrong-type"]},
    "an accepted cufile.json": lambda: {"commands": capable_host.RUNS["1.9.1 shipped"]},
    "a library that never returns": lambda: {"commands": capable_host.RUNS["1.20.0 shipped"]},
    "rdma cards": rdma_host.host,
    "two sockets": partial(topology, "two-sockets"),
    **{name: partial(switches, name) for name in SWITCHES},
    "pinned": lambda: json.loads((changes.HOSTS / "light-pinned.json").read_text()),
    "moved": lambda: json.loads((changes.HOSTS / "light-moved.json").read_text()),
    "nothing": dict,
}


@cache
def named(name: str) -> Document:
    """Nobody may change it; :func:`fresh` is for those who do."""
    if name not in PATCHED:
        return HOSTS[name]()
    document: Document = patches.patched(named(PATCHED[name]["from"]), PATCHED[name]["patch"], named)
    return document


def fresh(name: str) -> Document:
    """A copy of the host."""
    return copy.deepcopy(named(name))
