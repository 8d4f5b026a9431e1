"""What the recorder writes down, and that nothing it meets can stop or swamp it."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsdeploy.host.evidence.recorder import Recorder, TimeLimitError, _busy, matching_lines, time_limit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc").mkdir()
    return tmp_path


def recorder(root: Path) -> Recorder:
    return Recorder(root=str(root))


def test_a_file_is_kept_verbatim(root: Path) -> None:
    (root / "proc" / "version").write_text("a\n\tb \n")
    record = recorder(root)
    assert record.text("/proc/version") == "a\n\tb \n"
    assert record.document["files"] == {"/proc/version": "a\n\tb \n"}


def test_absence_differs_from_failure(root: Path) -> None:
    (root / "proc" / "folder").mkdir()
    record = recorder(root)
    assert record.text("/proc/none") is None
    assert record.text("/proc/folder") is None
    assert record.document["files"] == {"/proc/none": {"error": "ENOENT"}, "/proc/folder": {"error": "EISDIR"}}


def test_a_long_file_is_cut_and_marked(root: Path) -> None:
    (root / "proc" / "long").write_text("x" * 11)
    record = recorder(root)
    assert record.text("/proc/long", limit=10) is None
    assert record.document["files"]["/proc/long"] == {"error": "longer than 10 bytes", "text": "x" * 10}
    assert record.text("/proc/long") is None, "what was recorded first stays"


def test_what_is_no_text_becomes_some(root: Path) -> None:
    (root / "proc" / "odd").write_bytes(b"\xff\x00a")
    record = recorder(root)
    assert record.text("/proc/odd") == "\ufffd\x00a"
    json.dumps(record.document)


def test_bytes_links_names_and_excerpts(root: Path) -> None:
    (root / "proc" / "note").write_bytes(b"\x01\xff")
    (root / "proc" / "link").symlink_to("../elsewhere")
    (root / "proc" / "plain").write_text("one\ntwo nvfs\n")
    with gzip.open(root / "proc" / "config.gz", "wt") as file:
        file.write("CONFIG_A=y\nCONFIG_B=y\n")
    record = recorder(root)
    record.binary("/proc/note")
    record.binary("/proc/none")
    assert record.link("/proc/link") == "../elsewhere"
    assert record.link("/proc/note") is None
    assert record.names("/proc", "p*") == ["plain"]
    assert record.names("/none") == []
    record.excerpt("/proc/plain", "nvfs")
    record.excerpt("/proc/config.gz", "CONFIG_B")
    record.excerpt("/proc/none", "x")
    document = record.document
    assert document["binaries"] == {"/proc/note": "01ff", "/proc/none": {"error": "ENOENT"}}
    assert document["links"] == {"/proc/link": "../elsewhere", "/proc/note": {"error": "EINVAL"}}
    assert document["listings"] == {"/proc/p*": ["plain"], "/none": {"error": "ENOENT"}}
    assert document["excerpts"]["/proc/plain"] == {"pattern": "nvfs", "lines": ["two nvfs"]}
    assert document["excerpts"]["/proc/config.gz"]["lines"] == ["CONFIG_B=y"]
    assert document["excerpts"]["/proc/none"] == {"error": "ENOENT"}


def test_a_damaged_archive_is_a_failure_of_its_own(root: Path) -> None:
    (root / "proc" / "config.gz").write_bytes(b"no gzip")
    record = recorder(root)
    record.excerpt("/proc/config.gz", "x")
    assert "error" in record.document["excerpts"]["/proc/config.gz"]


def test_a_program_is_recorded_with_its_end(root: Path) -> None:
    record = recorder(root)
    record.command("false", ["sh", "-c", "echo out; echo err >&2; exit 3"])
    record.command("none", ["/no/such/program"])
    record.command("lines", ["printf", "a1\\nb\\na2\\n"], pattern="^a")
    commands = record.document["commands"]
    assert {key: commands["false"][key] for key in ("status", "stdout", "stderr")} == {
        "status": 3,
        "stdout": "out\n",
        "stderr": "err\n",
    }
    assert commands["none"]["status"] == 127
    assert commands["lines"]["stdout"] == "a1\na2\n"


def test_a_program_that_hangs_or_floods_is_ended(root: Path) -> None:
    record = recorder(root)
    begin = time.monotonic()
    record.command("hangs", ["sleep", "60"], timeout=0.5)
    record.command("floods", ["head", "-c", "3000000", "/dev/zero"], timeout=10)
    assert time.monotonic() - begin < 15
    assert record.document["commands"]["hangs"]["status"] == 124
    assert "longer than" in record.document["commands"]["floods"]["error"]
    assert len(json.dumps(record.document)) < 2_000_000


def test_a_collector_that_fails_leaves_a_gap_and_the_rest(root: Path) -> None:
    record = recorder(root)

    def fails() -> None:
        record.text("/proc/none")
        raise OSError(5, "Input/output error")

    record.attempt("fails", fails, 5)
    record.attempt("hangs", lambda: time.sleep(30), 0.3)
    record.attempt("works", lambda: record.names("/proc") and None, 5)
    assert [gap["collector"] for gap in record.document["gaps"]] == ["fails", "hangs"]
    assert record.document["gaps"][0]["reason"] == "OSError: [Errno 5] Input/output error"
    assert "stopped after" in record.document["gaps"][1]["reason"]
    assert "/proc" in record.document["listings"]


def test_a_bug_is_not_hidden_as_a_gap(root: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        recorder(root).attempt("bug", lambda: 1 / 0 and None, 5)


def test_when_the_time_is_up_nothing_more_is_begun(root: Path) -> None:
    record = Recorder(total=0.0, root=str(root))
    record.attempt("late", lambda: pytest.fail("it ran"), 5)
    assert record.document["gaps"] == [{"collector": "late", "reason": "no time left"}]


def test_a_read_that_blocks_is_interrupted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    record = recorder(tmp_path)
    record.attempt("blocked", lambda: record.text("/pipe") and None, 0.3)
    assert record.document["gaps"][0]["collector"] == "blocked"


def test_the_limit_is_given_back(root: Path) -> None:
    with pytest.raises(TimeLimitError), time_limit(0.1, 5):
        time.sleep(5)
    time.sleep(0.2)


def test_what_computes_is_not_stopped_for_being_slow_until_all_time_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.monotonic()
    # All time up to a moment was spent computing, and none afterwards.
    monkeypatch.setattr("gdsdeploy.host.evidence.recorder._busy", lambda: min(time.monotonic(), begin + 1.0))
    with time_limit(0.1, 20):
        time.sleep(0.5)
    with pytest.raises(TimeLimitError), time_limit(0.1, 0.2):
        time.sleep(20)
    with pytest.raises(TimeLimitError), time_limit(0.1, 60):
        time.sleep(30)
    assert 1.0 <= time.monotonic() - begin < 20


def test_time_on_the_processor_is_that_of_programs_too() -> None:
    before = _busy()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert 0.25 < _busy() - before < 10


def test_outside_the_main_thread_there_is_no_limit_and_no_error() -> None:
    done: list[bool] = []

    def work() -> None:
        with time_limit(0.05, 5):
            time.sleep(0.1)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


LINES = st.lists(st.text(alphabet="ab x=", max_size=6), max_size=8)


@given(LINES, st.sampled_from(["a", "^a", "b$", "ab|x", "^(# )?x=", "^[ ]*b"]), st.booleans())
def test_matching_all_lines_at_once_equals_one_by_one(lines: list[str], pattern: str, ended: bool) -> None:
    text = "\n".join(lines) + ("\n" if ended else "")
    assert matching_lines(text.encode(), pattern) == [line for line in text.split("\n") if re.search(pattern, line)]
