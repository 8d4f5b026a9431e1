"""The children that ask libcufile: what they hand on, and that no library can hold them up.

What the real library answers is recorded in tests/evidence/cufile-open; here stand-ins do what one can do to a program.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.evidence import NOTHING
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.facts import UndecidedError
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.libcufile import probe
from gdsdeploy.host.subjects import gdscheck
from gdsdeploy.host.subjects.cufile_json import CufileFacts
from gdsdeploy.host.subjects.libcufile import ACCEPTED, REJECTED
from tests.loopback.host.test_proof_live import compiled
from tests.patience import SURELY, with_time

HEAD = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { int err; int cu_err; } Error;
static const char *get(const char *name) { const char *value = getenv(name); return value ? value : "-"; }
"""
#: Reads what the control lays over it, as the real one does, before it does ``then``.
READS = """
Error cuFileDriverOpen(void) {
    FILE *file = fopen(get("CUFILE_ENV_PATH_JSON"), "r");
    if (file) {
        printf(" failed to load user config: %%s Invalid argument\\n", get("CUFILE_ENV_PATH_JSON"));
        return (Error){-22, 0};
    }
    %s
}
"""


def library(folder: Path, source: str) -> str:
    return compiled(folder, "libcufile.so.1.2.3", HEAD + source)


def run_probe(monkeypatch: pytest.MonkeyPatch, name: str, config: str = "/etc/cufile.json") -> dict[str, Any]:
    monkeypatch.setattr(probe, "LIBRARIES", (name,))
    recorder = Recorder()
    probe.probe(recorder.command, recorder.document["commands"], config)
    return {"commands": recorder.document["commands"]}


def test_an_accepted_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = run_probe(monkeypatch, library(tmp_path, READS % "return (Error){0, 0};"))
    facts = CufileFacts(Document(document))
    assert (facts.acceptance, facts.library) == (ACCEPTED, "1.2.3")
    assert (facts.opened.error, facts.opened.hung) == (0, False)


