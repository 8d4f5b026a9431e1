"""Record what the evidence collector sees in virtual machines with PCIe switches, NUMA nodes and an IOMMU.

    python tests/evidence/topology/record.py ROOT [NAME…]

ROOT is a folder with a Debian kernel: boot/vmlinuz-* and lib/modules/ (unpack a linux-image package there with
``dpkg -x``).  Each machine boots that kernel with this machine's Python in its initramfs, runs the host program as
process 1, prints its evidence and switches itself off: 20 to 60 s in software emulation.
"""

from __future__ import annotations

import base64
import gzip
import json
import lzma
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gdsdeploy.zipapp import hostapp

FOLDER = Path(__file__).parent
MODULES = ("nvme-keyring", "nvme-auth", "nvme-core", "nvme", "e1000e")
BEGIN, END = "EVIDENCE<", ">EVIDENCE"

#: Process 1: mounts, modules, the host program, off.
INIT = """#!/usr/bin/python3 -B
import base64, contextlib, ctypes, gzip, io, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for kind, place in (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")):
    os.makedirs(place, exist_ok=True)
    libc.mount(kind.encode(), place.encode(), kind.encode(), 0, None)
tty = os.open("/dev/ttyS0", os.O_RDWR)
for number in (0, 1, 2):
    os.dup2(tty, number)
sys.stdout = open(1, "w", closefd=False)
for name in open("/modules/order").read().split():
    with open("/modules/" + name, "rb") as file:
        if libc.syscall(313, file.fileno(), b"", 0):
            print(name, os.strerror(ctypes.get_errno()))
import time
time.sleep(3)
sys.path.insert(0, "/program.pyz")
said = io.StringIO()
try:
    from gdsdeploy.host.__main__ import main
    with contextlib.redirect_stdout(said):
        main(["evidence", "--json"])
    text = base64.b64encode(gzip.compress(said.getvalue().encode())).decode()
    print("EVIDENCE<" + text + ">EVIDENCE", flush=True)
finally:
    os.sync()
    libc.reboot(0x4321fedc)
"""

#: Two NUMA nodes; below the first host bridge a disk without a port, one below a port of its own, a switch with a
#: display function, a disk, a network adapter and a second switch; below the second host bridge, of the other node, a
#: display function and a disk.
TREE = """
-object memory-backend-ram,id=m0,size=512M -numa node,nodeid=0,cpus=0,memdev=m0
-object memory-backend-ram,id=m1,size=512M -numa node,nodeid=1,cpus=1,memdev=m1
-device pxb-pcie,id=far,bus_nr=128,bus=pcie.0,numa_node=1
-device pcie-root-port,id=rp1,bus=pcie.0,chassis=1,slot=1
-device x3130-upstream,id=up1,bus=rp1
-device xio3130-downstream,id=d11,bus=up1,chassis=2,slot=1
-device xio3130-downstream,id=d12,bus=up1,chassis=2,slot=2
-device xio3130-downstream,id=d13,bus=up1,chassis=2,slot=3
-device xio3130-downstream,id=d14,bus=up1,chassis=2,slot=4
-device virtio-gpu-pci,bus=d11
-device nvme,serial=a,bus=d12
-device e1000e,bus=d13
-device x3130-upstream,id=up2,bus=d14
-device xio3130-downstream,id=d21,bus=up2,chassis=3,slot=1
-device nvme,serial=b,bus=d21
-device pcie-root-port,id=rp2,bus=pcie.0,chassis=4,slot=1
-device nvme,serial=c,bus=rp2
-device nvme,serial=d,bus=pcie.0
-device pcie-root-port,id=rp3,bus=far,chassis=5,slot=1
-device virtio-gpu-pci,bus=rp3
-device pcie-root-port,id=rp4,bus=far,chassis=6,slot=1
-device nvme,serial=e,bus=rp4
"""
IOMMU = "-device intel-iommu,intremap=on"
#: Name → options of QEMU, words of the kernel's command line.
MACHINES = {
    "switches": (TREE, ""),
    "switches-iommu": (IOMMU + TREE, "intel_iommu=on iommu.passthrough=0"),
    "switches-passthrough": (IOMMU + TREE, "intel_iommu=on iommu=pt"),
    # The disk behind the second switch taken out, and another disk put where the network adapter was.
    "switches-swapped": (
        re.sub(r"-device nvme,serial=b.*\n", "", TREE).replace(
            "-device e1000e,bus=d13", "-device nvme,serial=f,bus=d13"
        ),
        "",
    ),
}


