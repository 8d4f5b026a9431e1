"""What a VM host needs to boot by UEFI: OVMF, the host's variables, and a disk with shim, MokManager and GRUB.

All programs are those of a Debian release, unpacked into a cache folder.  Microsoft's signatures and Debian's are on
them, so Secure Boot is that of a real machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import run
from gdsdeploy.errors import ProgramFailed
from gdslab import emulator, guest, images
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable
from gdslab.requirements import Requirement

RELEASE = "trixie"
PACKAGES = ("grub-efi-amd64-signed", "ovmf", "python3-virt-firmware", "shim-signed")
#: Programs of this machine that make the disk, and the TPM.
_REQUIREMENTS = (
    Requirement("mkfs.vfat", "dosfstools", "makes the EFI system partition"),
    Requirement("mcopy", "mtools", "writes the boot loaders there"),
)
_TPM_REQUIREMENT = Requirement("swtpm", "swtpm", "emulates the TPM")
#: The disk with the EFI system partition, a sparse file, and the offset of its only partition.
DISK_BYTES, OFFSET = 512 << 20, 1 << 20
SECTOR = images.SECTOR
#: A GPT has this many entries of 128 bytes, in this many sectors, at both ends of the disk.
_ENTRIES, _TABLE = 128, 32
_ESP_TYPE = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
#: Hosts see only their own disks, so these ids are the same everywhere.
_DISK_GUID, _PARTITION_GUID = (uuid.UUID(f"b1c7f0a4-6d53-4a0e-9b52-0f6a6d1c000{digit}") for digit in (2, 3))
#: The owner of the lab's keys in the firmware.
_OWNER = "b1c7f0a4-6d53-4a0e-9b52-0f6a6d1c0004"
#: Sockets have short names, so both programs run in the host's folder.
_TPM_SOCKET = "tpm.sock"
_TPM = (
    *("-chardev", f"socket,id=tpm,path={_TPM_SOCKET}", "-tpmdev", "emulator,id=tpm0,chardev=tpm"),
    *("-device", "tpm-tis,tpmdev=tpm0"),
)
#: File on the partition → file of the packages.
_LOADERS = {
    "EFI/BOOT/BOOTX64.EFI": "usr/lib/shim/shimx64.efi.signed",
    "EFI/BOOT/mmx64.efi": "usr/lib/shim/mmx64.efi.signed",
    "EFI/BOOT/grubx64.efi": "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed",
}
#: Debian's signed GRUB reads this file, on hosts of all systems.
_MENU = "EFI/debian/grub.cfg"


@dataclass(frozen=True)
class Uefi:
    """How a VM host boots by UEFI.

    root: from :func:`root`.  grub: folder of GRUB's menu in /boot.
    secure_boot: with Secure Boot; then moks: Machine Owner Keys, db: keys of the system's vendor (certificates, DER).
    tpm: with a TPM 2.0.
    """

    root: Path
    grub: str = "grub"
    secure_boot: bool = False
    moks: tuple[bytes, ...] = ()
    db: tuple[bytes, ...] = ()
    tpm: bool = False

    @property
    def machine(self) -> str:
        """QEMU's further options of the machine: Secure Boot's variables are protected by system management mode."""
        return ",smm=on" if self.secure_boot else ""

    def argv(self, folder: Path) -> list[str]:
        """QEMU's options for the firmware and the disk of the host in ``folder``."""
        code = self.root / "usr/share/OVMF" / f"OVMF_CODE_4M{'.secboot' if self.secure_boot else ''}.fd"
        protection = ["-global", "driver=cfi.pflash01,property=secure,value=on"] if self.secure_boot else []
        disk = f"file={escape(folder / 'esp.raw')},if=none,id=esp,format=raw,cache=unsafe,discard=unmap"
        return [
            *protection,
            *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={escape(code)}"),
            *("-drive", f"if=pflash,format=raw,unit=1,file={escape(folder / 'VARS.fd')}"),
            *("-drive", disk, "-device", "virtio-blk-pci,drive=esp"),
            *(_TPM if self.tpm else ()),
        ]

    def start_tpm(self, folder: Path) -> None:
        """Start the TPM of the host in ``folder``; it ends with the host's machine."""
        (folder / "tpm").mkdir(exist_ok=True)
        (folder / _TPM_SOCKET).unlink(missing_ok=True)
        argv = [run.which("swtpm"), "socket", "--tpm2", "--tpmstate", "dir=tpm", "--terminate"]
        argv += ["--ctrl", f"type=unixio,path={_TPM_SOCKET}"]
        run.spawn(argv, doing="start the TPM", log=folder / "tpm.log", cwd=folder)
        end = time.monotonic() + 10
        while not (folder / _TPM_SOCKET).is_socket():
            if time.monotonic() > end:
                raise LabUnavailable("swtpm did not start", hint=f"See {folder / 'tpm.log'}")
            time.sleep(0.05)

    def make_variables(self, path: Path) -> None:
        """Write the firmware's variables; ``moks`` and ``db`` are enrolled."""
        ovmf = self.root / "usr/share/OVMF"
        if not self.secure_boot:
            shutil.copyfile(ovmf / "OVMF_VARS_4M.fd", path)
            return
        argv = ["-i", str(ovmf / "OVMF_VARS_4M.ms.fd"), "-o", str(path)]
        with tempfile.TemporaryDirectory(prefix="gdsdeploy-keys-") as folder:
            for option, certificates in {"--add-mok": self.moks, "--add-db": self.db}.items():
                for certificate in dict.fromkeys(certificates):
                    file = Path(folder) / f"{hashlib.sha256(certificate).hexdigest()}.der"
                    file.write_bytes(certificate)
                    argv += [option, _OWNER, str(file)]
            self._python("virt-fw-vars", argv, doing="enrol the lab's keys")

    def change_variables(self, path: Path, options: Iterable[str]) -> None:
        """Change the variables of a host that is off; options: virt-fw-vars'."""
        new = path.with_name(f".{path.name}.part")
        self._python("virt-fw-vars", ["-i", str(path), "-o", str(new), *options], doing="change the host's firmware")
        new.replace(path)

    def make_disk(self, path: Path) -> None:
        """Write the disk with the EFI system partition."""
        sectors = DISK_BYTES // SECTOR
        table, copy = partition_tables(sectors, OFFSET // SECTOR)
        with path.open("wb") as stream:
            stream.write(table)
            stream.truncate(DISK_BYTES)
            stream.seek(DISK_BYTES - len(copy))
            stream.write(copy)
        size = (_end(sectors) + 1) * SECTOR - OFFSET
        argv = [run.which("mkfs.vfat"), "-F", "32", "-i", guest.ESP_UUID.replace("-", ""), "-n", "ESP"]
        argv += ["--offset", str(OFFSET // SECTOR), str(path), str(size // 1024)]
        run.run(argv, doing="make the EFI system partition")
        with tempfile.TemporaryDirectory(prefix="gdsdeploy-esp-") as folder:
            tree = Path(folder)
            for name, source in _LOADERS.items():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.root / source, tree / name)
            (tree / _MENU).parent.mkdir(parents=True)
            (tree / _MENU).write_text(
                f"search.fs_uuid {guest.ROOT_UUID} root\nset prefix=($root)'/boot/{self.grub}'\n"
                "configfile $prefix/grub.cfg\n"
            )
            copying = ["mcopy", "-s", "-Q", "-i", f"{path}@@{OFFSET}", str(tree / "EFI"), "::/"]
            run.run(copying, doing="write the boot loaders", env={"MTOOLS_SKIP_CHECK": "1"})

    def _python(self, program: str, arguments: Iterable[str], *, doing: str) -> None:
        """Run a Python program of the packages with the packages' own Python."""
        system = self.root / "usr"
        interpreter = next(iter(sorted((system / "bin").glob("python3.[0-9]*"))))
        argv = [*emulator.loaded(self.root, interpreter.name), "-B", "-s", str(system / "bin" / program), *arguments]
        env = {"PYTHONHOME": str(system), "PYTHONPATH": str(system / "lib/python3/dist-packages")}
        run.run(argv, doing=doing, env=env)


def requirements(tpm: bool) -> tuple[Requirement, ...]:
    """What VM hosts with UEFI need on this machine; tpm: with a TPM."""
    return (*_REQUIREMENTS, *((_TPM_REQUIREMENT,) if tpm else ()))


def root(cache: Path, archive: Archive) -> Path:
    """Folder below ``cache`` with the files of ``PACKAGES``, made when missing.

    Raises LabUnavailable where the archive doesn't provide them.
    """
    what = "UEFI firmware and boot loaders"
    try:
        return images.unpacked(cache, archive, RELEASE, PACKAGES, name="uefi", what=what, title=what)
    except ProgramFailed as error:
        hint = f"The archive needs Debian {RELEASE}'s {', '.join(PACKAGES)}; or use --firmware bios"
        raise LabUnavailable(error.message, hint=hint) from error


def partition_tables(sectors: int, first: int) -> tuple[bytes, bytes]:
    """The GPT of a disk of ``sectors`` with an EFI system partition from sector ``first`` on: its start, its end."""
    last = _end(sectors)
    entry = _ESP_TYPE.bytes_le + _PARTITION_GUID.bytes_le + struct.pack("<QQQ", first, last, 0)
    entries = (entry + "EFI system partition".encode("utf-16-le").ljust(72, b"\0")).ljust(_ENTRIES * 128, b"\0")

    def header(own: int, other: int, table: int) -> bytes:
        places = struct.pack("<QQQQ16sQ", own, other, _TABLE + 2, last, _DISK_GUID.bytes_le, table)
        rest = places + struct.pack("<III", _ENTRIES, 128, zlib.crc32(entries))
        plain = struct.pack("<8sIIII", b"EFI PART", 0x10000, 92, 0, 0) + rest
        checked = struct.pack("<8sIIII", b"EFI PART", 0x10000, 92, zlib.crc32(plain), 0) + rest
        return checked.ljust(SECTOR, b"\0")

    # Programs that don't know GPT see one partition of type 0xEE.
    everything = struct.pack("<B3sB3sII", 0, b"\0\2\0", 0xEE, b"\xff" * 3, 1, sectors - 1)
    protective = bytes(446) + everything + bytes(48) + b"\x55\xaa"
    end = header(sectors - 1, 1, sectors - 1 - _TABLE)
    return protective + header(1, sectors - 1, 2) + entries, entries + end


def _end(sectors: int) -> int:
    """The last sector that partitions may have, aligned to a MiB."""
    return (sectors - 1 - _TABLE) // 2048 * 2048 - 1


def escape(path: Path | os.PathLike[str]) -> str:
    """``path`` in QEMU's comma-separated options."""
    return str(path).replace(",", ",,")
