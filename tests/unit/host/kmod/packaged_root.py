"""A host whose kernel has its modules from packages, without headers; dpkg's record names them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gdsdeploy.host.kmod.packaged_file import PackagedFile
from tests.unit.host.kmod.kmod_root import KERNEL_EXPORTS, P2P, RELEASE, VERSION, Root

DRIVER, NVIDIA_FS = f"linux-modules-nvidia-550-open-{RELEASE}", f"linux-modules-nvidia-fs-{RELEASE}"
DRIVER_FILE, NVIDIA_FS_FILE = "kernel/nvidia-550-open/nvidia.ko", "kernel/fs/nvidia-fs/nvidia-fs.ko"
#: Package → its version.
VERSIONS = {DRIVER: "6.12.94-1+1", NVIDIA_FS: "6.12.94-1"}


class PackagedRoot(Root):
    """``own``: module → its bytes, where a test doesn't want the usual ones."""

    def __init__(self, path: Path, own: dict[str, bytes] | None = None) -> None:
        super().__init__(path)
        self.remove_headers()
        imports = {name: crc for name, (crc, _) in P2P.items()}
        self.nvidia(DRIVER_FILE)
        # As a distribution builds it, it records no driver; and it uses a symbol that no other module here uses.
        self.nvidia_fs(
            NVIDIA_FS_FILE,
            info=[("version", "2.19.7")],
            imports={**imports, **{name: KERNEL_EXPORTS[name] for name in ("gpl_thing", "rare_thing")}},
        )
        for file, content in (own or {}).items():
            (self.modules / file).write_bytes(content)
        for package, file in ((DRIVER, DRIVER_FILE), (NVIDIA_FS, NVIDIA_FS_FILE)):
            self.etc(f"var/lib/dpkg/info/{package}.list", f"/.\n/lib\n/lib/modules/{RELEASE}/{file}\n")
        self.files = [self._file("nvidia", DRIVER, DRIVER_FILE), self._file("nvidia_fs", NVIDIA_FS, NVIDIA_FS_FILE)]
        self.depmod()

    def _file(self, module: str, package: str, file: str) -> PackagedFile:
        digest = hashlib.sha256((self.modules / file).read_bytes()).hexdigest()
        return PackagedFile(module, file, digest, package, VERSIONS[package])

    def built_by_dkms(self, name: str = "nvidia", version: str = VERSION, file: str = "nvidia.ko") -> None:
        """What DKMS leaves of a build that is installed for the kernel."""
        built = self.path / "var/lib/dkms" / name / version / RELEASE / "x86_64/module"
        built.mkdir(parents=True)
        module = self.nvidia(f"updates/dkms/{file}") if name == "nvidia" else self.nvidia_fs(f"updates/dkms/{file}")
        (built / file).write_bytes(module.read_bytes())
        (self.path / "var/lib/dkms" / name / f"kernel-{RELEASE}-x86_64").symlink_to(f"{version}/{RELEASE}/x86_64")
        self.depmod()
