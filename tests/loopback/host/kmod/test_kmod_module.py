from __future__ import annotations

import gzip
import lzma
import os
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from gdsdeploy.host.errors import ElfError
from gdsdeploy.host.kmod import driver, files, module
from gdsdeploy.host.kmod.module import name_of, read_module
from tests.unit.host.kmod.kmod_elf import SIGNATURE, Writer, module_bytes, write_module

EXPORTS = {"nvidia_p2p_get_pages": (0x5B3F3E79, True), "nvUvm": (0xDEADBEEF, False), "nvidia_p2p_put_pages": (7, True)}


def pack(data: bytes, suffix: str) -> bytes:
    if suffix == ".zst":
        assert shutil.which("zstd"), "the development machine needs the zstd program"
        return subprocess.run(["zstd", "-qc"], input=data, stdout=subprocess.PIPE, check=True).stdout
    if suffix == ".xz":
        return lzma.compress(data)
    return gzip.compress(data) if suffix == ".gz" else data


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(ElfError) as caught:
        read_module(str(path))
    assert str(path) in caught.value.message
    return caught.value.message


def test_modinfo_is_read(tmp_path: Path) -> None:
    info = [
        ("version", "550.163.01"),
        ("srcversion", "ABC"),
        ("intree", "Y"),
        ("gdsdeploy_driver", "550.163.01"),
        ("gdsdeploy_tree", "sha256:00"),
    ]
    path = write_module(tmp_path / "a.ko", "nvidia_fs", license="GPL", depends="nvidia,ib-core", info=info)
    result = read_module(str(path))
    assert result.name == "nvidia_fs"
    assert result.vermagic == "6.12.94+deb13-amd64 SMP preempt mod_unload modversions "
    assert (result.version, result.srcversion, result.license) == ("550.163.01", "ABC", "GPL")
    assert result.depends == ["nvidia", "ib_core"]
    assert result.intree is True
    assert result.provenance == {"driver": "550.163.01", "tree": "sha256:00"}
    assert result.machine == "x86_64"
    assert result.signature is None


@pytest.mark.parametrize("layout", ["absolute", "rodata", "kcrctab"])
def test_export_versions_are_the_value_not_the_place(tmp_path: Path, layout: str) -> None:
    path = write_module(tmp_path / "nvidia.ko", exports=EXPORTS, layout=layout)
    assert read_module(str(path)).exports == EXPORTS


def test_gpl_only_exports_by_flags_and_without_versions(tmp_path: Path) -> None:
    path = write_module(tmp_path / "nvidia.ko", exports=EXPORTS, layout="flags", vermagic="7.2.12 SMP mod_unload ")
    assert read_module(str(path)).exports == {name: (None, gpl) for name, (_, gpl) in EXPORTS.items()}


def test_imports_carry_their_version_or_none(tmp_path: Path) -> None:
    path = write_module(tmp_path / "a.ko", imports={"kfree": 5, "nvidia_p2p_get_pages": None}, weak=["kfree"])
    result = read_module(str(path))
    assert result.imports == {"module_layout": 0x11111111, "kfree": 5, "nvidia_p2p_get_pages": None}
    assert result.weak == ["kfree"]


def test_extended_versions_are_read_too(tmp_path: Path) -> None:
    long = "x" * 80
    path = write_module(tmp_path / "a.ko", imports={"kfree": 5}, extended={long: 0xFFFFFFFF})
    assert read_module(str(path)).imports[long] == 0xFFFFFFFF


def test_aarch64(tmp_path: Path) -> None:
    assert read_module(str(write_module(tmp_path / "a.ko", machine=183))).machine == "aarch64"


def test_a_signature_is_seen(tmp_path: Path) -> None:
    path = write_module(tmp_path / "a.ko", signature=SIGNATURE)
    assert read_module(str(path)).signature == {"format": "PKCS#7", "size": len(SIGNATURE) - 40}


@pytest.mark.parametrize("suffix", ["", ".xz", ".gz", ".zst"])
def test_compressed_modules_read_the_same(tmp_path: Path, suffix: str) -> None:
    plain = module_bytes(exports=EXPORTS)
    path = tmp_path / ("nvidia.ko" + suffix)
    path.write_bytes(pack(plain, suffix))
    result = read_module(str(path))
    assert result.exports == EXPORTS
    assert result.path == str(path)


@pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst"])
@pytest.mark.parametrize("data", [b"", b"garbage" * 100], ids=["empty", "garbage"])
def test_damaged_compression_is_one_clear_error(tmp_path: Path, suffix: str, data: bytes) -> None:
    refusal(tmp_path / ("nvidia.ko" + suffix), data)


@pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst"])
def test_truncated_compression_is_one_clear_error(tmp_path: Path, suffix: str) -> None:
    packed = pack(module_bytes(exports=EXPORTS), suffix)
    refusal(tmp_path / ("nvidia.ko" + suffix), packed[: len(packed) // 2])


@pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst"])
def test_a_decompression_bomb_stops_at_the_limit(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / ("a.ko" + suffix)
    path.write_bytes(pack(bytes(48 << 20), suffix))
    assert path.stat().st_size < 1 << 18
    tracemalloc.start()
    try:
        with pytest.raises(ElfError, match="unpacks to more than 33554432 bytes"):
            files.open_plain(str(path), limit=32 << 20)
        # Beyond MEMORY_LIMIT it is in a temporary file.
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_more_constants_than_memory(tmp_path: Path) -> None:
    """Section headers are cheap: thousands of them may name the same large piece of the file."""
    elf = Writer()
    elf.section(".modinfo", b"license=GPL\0name=nvidia_fs\0")
    for _ in range(40):
        elf.section(".rodata", bytes(1 << 20))
    (tmp_path / "a.ko").write_bytes(elf.bytes())
    with pytest.raises(ElfError, match="has more constants than any nvidia-fs"):
        driver.requests_of(read_module(str(tmp_path / "a.ko")))


@pytest.mark.parametrize("level", ["-1", "-19", "--ultra -22 --long=27", "--no-check", "-3 --check"])
def test_the_hosts_library_unpacks_what_the_program_packs(tmp_path: Path, level: str) -> None:
    assert files.zstd_library() is not None, "this machine needs libzstd"
    content = bytes(range(256)) * 5000 + os.urandom(400_000)
    path = tmp_path / "a.ko.zst"
    path.write_bytes(subprocess.run(["zstd", "-qc", *level.split()], input=content, capture_output=True).stdout)
    with path.open("rb") as source:
        assert b"".join(files.library_chunks(source)) == content


def test_without_the_library_the_program_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "zstd_library", lambda: None)
    path = tmp_path / "nvidia.ko.zst"
    path.write_bytes(pack(module_bytes(exports=EXPORTS), ".zst"))
    assert read_module(str(path)).exports == EXPORTS
    refusal(tmp_path / "a.ko.zst", b"garbage" * 100)


def test_what_is_no_module_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.ko"
    assert "is truncated" in refusal(path, b"\x7fELF")
    assert "is not an ELF file" in refusal(path, b"#!/bin/sh\n" * 20)
    good = module_bytes()
    assert "64-bit little-endian" in refusal(path, good[:4] + b"\x01" + good[5:])
    assert "not a kernel module" in refusal(path, good[:16] + b"\x02" + good[17:])
    assert "is for machine 21" in refusal(path, good[:18] + b"\x15" + good[19:])
    assert "no .modinfo" in refusal(path, Writer().bytes())
    with pytest.raises(ElfError, match="cannot be read: No such file"):
        read_module(str(tmp_path / "missing.ko"))


def test_every_truncation_is_an_error_or_reads_whole(tmp_path: Path) -> None:
    data = module_bytes(exports=EXPORTS, imports={"kfree": 5})
    for size in range(0, len(data), 7):
        assert refusal(tmp_path / "a.ko", data[:size])


def test_a_symbol_version_outside_its_section_is_an_error(tmp_path: Path) -> None:
    elf = Writer()
    elf.section(".modinfo", b"license=GPL\0")
    place = elf.section("__kcrctab", b"\0" * 4)
    elf.symbol("__crc_a", place, 2)
    assert "outside section __kcrctab" in refusal(tmp_path / "a.ko", elf.bytes())


def test_overlapping_names_cannot_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SYMBOLS_LIMIT", 10)
    imports: dict[str, int | None] = {f"s{number}": None for number in range(12)}
    assert "more than 10 imports" in refusal(tmp_path / "a.ko", module_bytes(imports=imports))
    elf = Writer()
    elf.section(".modinfo", b"license=GPL\0")
    elf.symbol("x" * 2000)
    assert "has no proper name" in refusal(tmp_path / "b.ko", elf.bytes())


def test_names_of_files() -> None:
    assert name_of("/lib/modules/x/updates/dkms/nvidia-current-open.ko.xz") == "nvidia_current_open"
    assert name_of("nvidia-fs.ko") == "nvidia_fs"
