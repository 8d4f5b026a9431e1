"""The disk with the EFI system partition of a VM host, read back by mtools."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gdslab import efi
from gdslab.efi import Uefi

SECTORS = efi.DISK_BYTES // efi.SECTOR


def test_partition_has_the_loaders_and_the_menu_that_finds_the_root_disk(tmp_path: Path) -> None:
    packages = tmp_path / "root"
    for name in efi._LOADERS.values():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(Path(name).name)
    disk = tmp_path / "esp.raw"
    Uefi(packages, grub="grub2").make_disk(disk)

    def read(name: str) -> str:
        command = ["mtype", "-i", f"{disk}@@{efi.OFFSET}", f"::/{name}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert read("EFI/BOOT/BOOTX64.EFI") == "shimx64.efi.signed"
    assert read("EFI/BOOT/mmx64.efi") == "mmx64.efi.signed"
    assert read("EFI/BOOT/grubx64.efi") == "grubx64.efi.signed"
    assert "'/boot/grub2'" in read("EFI/debian/grub.cfg")
    data = disk.read_bytes()
    assert data[: 34 * 512] == efi.partition_tables(SECTORS, 2048)[0], "the file system left the table alone"
    assert data[-33 * 512 :] == efi.partition_tables(SECTORS, 2048)[1]
    assert disk.stat().st_blocks * 512 < 16 << 20, "it is sparse"
