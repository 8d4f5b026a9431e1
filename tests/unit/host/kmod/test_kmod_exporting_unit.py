"""The driver's exports from a compilation of one unit.  What real compilers do with it is tried in tests/kmod."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gdsdeploy.host.build.kbuild import Log, compile_unit
from gdsdeploy.host.errors import BuildError
from gdsdeploy.host.kmod.files import Tree
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.process import Output


class Compiler(Log):
    """Answers for make."""

    def __init__(self, path: Path, *, broken: bool) -> None:
        super().__init__(str(path))
        self.broken = broken

    def run(self, argv: Sequence[str], cwd: str, env: object = None) -> Output:
        assert argv[-1] == "nvidia/nv-p2p.o"
        if self.broken:
            return Output(2, "", f"{cwd}/nv-p2p.c:1:1: error: something is not defined\n")
        (Path(cwd) / "nvidia" / ".nv-p2p.o.cmd").write_text("#SYMVER nvidia_p2p_get_pages 0x0000002a\n")
        return Output(0, "", "")


class Headers:
    release, versioned = "6.12.94", True

    def headers(self) -> str:
        return "/headers"


def unit(folder: Path, *, broken: bool) -> dict[str, Any]:
    (folder / "nvidia").mkdir()
    source = Tree(str(folder), "550.163.01", "open", "nvidia")
    kernel, log = cast("Kernel", Headers()), Compiler(folder / "log", broken=broken)
    return {name: entry.crc for name, entry in compile_unit(kernel, source, str(folder), log, []).items()}


def test_the_units_symbol_versions_are_the_drivers(tmp_path: Path) -> None:
    assert unit(tmp_path, broken=False) == {"nvidia_p2p_get_pages": 42}


def test_a_unit_that_does_not_compile_is_an_error_with_its_first_line(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"cannot compile nvidia/nv-p2p.o .*: nv-p2p.c:1:1: error: something is not"):
        unit(tmp_path, broken=True)
