"""Which probes and units one run of the compiler takes, and what their objects may import.

tests/preflight compiles; the real driver's units are in benchmarks/kmod/preflight.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gdsdeploy.host.build import probes, units
from gdsdeploy.host.build.context import BuildContext
from gdsdeploy.host.build.kbuild import Log
from gdsdeploy.host.errors import BuildError
from tests.unit.host.kmod.kmod_elf import Writer


def test_a_probe_is_cut_after_its_last_header_and_the_conditions_around_it() -> None:
    text = (
        "#if defined(A)\n#include <a.h>\n#if B\n#include <b.h>\n#endif\n#endif\nvoid f(void) {}\n#if C\nint c;\n#endif"
    )
    head, body = probes._cut(text)
    assert head.splitlines()[-1] == "#endif"
    assert head.count("#endif") == 2
    assert body.splitlines()[0] == "void f(void) {}"
    assert probes._cut("int a;\n") == ("", "int a;")


@pytest.mark.parametrize(
    ("bodies", "sizes"),
    [
        (["void conftest_a(void) { a(); }", "void conftest_b(void) { a(); }"], [2]),
        # What one declares, another one may only see undeclared.
        (["int pnv(void) { return 0; }", "void conftest_pnv(void) { pnv(); }"], [1, 1]),
        (["static struct a *funcs;", "static struct b *funcs;", "int x(void) { return 0; }"], [2, 1]),
        (["#if !defined(A)\n#endif\nint a;", "#if !defined(A)\n#endif\ntypeof(x) b;"], [2]),
    ],
)
def test_probes_of_a_batch_dont_see_each_other(bodies: list[str], sizes: list[int]) -> None:
    batches = list(probes._batches([("", body) for body in bodies]))
    assert [len(batch) for batch in batches] == sizes
    assert sorted(body for batch in batches for _, body in batch) == sorted(bodies)


FILES = {
    "common/inc/nv-linux.h": "#include <linux/mm.h>\n",
    "nvidia/a.h": '#include "nv-linux.h"\n#include <linux/pci.h>\n',
    "nvidia/nv.c": '#include "a.h"\nstatic int twice;\n',
    "nvidia/os.c": '#include "nv-linux.h"\n#include <linux/pci.h>\nstatic int twice;\nstatic int once(void)\n{\n}\n',
    "nvidia/far.c": '#include "nv-linux.h"\n#include "made.h"\n',
    "nvidia/sources.Kbuild": "A = 1\nNVIDIA_SOURCES += nvidia/nv.c\nNVIDIA_SOURCES += nvidia/os.c\n"
    "NVIDIA_SOURCES += nvidia/far.c\nNVIDIA_SOURCES += nvidia/absent.c\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> str:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


def test_units_are_told_apart_by_the_kernels_headers(tree: str) -> None:
    assert units._units(tree, "nvidia") == ["nvidia/nv.c", "nvidia/os.c", "nvidia/far.c"]
    headers = {unit: set(units._kernel_headers(tree, unit)) for unit in units._units(tree, "nvidia")}
    assert headers["nvidia/nv.c"] == headers["nvidia/os.c"] == {"linux/mm.h", "linux/pci.h"}
    assert headers["nvidia/far.c"] == {"linux/mm.h", "made.h"}


def test_units_that_define_the_same_name_or_lack_a_header_are_compiled_apart(tree: str) -> None:
    assert list(units._batches(tree, ["nvidia/nv.c", "nvidia/os.c"])) == [["nvidia/nv.c"], ["nvidia/os.c"]]
    assert list(units._batches(tree, ["nvidia/nv.c", "nvidia/far.c"])) == [["nvidia/nv.c", "nvidia/far.c"]]
    assert list(units._with_made_headers(tree, units._units(tree, "nvidia"), "nvidia/nv.c")) == ["nvidia/far.c"]


def test_what_nothing_exports_is_named(tmp_path: Path) -> None:
    unit, core = tmp_path / "nv.o", tmp_path / "nvidia/nv-kernel.o_binary"
    core.parent.mkdir()
    for path, needed in ((unit, ("kmalloc", "rm_init", "__this_module")), (core, ("os_alloc",))):
        elf = Writer()
        text = elf.section(".text", b"\0")
        for name in ("os_alloc", "__export_symbol_nv_get") if path == unit else ("rm_init",):
            elf.symbol(name, text)
        for name in needed:
            elf.symbol(name, 0)
        path.write_bytes(elf.bytes())
    uvm = tmp_path / "uvm.o"
    elf = Writer()
    elf.symbol("nv_get", 0)
    uvm.write_bytes(elf.bytes())

    def check(*exports: str) -> None:
        kernel = SimpleNamespace(symvers=lambda: dict.fromkeys(exports), release="6.1")
        tree = SimpleNamespace(path=str(tmp_path), version="550.1", flavour="open")
        context = SimpleNamespace(request=SimpleNamespace(tree=tree, kernel=kernel))
        objects = {"nvidia": [str(unit)], "nvidia-uvm": [str(uvm)]}
        units._check_imports(cast("BuildContext", context), objects, cast("Log", SimpleNamespace(path="log")))

    check("kmalloc")
    with pytest.raises(BuildError, match="nvidia needs kmalloc, which nothing exports"):
        check("kfree")
