"""Which probes of the driver one unit depends on.  What they answer for real drivers is tried in tests/preflight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gdsdeploy.host.build.conftests import probe_settings
from gdsdeploy.host.build.kbuild import Log
from gdsdeploy.host.build.versions import compile_unit
from gdsdeploy.host.errors import BuildError
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.kmod.tree import Tree
from gdsdeploy.host.process import Output

CONFTEST = """\
test_header_preamble() {
    echo "#if defined(NV_LINUX_ALWAYS_H_PRESENT)"
}
compile_test() {
    case "$1" in
        set_memory_uc)
            CODE="
            #if defined(NV_ASM_SET_MEMORY_H_PRESENT)
            #include <asm/set_memory.h>
            #endif
            void conftest_set_memory_uc(void) { set_memory_uc(); }"
            compile_check_conftest "$CODE" "NV_SET_MEMORY_UC_PRESENT" "" "functions"
        ;;
        far_away)
            CODE="
            #if defined(NV_LINUX_FAR_H_PRESENT)
            #include <linux/far.h>
            #endif"
            compile_check_conftest "$CODE" "NV_FAR_AWAY_ARGUMENT_COUNT" "" "functions"
        ;;
        is_export_symbol_present_*)
            export_symbol_present_conftest $(echo $1 | cut -f5- -d_)
        ;;
    esac
}
"""
FILES = {
    "conftest.sh": CONFTEST,
    "header-presence-tests.mk": "NV_HEADER_PRESENCE_TESTS = \\\n  asm/set_memory.h \\\n  linux/always.h \\\n"
    "  linux/far.h \\\n  linux/own.h\n",
    "nvidia/nvidia.Kbuild": "NV_CONFTEST_FUNCTION_COMPILE_TESTS += set_memory_uc\n"
    "NV_CONFTEST_FUNCTION_COMPILE_TESTS += far_away\n"
    "NV_CONFTEST_SYMBOL_COMPILE_TESTS += is_export_symbol_present_kmalloc\n"
    "NV_CONFTEST_SYMBOL_COMPILE_TESTS += is_export_symbol_present_kfree\n",
    "nvidia/nv-p2p.c": '#include "nv-linux.h"\n#include <linux/pci.h>\nint x;\n',
    "nvidia/other.c": "#if NV_FAR_AWAY_ARGUMENT_COUNT == 2\n#endif\n",
    "common/inc/nv-linux.h": '#if defined(NEVER)\n#  include "nv-memory.h"\n#endif\n',
    "common/inc/nv-memory.h": "#if defined(NV_SET_MEMORY_UC_PRESENT) && NV_IS_EXPORT_SYMBOL_PRESENT_kmalloc\n#endif\n"
    "#if defined(NV_LINUX_OWN_H_PRESENT)\n#endif\n",
}


def tree(folder: Path, **changes: str) -> str:
    for name, text in {**FILES, **changes}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def probes(folder: str, unit: str = "nvidia/nv-p2p.c") -> dict[str, str]:
    return dict(word.split("=", 1) for word in probe_settings(folder, unit))


def test_what_a_file_could_include_under_any_condition_counts(tmp_path: Path) -> None:
    assert probes(tree(tmp_path)) == {
        "NV_CONFTEST_FUNCTION_COMPILE_TESTS": "set_memory_uc",
        "NV_CONFTEST_SYMBOL_COMPILE_TESTS": "is_export_symbol_present_kmalloc",
        # Its own, that of the chosen probe, and that of every probe.
        "NV_HEADER_PRESENCE_TESTS": "asm/set_memory.h linux/always.h linux/own.h",
    }


def test_names_that_are_put_together_count_by_how_they_begin(tmp_path: Path) -> None:
    pasted = "#define EXPORTED(name) NV_IS_EXPORT_SYMBOL_PRESENT_##name\n#if EXPORTED(kfree)\n#endif\n"
    result = probes(tree(tmp_path, **{"common/inc/nv-memory.h": pasted}))
    assert result["NV_CONFTEST_FUNCTION_COMPILE_TESTS"] == ""
    assert result["NV_CONFTEST_SYMBOL_COMPILE_TESTS"] == (
        "is_export_symbol_present_kmalloc is_export_symbol_present_kfree"
    )


def test_another_unit_has_other_probes(tmp_path: Path) -> None:
    result = probes(tree(tmp_path), "nvidia/other.c")
    assert result["NV_CONFTEST_FUNCTION_COMPILE_TESTS"] == "far_away"
    assert result["NV_CONFTEST_SYMBOL_COMPILE_TESTS"] == ""
    assert result["NV_HEADER_PRESENCE_TESTS"] == "linux/always.h linux/far.h"


@pytest.mark.parametrize("lost", ["conftest.sh", "nvidia/nvidia.Kbuild"])
def test_a_tree_that_is_written_otherwise_is_probed_whole(tmp_path: Path, lost: str) -> None:
    assert probe_settings(tree(tmp_path, **{lost: "# nothing of the kind\n"}), "nvidia/nv-p2p.c") == []


def test_headers_are_all_probed_where_their_list_is_not_known(tmp_path: Path) -> None:
    assert "NV_HEADER_PRESENCE_TESTS" not in probes(tree(tmp_path, **{"header-presence-tests.mk": "X = y\n"}))


def test_files_that_include_each_other_end(tmp_path: Path) -> None:
    loop = {"common/inc/nv-linux.h": '#include "nv-memory.h"\n', "common/inc/nv-memory.h": '#include "nv-linux.h"\n'}
    assert probes(tree(tmp_path, **loop))["NV_CONFTEST_FUNCTION_COMPILE_TESTS"] == ""


class Compiler:
    """Answers for make: fails unless everything is probed, as for a tree whose probes were misread."""

    def __init__(self, *, broken: bool) -> None:
        self.path = "/log"
        self.broken = broken
        self.argvs: list[list[str]] = []

    def run(self, argv: Sequence[str], cwd: str, env: object = None) -> Output:
        self.argvs.append(list(argv))
        partly = any(word.startswith("NV_CONFTEST_FUNCTION_COMPILE_TESTS=") for word in argv)
        if partly or self.broken:
            return Output(2, "", "nv-p2p.c:1:1: error: something is not defined\n")
        command = Path(cwd) / "nvidia" / ".nv-p2p.o.cmd"
        command.write_text("#SYMVER nvidia_p2p_get_pages 0x0000002a\n")
        return Output(0, "", "")


class Headers:
    release, versioned = "6.12.94", True

    def headers(self) -> str:
        return "/headers"


def unit(folder: str, compiler: Compiler) -> dict[str, Any]:
    source = Tree(folder, "550.163.01", "open", "nvidia")
    kernel, log = cast("Kernel", Headers()), cast("Log", compiler)
    return {name: entry.crc for name, entry in compile_unit(kernel, source, folder, log, []).items()}


def test_probes_that_were_misread_cost_time_and_no_answer(tmp_path: Path) -> None:
    compiler = Compiler(broken=False)
    assert unit(tree(tmp_path), compiler) == {"nvidia_p2p_get_pages": 42}
    assert [any("COMPILE_TESTS" in word for word in argv) for argv in compiler.argvs] == [True, False]
    assert all(argv[-1] == "nvidia/nv-p2p.o" for argv in compiler.argvs)


def test_what_does_not_compile_with_all_probes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="something is not defined"):
        unit(tree(tmp_path), Compiler(broken=True))
