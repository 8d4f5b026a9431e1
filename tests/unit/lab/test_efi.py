"""A VM host's UEFI firmware, variables and EFI system partition."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import ProgramFailed
from gdsdeploy.files import folders
from gdslab import efi, images, qemu
from gdslab.archive import Archive
from gdslab.efi import Uefi
from gdslab.errors import LabUnavailable
from gdslab.host import HostRecord

SECTORS = efi.DISK_BYTES // efi.SECTOR


def argv(uefi: Uefi) -> list[str]:
    folder = Path("/l/gpu1")
    host = qemu.VmHost(HostRecord("gpu1", "vm", 22011, "/c/disk.qcow2"), folder, folder / "ssh_config", "tcg")
    return qemu.qemu_argv(host, "tcg", None, uefi)


def test_machine_with_secure_boot() -> None:
    words = argv(Uefi(Path("/c/a,b"), secure_boot=True))
    assert words[words.index("-machine") + 1] == "q35,sata=off,smbus=off,smm=on"
    assert words[words.index("-global") + 1] == "driver=cfi.pflash01,property=secure,value=on"
    drives = [word for word in words if word.startswith("if=pflash") or "id=esp" in word]
    assert drives == [
        "if=pflash,format=raw,unit=0,readonly=on,file=/c/a,,b/usr/share/OVMF/OVMF_CODE_4M.secboot.fd",
        "if=pflash,format=raw,unit=1,file=/l/gpu1/VARS.fd",
        "file=/l/gpu1/esp.raw,if=none,id=esp,format=raw,cache=unsafe,discard=unmap",
    ]
    assert words.index("virtio-blk-pci,drive=root,share-rw=on") < words.index("virtio-blk-pci,drive=esp"), (
        "the root disk is vda"
    )
    assert words[words.index("-qmp") + 1] == "unix:monitor.sock,server=on,wait=off"


def test_machine_without_it_needs_no_system_management_mode() -> None:
    words = argv(Uefi(Path("/c")))
    assert words[words.index("-machine") + 1] == "q35,sata=off,smbus=off"
    assert "-global" not in words
    assert any(word.endswith("/OVMF_CODE_4M.fd") for word in words)


def test_partition_table() -> None:
    start, end = efi.partition_tables(SECTORS, 2048)
    assert (len(start), len(end)) == (34 * 512, 33 * 512)
    assert start[510:512] == b"\x55\xaa"
    assert struct.unpack_from("<B3xII", start, 446 + 4) == (0xEE, 1, SECTORS - 1)
    headers = {1: start[512:1024], SECTORS - 1: end[-512:]}
    for place, header in headers.items():
        magic, _, size, check, _, own, other = struct.unpack_from("<8sIIIIQQ", header)
        assert (magic, size, own) == (b"EFI PART", 92, place)
        assert other == SECTORS - place
        assert zlib.crc32(header[:16] + bytes(4) + header[20:92]) == check
        table, entries, each, entries_check = struct.unpack_from("<QIII", header, 72)
        assert (entries, each) == (128, 128)
        block = start[1024:] if place == 1 else end[:-512]
        assert table == (2 if place == 1 else SECTORS - 33)
        assert zlib.crc32(block) == entries_check
    first, last = struct.unpack_from("<QQ", start, 1024 + 32)
    assert first == 2048
    assert (last + 1) % 2048 == 0
    assert last < SECTORS - 33


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in (*efi._LOADERS.values(), "usr/share/OVMF/OVMF_VARS_4M.fd", "usr/share/OVMF/OVMF_VARS_4M.ms.fd"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(Path(name).name)
    (root / "usr/bin").mkdir()
    (root / "usr/bin/python3.13").touch()
    return root


def test_variables_are_the_hosts_own(tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Uefi(packages).make_variables(tmp_path / "plain.fd")
    assert (tmp_path / "plain.fd").read_text() == "OVMF_VARS_4M.fd"
    commands: list[tuple[list[str], dict[str, str]]] = []

    def run(argv: list[str], *, doing: str, env: dict[str, str]) -> None:
        files = {word: Path(word).read_bytes() for word in argv if word.endswith(".der")}
        commands.append(([str(files.get(word, word)) for word in argv], env))

    monkeypatch.setattr(efi.run, "run", run)
    Uefi(packages, secure_boot=True, moks=(b"one", b"two", b"one"), db=(b"vendor",)).make_variables(tmp_path / "v.fd")
    ((command, env),) = commands
    assert command[-9:] == [
        *("--add-mok", efi._OWNER, "b'one'", "--add-mok", efi._OWNER, "b'two'"),
        *("--add-db", efi._OWNER, "b'vendor'"),
    ]
    assert env["PYTHONHOME"] == str(packages / "usr"), "the packages' Python, not this machine's"


def test_an_archive_without_them_is_one_error(tmp_path: Path, mirror: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    def cached_folder(directory: Path, name: str, make: folders.Make, *, what: str) -> Path:
        make(directory)
        return directory / name

    def run(argv: list[str], **_: Any) -> None:
        words = " ".join(argv)
        assert "--include=grub-efi-amd64-signed,ovmf,python3-virt-firmware,shim-signed" in words
        raise ProgramFailed("cannot fetch it")

    monkeypatch.setattr(images.folders, "cached_folder", cached_folder)
    monkeypatch.setattr(efi.run, "run", run)
    monkeypatch.setattr(efi.run, "as_root", list)
    with pytest.raises(LabUnavailable, match="cannot fetch it") as caught:
        efi.root(tmp_path, mirror)
    assert "--firmware bios" in (caught.value.hint or "")
