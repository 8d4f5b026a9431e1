"""What a failed build says of the sources, and what of the machine; make, its shell and what they meet are real."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gdsdeploy.board import build_progress
from gdsdeploy.host.build import kbuild, run
from gdsdeploy.host.build.kbuild import BuildContext, Log, failure_in, make_modules
from gdsdeploy.host.errors import BuildError, UnbuildableError
from gdsdeploy.preflight import trial
from gdsdeploy.preflight.record import Answer

C_ERROR = "nv.c:3:5: error: too few arguments to function"
#: What make runs → what the failure names, and whether the sources are refused.
FAILURES: dict[str, tuple[str, str, bool]] = {
    "a compiler's error": ("echo 'int x = ;' | gcc -x c -c -o /dev/null -", "<stdin>:1:9: error: ", True),
    "modpost's error": ('echo "ERROR: modpost: x undefined!"; false', "modpost: x undefined!", True),
    "a full disk": ("cat Makefile >/dev/full", "No space left on device", False),
    "a full disk, as a shell says it": ("echo x >/dev/full", "I/O error", False),
    "a full disk after an error that it caused": (f"echo '{C_ERROR}'; cat Makefile >/dev/full", "No space left", False),
    "a killed compiler": (
        "echo 'gcc: fatal error: Killed signal terminated program cc1' >&2; false",
        "Killed signal terminated program cc1",
        False,
    ),
    "a killed shell": ("sh -c 'kill -9 $$$$'", "Killed", False),
    "no compiler": ("gcc-99 -c nv.c", "gcc-99: No such file", False),
    "a crash of the compiler": (
        "echo 'nv.c:3:5: internal compiler error: Segmentation fault'; false",
        "internal",
        False,
    ),
    "sources that are quoted": (
        f"printf '%s\\n  12 | \"Killed\"\\n' '{C_ERROR}'; false",
        "too few arguments",
        True,
    ),
    "no memory": ("echo 'cc1: out of memory allocating 65536 bytes'; false", "out of memory", False),
}


class Build:
    def __init__(self, folder: Path, recipe: str) -> None:
        self.folder, self.log = str(folder), Log(str(folder / "build.log"))
        (folder / "Makefile").write_text(f"SHELL = /bin/sh\nmodules:\n\t@{recipe}\n\t@echo went on\n")
        self.kernel: Any = SimpleNamespace(headers=lambda: self.folder, release="6.12")

    def failure(self) -> BuildError:
        done = make_modules(self.log, self.kernel, self.folder, [], 1)
        assert done.status, done.stdout
        return self.log.failure("nvidia-fs doesn't build", done, self.folder)


@pytest.mark.parametrize("name", FAILURES)
def test_only_a_refusal_of_the_sources_is_a_fact_about_them(name: str, tmp_path: Path) -> None:
    recipe, words, refused = FAILURES[name]
    error = Build(tmp_path, recipe).failure()
    assert words in error.message
    assert isinstance(error, UnbuildableError) is refused
    assert (kbuild.AGAIN in error.hint) is not refused


@pytest.mark.parametrize("name", ["a compiler's error", "a full disk"])
def test_dkms_and_a_preflight_are_told_the_same(name: str, tmp_path: Path) -> None:
    """One by the end of the log, the other by the document."""
    recipe, _, refused = FAILURES[name]
    build = Build(tmp_path, recipe)
    error = build.failure()
    build.log.end_with_failure(error)
    read = failure_in(build.log.path)
    assert read is not None
    assert (type(read), read.message, read.hint) == (type(error), error.message, error.hint)
    outcome = run.Outcome("nvidia-fs", build.log.path, error=error).as_dict()
    (module,) = trial.modules_of(json.loads(json.dumps(outcome)))
    assert (module.builds, module.error) == (Answer.NO if refused else Answer.UNKNOWN, error.message)


def test_a_time_limit_is_no_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kbuild, "TIMEOUT", 0.3)
    error = Build(tmp_path, f"echo '{C_ERROR}'; sleep 30").failure()
    assert not isinstance(error, UnbuildableError)
    assert "killed after 0.3 s" in error.message


def test_a_process_that_the_kernel_killed_meanwhile_explains_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes hide it: their "no" then makes the compiler refuse what it would have taken."""
    build = Build(tmp_path, FAILURES["a compiler's error"][0])
    monkeypatch.setattr(kbuild, "_out_of_memory", lambda: "oom_kill 999999999")
    error = build.failure()
    assert not isinstance(error, UnbuildableError)
    assert "lack of memory" in error.message


