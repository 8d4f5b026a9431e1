"""What the lab's kits take from Debian's packages, small: unpacked packages with the files that the kits ask for."""

from __future__ import annotations

from pathlib import Path

from gdslab.archive import Archive
from gdslab.kit import cuda
from gdslab.kit.content import Content

_CURRENT = "usr/lib/x86_64-linux-gnu/nvidia/current"
_SOURCE = f"usr/src/nvidia-current-open-{cuda.DRIVER}"
_FS = f"usr/src/nvidia-fs-{cuda.DEBIAN_NVIDIA_FS}"
#: PACKAGE_VERSION → path → text.
_FILES = {
    f"nvidia-open-kernel-dkms_{cuda.DRIVER}": {
        f"{_SOURCE}/dkms.conf": "",
        f"{_SOURCE}/Kbuild": f'EXTRA_CFLAGS += -DNV_VERSION_STRING=\\"{cuda.DRIVER}\\"\n',
    },
    f"firmware-nvidia-gsp_{cuda.DRIVER}": {f"usr/lib/firmware/nvidia/{cuda.DRIVER}/gsp_ga10x.bin": "firmware"},
    "nvidia-modprobe_570": {"usr/bin/nvidia-modprobe": "program"},
    f"libcuda1_{cuda.DRIVER}": {f"{_CURRENT}/libcuda.so.{cuda.DRIVER}": "cuda"},
    f"libnvidia-ml1_{cuda.DRIVER}": {f"{_CURRENT}/libnvidia-ml.so.{cuda.DRIVER}": "ml"},
    f"libnvidia-cfg1_{cuda.DRIVER}": {f"{_CURRENT}/libnvidia-cfg.so.{cuda.DRIVER}": "cfg"},
    f"libnvidia-encode1_{cuda.DRIVER}": {f"{_CURRENT}/libnvidia-encode.so.{cuda.DRIVER}": "encode"},
    f"nvidia-smi_{cuda.DRIVER}": {"usr/lib/nvidia/current/nvidia-smi": "smi"},
    f"nvidia-fs-dkms_{cuda.DEBIAN_NVIDIA_FS}": {
        f"{_FS}/dkms.conf": (
            f'PACKAGE_NAME="nvidia-fs"\nPACKAGE_VERSION="{cuda.DEBIAN_NVIDIA_FS}"\nBUILD_DEPENDS[0]="nvidia-current"\n'
        ),
        f"{_FS}/nvfs-vers.h": "".join(
            f"#define NVFS_DRIVER_{word}_VERSION {number}\n"
            for word, number in zip(("MAJOR", "MINOR", "PATCH"), cuda.DEBIAN_NVIDIA_FS.split("."), strict=True)
        ),
    },
    f"libcufile0_{cuda.DEBIAN_LIBCUFILE}": {"usr/lib/x86_64-linux-gnu/libcufile.so.1.9.1": "library"},
    f"libcufile-rdma1_{cuda.DEBIAN_LIBCUFILE}": {"usr/lib/x86_64-linux-gnu/libcufile_rdma.so.1.9.1": "library"},
    f"gds-tools_{cuda.DEBIAN_LIBCUFILE}": {
        "usr/libexec/gds/tools/gdscheck": "program",
        "usr/share/doc/gds-tools/examples/cufile.json": "{}",
    },
    "dkms_3.2.2": {"usr/sbin/dkms": "program"},
}
#: Symbols as a kernel's headers list them.
SYMVERS = (
    "0x11111111\tib_register_client\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n"
    "0x22222222\tnvme_init_ctrl\tdrivers/nvme/host/nvme-core\tEXPORT_SYMBOL_GPL\t\n"
)


def content(work: Path) -> Content:
    """The packages, unpacked below ``work``; there is no archive that others could come from."""
    for package, files in _FILES.items():
        place = work / "unpacked" / package
        for path, text in files.items():
            target = place / "files" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        (place / "control").mkdir(parents=True)
        (place / "control/control").write_text(
            f"Package: {package.split('_')[0]}\nArchitecture: all\nDepends: kmod, make\n"
        )
    return Content(work, Archive("", None, work, {}, {}, None), work)


def kernel(work: Path) -> Path:
    """A folder with what the kits keep of a kernel, as far as DOCA's packages take it."""
    for module in ("infiniband/core/ib_core.ko.zst", "nvme/host/nvme.ko.zst"):
        target = work / "kernel/modules/kernel/drivers" / module
        target.parent.mkdir(parents=True)
        target.write_text("module")
    (work / "kernel/headers").mkdir()
    (work / "kernel/headers/Module.symvers").write_text(SYMVERS)
    return work / "kernel"