def main() -> None:
    root, names = Path(sys.argv[1]), sys.argv[2:] or list(MACHINES)
    (kernel,) = sorted((root / "boot").glob("vmlinuz-*"))[-1:]
    with tempfile.TemporaryDirectory() as scratch:
        image = Path(scratch) / "initramfs"
        image.write_bytes(b"".join(archive(contents(root, kernel.name.partition("-")[2]))))
        for name in names:
            options, words = MACHINES[name]
            document = boot(kernel, image, options, words)
            (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
            sys.stderr.write(f"{name}: {document['seconds']} s in the machine\n")


def boot(kernel: Path, image: Path, options: str, words: str) -> dict[str, object]:
    argv = ["qemu-system-x86_64", "-machine", "q35,kernel-irqchip=split", "-accel", "tcg,thread=multi", "-cpu", "max"]
    argv += ["-smp", "2", "-m", "1024", "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"]
    argv += ["-kernel", str(kernel), "-initrd", str(image)]
    argv += ["-append", f"console=ttyS0 quiet rdinit=/init {words}".strip(), *options.split()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=180, stdin=subprocess.DEVNULL)
    match = re.search(f"{BEGIN}(.*){END}", done.stdout)
    if match is None:
        sys.exit(f"no evidence came:\n{done.stdout[-3000:]}\n{done.stderr}")
    document: dict[str, object] = json.loads(gzip.decompress(base64.b64decode(match.group(1))))
    return document


def contents(root: Path, release: str) -> Iterator[tuple[str, int, bytes]]:
    """(name, mode, content) of the initramfs: Python with its libraries, the host program, modules."""
    yield "init", 0o100755, INIT.encode()
    yield "program.pyz", 0o100644, hostapp.build()
    order = []
    for name in MODULES:
        for file in sorted((root / "lib/modules" / release).rglob(f"{name}.ko*")):
            data = file.read_bytes()
            yield f"modules/{name}.ko", 0o100644, lzma.decompress(data) if file.suffix == ".xz" else data
            order.append(f"{name}.ko")
    yield "modules/order", 0o100644, "\n".join(order).encode()
    python = Path("/usr/bin/python3").resolve()
    library = Path(f"/usr/lib/{python.name}")
    yield "usr/bin/python3", 0o100755, python.read_bytes()
    executables = {python, *library.glob("lib-dynload/*.so")}
    for file in sorted(library.rglob("*")):
        inside = file.relative_to(library).parts
        if file.is_file() and not {"__pycache__", "test", "idlelib", "lib2to3", "tkinter"} & {*inside}:
            yield str(file).lstrip("/"), 0o100644, file.read_bytes()
    for path in sorted({path for file in executables for path in linked(file)}):
        yield path.lstrip("/"), 0o100755, Path(path).read_bytes()


def linked(file: Path) -> list[str]:
    shown = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", shown)


def archive(items: Iterator[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """A cpio archive ("newc") of files with their folders."""
    entries: set[str] = set()
    for name, mode, data in items:
        folders = [parent.as_posix() for parent in reversed(Path(name).parents)][1:]
        for folder in folders:
            if folder not in entries:
                entries.add(folder)
                yield entry(folder, 0o040755, b"")
        if name not in entries:
            entries.add(name)
            yield entry(name, mode, data)
    yield entry("TRAILER!!!", 0, b"")


def entry(name: str, mode: int, data: bytes) -> bytes:
    numbers = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % number for number in numbers) + name.encode() + b"\0"
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


if __name__ == "__main__":
    main()
