from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from gdsdeploy.host.errors import SymversError
from gdsdeploy.host.kmod.kernel import Export, format_line, from_cmd_files, read_symvers, write_symvers
from gdsdeploy.host.kmod.module import read_module
from tests.unit.host.kmod.kmod_elf import write_module

EVIDENCE = Path(__file__).parents[3] / "evidence" / "kmod"


def test_a_drivers_symvers() -> None:
    result = read_symvers(str(EVIDENCE / "nvidia-550.163.01.kernel-6.1.0-50.Module.symvers"))
    assert len(result) == 90
    assert result["nvidia_p2p_get_pages"] == Export(0x5B3F3E79, "/build/nv550/nvidia", True)


def test_the_bogus_versions_of_the_stock_script_are_read_as_what_they_are() -> None:
    """Its offsets stand where versions belong; only a comparison with the module can tell."""
    result = read_symvers(str(EVIDENCE / "nv.symvers.bogus-crc"))
    assert result["nvidia_p2p_get_pages"].crc == 0x14
    assert not result["nvidia_p2p_get_pages"].gpl


def test_what_is_written_for_a_module_reads_back_as_its_exports(tmp_path: Path) -> None:
    exports = {"nvidia_p2p_get_pages": (0x5B3F3E79, True), "a": (0, False)}
    module = read_module(str(write_module(tmp_path / "nvidia.ko", exports=exports)))
    path = tmp_path / "Module.symvers"
    path.write_text(write_symvers(module, "/build/nvidia"))
    assert read_symvers(str(path)) == {
        "nvidia_p2p_get_pages": Export(0x5B3F3E79, "/build/nvidia", True),
        "a": Export(0, "/build/nvidia", False),
    }


def test_exports_without_versions_cannot_be_written(tmp_path: Path) -> None:
    path = write_module(tmp_path / "nvidia.ko", exports={"a": (1, False)}, layout="flags", vermagic="7.2 SMP ")
    with pytest.raises(SymversError, match="exports a without a symbol version"):
        write_symvers(read_module(str(path)), "nvidia")


def test_compressed_and_older_orders(tmp_path: Path) -> None:
    lines = (
        "0x00000001\ta\tvmlinux\tEXPORT_SYMBOL\n"  # before 5.4
        "0x00000002\tb\tUSB\tdrivers/usb/x\tEXPORT_SYMBOL_GPL\n"  # 5.4, 5.5
        "0x00000003\tc\tdrivers/usb/x\tEXPORT_SYMBOL_GPL\tUSB\n\n"
    )
    path = tmp_path / "symvers.gz"
    path.write_bytes(gzip.compress(lines.encode()))
    assert read_symvers(str(path)) == {
        "a": Export(1, "vmlinux", False),
        "b": Export(2, "drivers/usb/x", True, "USB"),
        "c": Export(3, "drivers/usb/x", True, "USB"),
    }


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "0x1\ta",
        "0xzz\ta\tb\tEXPORT_SYMBOL\t",
        "0x1ffffffff\ta\tb\tEXPORT_SYMBOL\t",
        "0x1\ta\tb\tc\td",
        "-1\ta\tb\tEXPORT_SYMBOL",
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "Module.symvers"
    path.write_text(format_line("a", Export(1, "vmlinux", False)) + line + "\n")
    with pytest.raises(SymversError, match=r"Module\.symvers:2: "):
        read_symvers(str(path))


def test_endless_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "Module.symvers"
    path.write_text("0x1\t" + "a" * 10000)
    with pytest.raises(SymversError, match="larger than any real"):
        read_symvers(str(path))


def test_versions_from_compiling_one_unit() -> None:
    text = "savedcmd_x := gcc …\n\n#SYMVER nvidia_p2p_get_pages 0x5b3f3e79\n#SYMVER b 0x00000002\n# SYMVER no 0x3\n"
    assert from_cmd_files([text], "nvidia") == {
        "nvidia_p2p_get_pages": Export(0x5B3F3E79, "nvidia", True),
        "b": Export(2, "nvidia", True),
    }