#: kbuild's lines, as of several kernels → what is shown after each.
LINES = {
    "  CONFTEST: set_memory_uc": "probing the kernel's headers for nvidia.ko",
    "  CC [M]  nvidia/nv.o": "compiling nvidia.ko, unit 1 of 2",
    "  LD [M]  nvidia/nv.o": "compiling nvidia.ko, unit 1 of 2",
    "  CC [M]  /var/lib/dkms/nvidia/550.1/build/nvidia-uvm/uvm.o": "compiling nvidia-uvm.ko, unit 1",
    "  CXX [M] nvidia/libspdm.o": "compiling nvidia.ko, unit 2 of 2",
    "  CC [M]  nvidia.mod.o": "compiling nvidia.ko, unit 2 of 2",
    "  CC [M]  .module-common.o": "compiling nvidia.ko, unit 2 of 2",
    "  CC [M]  nvidia/one-more.o": "compiling nvidia.ko, unit 3",
}


def test_make_shows_its_units_while_it_runs(tmp_path: Path) -> None:
    """make waits until its latest line is shown, and fails where that doesn't happen."""
    file, seen = tmp_path / "progress", tmp_path / "seen"
    lists = {"nvidia/nvidia-sources.Kbuild": "S += nvidia/nv.c\nS += nvidia/libspdm.cc\n# nvidia/nv.c nv.conf\n"}
    for name, text in {**lists, "nvidia-uvm/nvidia-uvm.Kbuild": "obj-m += nvidia-uvm.o\n"}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    waits = "for i in $$(seq 3000); do [ ! -e seen ] || { rm seen; exit 0; }; sleep 0.1; done; echo Killed; exit 1"
    (tmp_path / "Makefile").write_text("modules:\n" + "".join(f"\t@echo '{each}'\n\t@{waits}\n" for each in LINES))
    log = Log(str(tmp_path / "build.log"), str(file))
    units = kbuild.units_of(str(tmp_path), ["nvidia", "nvidia-uvm"])
    assert units == {"nvidia": 2, "nvidia-uvm": 0}
    with ThreadPoolExecutor() as pool:
        log.units = units
        build = pool.submit(log.run, ["make", "modules"], str(tmp_path))
        for words in LINES.values():
            while build_progress(file) != words or seen.exists():
                assert not build.done(), build.result()
            seen.touch()
        assert build.result().status == 0
    assert not file.exists()
    file.symlink_to(tmp_path / "build.log")
    assert build_progress(file) == ""


def full(context: BuildContext) -> None:
    Path("/dev/full").write_text("x")


def refused(context: BuildContext) -> None:
    raise UnbuildableError("the compiler refuses it")


@pytest.mark.parametrize(
    ("fails", "ident", "words"), [(full, "", "No space left"), (refused, "unbuildable", "refuses")]
)
def test_what_this_program_meets_itself_is_told_apart_too(
    fails: Callable[[BuildContext], None], ident: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "build_nvidia_fs", lambda context, *_: fails(context))
    monkeypatch.setattr(run, "matches", lambda *_: [])
    request: Any = SimpleNamespace(tree=None, kernel=None)
    report = run._build_one(BuildContext(request, ""), "nvidia-fs", "", "", Log(str(tmp_path / "log"))).as_dict()
    assert report["error"]["id"] == ident
    assert words in report["error"]["message"]


@pytest.mark.parametrize(
    "variable",
    [
        *("GNUMAKEFLAGS", "MAKEFLAGS", "MAKEFILES", "ARCH", "CROSS_COMPILE", "KBUILD_OUTPUT", "KBUILD_MODPOST_NOFINAL"),
        *("CC", "LD", "LLVM", "KCFLAGS", "KBUILD_EXTRA_SYMBOLS", "NVIDIA_SRC_DIR", "V", "W", "C", "O"),
    ],
)
def test_no_variable_of_the_caller_reaches_make(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "more.mk").write_text("$(error a makefile of the caller)\n")
    values = {"GNUMAKEFLAGS": "-i", "MAKEFLAGS": "-i", "MAKEFILES": str(tmp_path / "more.mk")}
    monkeypatch.setenv(variable, values.get(variable, "elsewhere"))
    build = Build(tmp_path, "env; false")
    done = make_modules(build.log, build.kernel, build.folder, [], 1, {"KCPPFLAGS": "-DOURS"})
    assert done.status, "make went on after an error"
    names = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert "KCPPFLAGS" in names
    assert not {name for name in names if name in os.environ} - {*kbuild.INHERITED, "LC_ALL", "PWD", "SHLVL", "_"} - {
        "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "TERM"
    }  # fmt: skip
    assert values.get(variable, "elsewhere") not in done.stdout
