"""A root folder with a kernel and NVIDIA's modules, small and whole enough to be audited."""

from __future__ import annotations

from pathlib import Path

from gdsdeploy.host import process
from gdsdeploy.host.model.expectation import Expectation
from tests.unit.host.kmod.kmod_elf import SIGNATURE, VERMAGIC, write_module

RELEASE = "6.12.94+deb13-amd64"
KERNEL_EXPORTS = {
    "module_layout": 0x11111111,
    "kfree": 0xAAAA0001,
    "_printk": 0xAAAA0002,
    "gpl_thing": 0xAAAA0003,
    "rare_thing": 0xAAAA0004,
}
#: Exported, but not used by any of the kernel's own modules: only Module.symvers knows its version.
UNSEEN = ("module_layout", "rare_thing")
GPL = ("gpl_thing",)
P2P = {"nvidia_p2p_get_pages": (0x5B3F3E79, True), "nvidia_p2p_put_pages": (0x642487AC, True)}
VERSION = "550.163.01"
TREE = "sha256:" + "ab" * 32
PROVENANCE = [
    ("gdsdeploy_driver", VERSION),
    ("gdsdeploy_flavour", "open"),
    ("gdsdeploy_tree", TREE),
    ("gdsdeploy_source", "sha256:" + "cd" * 32),
]
#: A host that is locked to this kernel and this driver.
EXPECTED = Expectation(
    host="gpu1",
    profile="gds",
    os="debian-13",
    arch="x86_64",
    kernel_release=RELEASE,
    driver_version=VERSION,
    driver_flavour="open",
    driver_tree="/usr/src/nowhere",
    mode="nvidia-fs",
    rdma="none",
    nvidia_fs_version="2.19.7",
    libcufile_version="1.9.1",
    cufile_path="/etc/cufile.json",
    cufile_sha256="",
)


def empty_lists(modules: Path) -> None:
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        (modules / name).touch()


class Root:
    """``path`` is the root folder; methods write files into it."""

    def __init__(self, path: Path, release: str = RELEASE, vermagic: str = VERMAGIC, machine: int = 62) -> None:
        self.path, self.release, self.vermagic, self.machine = path, release, vermagic, machine
        self.modules = path / "lib" / "modules" / release
        imports: dict[str, int | None] = {name: crc for name, crc in KERNEL_EXPORTS.items() if name not in UNSEEN}
        self.module("kernel/fs/own.ko", "own", info=[("intree", "Y")], imports=imports, signature=SIGNATURE)
        self.module(
            "kernel/drivers/gpu/drm/drm.ko",
            "drm",
            info=[("intree", "Y")],
            exports={"drm_open": (0xD0, False)},
            signature=SIGNATURE,
        )
        self.headers()

    def headers(self) -> None:
        folder = self.path / "usr" / "src" / f"linux-headers-{self.release}"
        folder.mkdir(parents=True)
        lines = [
            f"0x{crc:08x}\t{name}\tvmlinux\tEXPORT_SYMBOL{'_GPL' if name in GPL else ''}\t\n"
            for name, crc in KERNEL_EXPORTS.items()
        ]
        lines.append("0x000000d0\tdrm_open\tdrivers/drm\tEXPORT_SYMBOL\t\n")
        (folder / "Module.symvers").write_text("".join(lines))
        (folder / "Makefile").write_text("")
        (folder / ".config").write_text("CONFIG_SMP=y\nCONFIG_MODVERSIONS=y\nCONFIG_MODULE_SIG=y\n")
        # Absolute, as Debian's packages have it: it means the root's own /usr/src.
        (self.modules / "build").symlink_to(f"/usr/src/linux-headers-{self.release}")

    def remove_headers(self) -> None:
        (self.modules / "build").unlink()

    def lists(self) -> None:
        """What a kernel's package says of its modules, and depmod wants to read; empty."""
        empty_lists(self.modules)

    def depmod(self) -> None:
        """Index the modules as on a host."""
        self.lists()
        assert process.run(["depmod", "-b", str(self.path), "-a", self.release], 60).status == 0

    def module(self, file: str, name: str, **options: object) -> Path:
        options.setdefault("vermagic", self.vermagic)
        options.setdefault("machine", self.machine)
        return write_module(self.modules / file, name, **options)

    def nvidia(self, file: str = "updates/dkms/nvidia.ko", **options: object) -> Path:
        settings: dict[str, object] = {
            "license": "Dual MIT/GPL",
            "info": [("version", VERSION)],
            "imports": {"kfree": KERNEL_EXPORTS["kfree"], "drm_open": 0xD0},
            "depends": "drm",
            "exports": P2P,
        }
        return self.module(file, "nvidia", **{**settings, **options})

    def nvidia_fs(self, file: str = "updates/dkms/nvidia-fs.ko", **options: object) -> Path:
        imports = {name: crc for name, (crc, _) in P2P.items()}
        settings: dict[str, object] = {
            "info": [("version", "2.19.7"), *PROVENANCE],
            "imports": {**imports, "gpl_thing": KERNEL_EXPORTS["gpl_thing"]},
            "depends": "nvidia",
        }
        return self.module(file, "nvidia_fs", **{**settings, **options})

    def etc(self, path: str, text: str) -> None:
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
