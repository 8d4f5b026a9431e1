"""Debian's real gdscheck programs, fetched when a test asks, and run as on a host with a GPU.

What gdscheck prints comes from libcufile, so one gdscheck shows the output of every release.
``python -m tests.cufile.gdschecks FOLDER`` records it there.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdsdeploy import paths, run
from tests.cufile import ask, libraries, library as asking, standin

#: Debian release → version of its gds-tools, which is that of its libcufile.
VERSIONS = {"debian-12": "1.4.0.31", "debian-13": "1.9.1.3"}
GPU = "0000:00:06.0"
_BARS = {0: (0xA0000000, 0xA0FFFFFF), 1: (0x2000000000, 0x3FFFFFFFFF), 3: (0x4000000000, 0x4001FFFFFF)}
#: The stand-in GPU in sysfs, with a BAR1 of 128 GiB.
SYSFS = {
    f"bus/pci/devices/{GPU}/resource": "".join(
        "0x{:016x} 0x{:016x} 0x{:016x}\n".format(*_BARS.get(bar, (0, 0)), 0x14220C if bar in _BARS else 0)
        for bar in range(13)
    ),
    f"bus/pci/devices/{GPU}/numa_node": "0\n",
}
IOMMU = {**SYSFS, f"bus/pci/devices/{GPU}/iommu/name": ""}
#: nvme and nvme_rdma have hooks, and have registered with nvidia-fs.
HOOKS = {"driver/nvidia-fs/modules": "nvme: 2.28\nnvme_rdma: 2.28\n"}
NO_NVIDIA_FS = {f"driver/nvidia-fs/{name}": None for name in ("version", "devcount", "modules")}
PROPRIETARY = {
    "driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Release Build\n",
}
SECTIONS = (
    '{"properties": {}, "fs": {"generic": {}}, "profile": {}, "miscellaneous": {}, "execution": {}, "denylist": {}}'
)
FORCED = '{"properties": {"force_compat_mode": true}}'
DIRECT_ONLY = '{"properties": {"allow_compat_mode": false}}'
#: The library throws, and nothing catches it.
TOO_LARGE = '{"profile": {"cufile_stats": 99999999999}}'
#: Rows that are printed for some configurations only.
RICH = json.dumps(
    {
        "properties": {
            "rdma_peer_type": "dmabuf",
            "rdma_dev_addr_list": ["127.0.0.1", "10.0.0.9"],
            "rdma_dynamic_routing": True,
            "rdma_dynamic_routing_order": ["GPU_MEM", "SYS_MEM"],
        },
        "fs": {"nfs": {"mount_table": {"/tmp": {"rdma_dev_addr_list": ["10.0.0.1", "127.0.0.1"]}}}},
        "denylist": {"drivers": ["nvme"]},
    }
)


@dataclass(frozen=True)
class Printed:
    """What it printed, both streams together, and its exit status."""

    text: str
    status: int


@functools.cache
def program(os_name: str) -> Path:
    """The gdscheck of a Debian release, in the user's cache."""

    def fetch(work: Path) -> Path:
        unpacked = libraries.debian_package("gds-tools", VERSIONS[os_name], os_name, work)
        return unpacked / "usr/libexec/gds/tools/gdscheck"

    return libraries.kept(paths.cache() / "cufile" / "gdscheck" / VERSIONS[os_name] / "gdscheck", fetch)


def gdscheck(os_name: str, version: str, **options: Any) -> Printed:
    """Run the gdscheck of a Debian release on this version of libcufile, with the options of ``started``."""
    return started([str(program(os_name)), "-p"], version, **options)


def started(
    argv: Sequence[str],
    version: str,
    *,
    config: str = SECTIONS,
    proc: Mapping[str, str | None] | None = None,
    sys_files: Mapping[str, str] | None = None,
    libcuda: bool = True,
) -> Printed:
    """Run any program where this version of libcufile is the one that the loader finds."""
    library = libraries.library(version).path
    request = {
        "libcuda": str(standin.libcuda(library)) if libcuda else None,
        "libcufile": str(library),
        "config": config,
        "proc": proc or {},
        "sys": sys_files or {},
        "argv": list(argv),
    }
    with tempfile.TemporaryDirectory(prefix="gdscheck-live-") as folder:
        done = subprocess.run(
            [run.which("unshare"), *asking._namespace(), sys.executable, "-I", ask.__file__],
            input=json.dumps(request),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            timeout=300,
            check=False,
        )
    return Printed(done.stdout, done.returncode)


def recordings() -> Iterator[tuple[str, str]]:
    """(name, text) of what tests/evidence/gdscheck-live holds: each state once or in every release, each log once."""
    for version in libraries.RELEASES:
        yield f"{version}.direct.txt", _record(gdscheck("debian-13", version, proc=HOOKS, sys_files=SYSFS))
        yield f"{version}.no-sections.txt", _record(gdscheck("debian-13", version, config="{}"))
        yield f"{version}.forced-compat.txt", _record(gdscheck("debian-13", version, config=FORCED, sys_files=SYSFS))
        yield f"{version}.mount-table.txt", _record(gdscheck("debian-13", version, config=RICH, proc=HOOKS))
        yield f"{version}.cufile.log", libraries.library(version).ask(RICH).log
    for debian, version in VERSIONS.items():
        yield f"{version}.no-libcuda.txt", _record(gdscheck(debian, version, libcuda=False))
        yield f"{version}.aborts.txt", _record(gdscheck(debian, version, config=TOO_LARGE))
        yield (
            f"{version}.compat-disallowed.txt",
            _record(gdscheck(debian, version, config=DIRECT_ONLY, proc=NO_NVIDIA_FS)),
        )


def _record(printed: Printed) -> str:
    # As a shell tells it.
    status = 128 - printed.status if printed.status < 0 else printed.status
    return f"{printed.text.replace(str(paths.cache()), '/home/user/.cache/gdsdeploy')}rc={status}\n"


if __name__ == "__main__":
    for name, text in recordings():
        (Path(sys.argv[1]) / f"gdscheck-p.libcufile-{name}").write_text(text)
