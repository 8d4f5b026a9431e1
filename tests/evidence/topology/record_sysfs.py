"""Record what sysfs says of this machine's PCI devices, and nvidia-smi beside it: ``record_sysfs.py FOLDER``."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")
FILES = (
    *("vendor", "device", "class", "subsystem_vendor", "subsystem_device", "revision", "numa_node", "local_cpulist"),
    *("resource", "enable", "power_state"),
    *("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"),
)
LINKS = ("driver", "iommu_group", "physfn")
FOLDERS = (
    "/sys/class/iommu",
    "/sys/kernel/iommu_groups",
    "/sys/class/net",
    "/sys/class/nvme",
    "/sys/class/block",
    "/sys/class/infiniband",
    "/sys/devices/system/node",
    "/sys/kernel/mm/memory_peers",
)
TEXTS = (
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/params",
    "/proc/modules",
    "/sys/devices/system/node/online",
)
#: Bytes read of one file; PCI Express configuration space has 4096.
LIMIT = 8192


def record() -> dict[str, str]:
    texts: dict[str, str] = {}
    for device in sorted(DEVICES.iterdir()):
        real = device.resolve()
        texts[str(device)] = f"link:{real}"
        for name in FILES:
            _text(texts, real / name)
        texts[f"{real}/config"] = "base64:" + base64.b64encode((real / "config").read_bytes()[:LIMIT]).decode()
        for name in LINKS:
            if (real / name).is_symlink():
                texts[f"{real}/{name}"] = f"link:{(real / name).resolve()}"
    for folder in map(Path, FOLDERS):
        if folder.is_dir():
            texts[str(folder)] = "dir:" + " ".join(sorted(entry.name for entry in folder.iterdir()))
    for kind in ("net", "block"):
        for device in sorted(Path("/sys/class", kind).iterdir()):
            texts[str(device)] = f"link:{device.resolve()}"
    for node in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
        for name in ("cpulist", "distance"):
            _text(texts, node / name)
    for name in TEXTS:
        _text(texts, Path(name))
    return texts


def _text(texts: dict[str, str], path: Path) -> None:
    try:
        texts[str(path)] = path.read_bytes()[:LIMIT].decode("utf-8", "replace")
    except OSError:
        return


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sysfs.json").write_text(json.dumps(record(), indent=1, sort_keys=True) + "\n")
    links = "index,pci.bus_id,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max"
    for name, words in (("topo-m", ["topo", "-m"]), ("links", [f"--query-gpu={links}", "--format=csv"])):
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, check=True, timeout=60)
        (folder / f"nvidia-smi-{name}.txt").write_text(done.stdout)


if __name__ == "__main__":
    main()