def test_a_library_that_lists_its_configuration_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
    Error cuFileDriverOpen(void) {
        FILE *log = fopen(get("CUFILE_LOGFILE_PATH"), "w");
        fputs(" 21-11-2026 01:01:30:410 [pid=4 tid=4] INFO   0:1511 properties.use_compat_mode : true\\n", log);
        fclose(log);
        return (Error){0, 0};
    }
    """
    document = run_probe(monkeypatch, library(tmp_path, source))
    assert list(document["commands"]) == ["cufile-open"]
    assert CufileFacts(Document(document)).acceptance == ACCEPTED


def test_a_library_that_spins_is_ended_and_what_it_said_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = time.monotonic()
    source = READS % 'printf("said without a line end"); fprintf(stderr, "and here"); for (;;) {}'
    name = library(tmp_path, source)

    def run_for(limit: int) -> dict[str, Any]:
        monkeypatch.setattr(probe, "TIMEOUT", float(limit))
        return run_probe(monkeypatch, name)

    document = with_time(run_for, lambda document: "and here" in document["commands"]["cufile-open"]["stderr"])
    assert time.monotonic() - begin < SURELY
    run = document["commands"]["cufile-open"]
    assert run["status"] == 124
    assert "said without a line end" in run["stdout"]
    assert "and here" in run["stderr"]
    assert CufileFacts(Document(document)).acceptance == ACCEPTED


def test_a_library_that_aborts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = run_probe(
        monkeypatch, library(tmp_path, READS % 'fprintf(stderr, "terminate: LargestUInt\\n"); abort();')
    )
    assert CufileFacts(Document(document)).acceptance == REJECTED
    document = run_probe(monkeypatch, library(tmp_path, READS % "abort();"))
    with pytest.raises(UndecidedError, match=r"^libcufile died"):
        _ = CufileFacts(Document(document)).acceptance


def test_a_library_that_never_reads_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = run_probe(monkeypatch, library(tmp_path, "Error cuFileDriverOpen(void) { return (Error){5033, 0}; }"))
    with pytest.raises(UndecidedError, match="stops before it reads its configuration"):
        _ = CufileFacts(Document(document)).acceptance


def test_variables_of_the_caller_do_not_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUFILE_FORCE_COMPAT_MODE", "true")
    monkeypatch.setenv("CUFILE_ENV_PATH_JSON", "/etc/hostname")
    source = """
    Error cuFileDriverOpen(void) {
        char here[4096];
        FILE *log = fopen(get("CUFILE_LOGFILE_PATH"), "w");
        fputs("a line of the log\\n", log);
        fclose(log);
        printf("%s %s %s\\n", get("CUFILE_FORCE_COMPAT_MODE"), get("CUFILE_ENV_PATH_JSON"), getcwd(here, sizeof here));
        return (Error){0, 0};
    }
    """
    commands = run_probe(monkeypatch, library(tmp_path, source))["commands"]
    output = {name: run["stdout"].splitlines()[1].split() for name, run in commands.items()}
    assert output["cufile-open"][:2] == ["-", "-"]
    assert output["cufile-open-control"][1].endswith("/broken.json")
    for name, run in commands.items():
        assert run["log"] == "a line of the log\n"
        folder = Path(output[name][2])
        assert folder.name == name
        assert not folder.exists(), "its folder is gone with it"
    assert not list(tmp_path.glob("cufile.log"))


def test_a_configuration_elsewhere_is_laid_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'Error cuFileDriverOpen(void) { printf("%s\\n", get("CUFILE_ENV_PATH_JSON")); return (Error){0, 0}; }'
    commands = run_probe(monkeypatch, library(tmp_path, source), "/opt/cufile.json")["commands"]
    assert "/opt/cufile.json" in commands["cufile-open"]["stdout"]


def test_no_library_and_one_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (str(tmp_path / "none.so"), library(tmp_path, "int x;")):
        facts = CufileFacts(Document(run_probe(monkeypatch, path)))
        for name in ("acceptance", "opened"):
            with pytest.raises(UndecidedError):
                getattr(facts, name)


def test_the_end_of_a_long_log_begins_with_a_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first line\nsecond line\nthird line\n")
    assert probe.tail(str(log), 16) == "third line\n"
    assert probe.tail(str(log), 1000).startswith("first")
    assert probe.tail(str(tmp_path / "none"), 10) == ""


def collect(monkeypatch: pytest.MonkeyPatch, name: str, listed: str = "") -> dict[str, Any]:
    """The evidence of a host whose loader lists ``listed``, and that looks for the library ``name``."""
    monkeypatch.setattr(probe, "CUFILE_SONAME", name)
    monkeypatch.setattr(probe, "LIBRARIES", (name,))
    recorder = Recorder()
    recorder.document["commands"]["ldconfig"] = {"status": 0, "stdout": listed}
    gdscheck.collect_programs(recorder, NOTHING)
    return recorder.document


def test_without_a_library_no_program_looks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The facts are those that the programs' answer would yield."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    document = collect(monkeypatch, "libnowhere.so.0")
    assert not {"cufile-open", "cufile-open-control"} & set(document["commands"])
    answered = run_probe(monkeypatch, "libnowhere.so.0")
    assert "not loaded" in answered["commands"]["cufile-open"]["stdout"]
    answered["listings"] = {key: value for key, value in document["listings"].items() if key != "libcufile.so.0"}
    facts, expected = CufileFacts(Document(document)), CufileFacts(Document({**document, **answered}))
    for each in (facts, expected):
        with pytest.raises(UndecidedError, match="libcufile was not loaded: "):
            _ = each.opened
    assert (facts.library, facts.effective) == (expected.library, expected.effective)


def test_wherever_the_loader_may_find_a_library_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    libc = "libc.so.6"
    assert "cufile-open" in collect(monkeypatch, libc)["commands"], "in a folder of the loader's"
    assert "cufile-open" in collect(monkeypatch, "libnowhere.so.0", "\tlibnowhere.so.0 => /opt/x\n")["commands"]
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert "cufile-open" in collect(monkeypatch, "libnowhere.so.0")["commands"]
