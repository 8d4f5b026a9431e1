"""The H100's machine with RDMA cards and two GPUs put in, as sysfs and ip(8) show them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.unit.later_evidence import complete

HOSTS = Path(__file__).parents[1] / "evidence" / "hosts"
H100 = json.loads((HOSTS / "h100-libcufile-1.20.0.json").read_text())
GPU = "0000:00:06.0"
PCI = "/sys/bus/pci/devices"
#: device, its interface, where it sits, its address; two switches, a GPU below each
CARDS = (
    ("mlx5_0", "ens1", "0000:10:00.0/0000:11:00.0/0000:12:00.0", ("192.0.2.1/25", "2001:db8:1::1/64")),
    ("mlx5_1", "ens2", "0000:10:00.0/0000:11:01.0/0000:13:00.0", ("192.0.2.129/25", "2001:db8:2::1/64")),
    ("mlx5_2", "ens3", "0000:20:00.0/0000:21:00.0/0000:22:00.0", ("192.0.2.2/25",)),
    ("mlx5_10", "ens10", "0000:20:00.0/0000:21:01.0/0000:23:00.0", ("2001:db8:1::2/64", "fe80::1/64")),
)
GPUS = ("0000:10:00.0/0000:11:02.0/0000:14:00.0", "0000:20:00.0/0000:21:02.0/0000:24:00.0")
Document = dict[str, Any]


def host(
    cards: Sequence[tuple[str, str, str, Sequence[str]]] = CARDS, memory: int = 1024, bar1: int | None = None
) -> Document:
    """The H100's machine with these cards, two GPUs of its kind, ``memory`` GiB, and a BAR1 of that many MiB."""
    document = complete(copy.deepcopy(H100))
    document["excerpts"]["/proc/meminfo"] = {"pattern": "^MemTotal:", "lines": [f"MemTotal: {memory << 20} kB"]}
    for path in GPUS:
        place(document, path, like=GPU)
        if bar1 is not None:
            rows = ["0x1 0x1000000 0x0", "0x0 0x0 0x0", f"0x1 {bar1 << 20:#x} 0x0"]
            document["files"][f"{PCI}/{path[-12:]}/resource"] = "\n".join(rows)
    document["listings"][PCI].remove(GPU)
    document["listings"]["/sys/class/infiniband"] = sorted(card[0] for card in cards)
    rows = [{"ifname": "lo", "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8, "scope": "host"}]}]
    for device, interface, path, addresses in cards:
        place(document, path, like="0000:00:03.0")
        folder = f"/sys/class/infiniband/{device}"
        document["links"][folder + "/device"] = f"../../../{path[-12:]}"
        document["listings"] |= {folder + "/device/net": [interface], folder + "/ports": ["1"]}
        document["files"][folder + "/ports/1/state"] = "4: ACTIVE\n"
        rows.append({"ifname": interface, "addr_info": [information(address) for address in addresses]})
    document["commands"]["ip-address"] = {
        "argv": ["ip"], "status": 0, "stdout": json.dumps(rows), "stderr": "", "seconds": 0.1,
    }  # fmt: skip
    return document


def place(document: Document, path: str, like: str) -> None:
    """A PCI function below these bridges, otherwise as one of the machine."""
    name = path[-12:]
    document["listings"][PCI].append(name)
    for section in ("files", "links"):
        same = {key: value for key, value in document[section].items() if key.startswith(f"{PCI}/{like}")}
        document[section] |= {key.replace(like, name): value for key, value in same.items()}
    document["links"][f"{PCI}/{name}"] = f"../../../devices/pci0000:00/{path}"


def information(text: str) -> dict[str, object]:
    address, _, prefix = text.partition("/")
    scope = "link" if address.startswith("fe80") else "global"
    return {"family": "inet6" if ":" in address else "inet", "local": address, "prefixlen": int(prefix), "scope": scope}
