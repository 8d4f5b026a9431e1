"""Reading under load on real filesystems: a rate where it is the storage's, a reason where it would be memory's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.__main__ import main
from gdsdeploy.host.checks import run
from gdsdeploy.host.evidence import collect, longest, request_for
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.model.expectation import Expectation, from_json
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Finding
from gdsdeploy.host.odirect import load
from tests.loopback.host.odirect.filesystems import inside
from tests.patience import SURELY, wait_for

EXPECTED = Path(__file__).parents[3] / "evidence" / "hosts" / "lab-vm.expectation.json"
ROOT = Path(__file__).parents[4]
MIB = load.MIB

BODY = r"""
import time
from gdsdeploy.host.odirect import load
for name in kinds:
    begin = time.monotonic()
    before = os.statvfs(name).f_bfree
    answer[name] = load.measured(os.path.abspath(name), 0.4, 4 * load.MIB)
    answer[name]["took"] = time.monotonic() - begin
    answer[name]["left"] = [item for item in os.listdir(name) if item != "lost+found"]
    # XFS gives the blocks of a file back some time after it is gone.
    while before - os.statvfs(name).f_bfree > 64 and time.monotonic() < begin + 300:
        time.sleep(0.05)
    answer[name]["kept"] = before - os.statvfs(name).f_bfree
answer["tmpfs"] = load.measured(os.getcwd(), 0.4, 4 * load.MIB)
with open("ext4/ballast", "wb") as file:
    file.write(bytes(os.statvfs("ext4").f_bavail * os.statvfs("ext4").f_frsize - 6 * load.MIB))
answer["full"] = load.measured(os.path.abspath("ext4"), 0.4, 4 * load.MIB)
"""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return inside(tmp_path_factory.mktemp("load"), ["ext4", "ext4-journal", "ext4-readonly", "xfs"], BODY)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_filesystem_with_direct_io_has_a_rate(read: Any, kind: str) -> None:
    result = read[kind]
    assert result["bytes"] % result["block"] == 0
    assert result["bytes"] > 0
    assert result["rate"] == pytest.approx(result["bytes"] / result["seconds"], rel=0.01)
    assert 0.4 <= result["seconds"] < SURELY
    assert 0 < result["latency"]["p50"] <= result["latency"]["p99"] <= result["latency"]["max"]
    assert (result["size"], result["readers"]) == (4 * MIB, load.READERS)


@pytest.mark.parametrize("kind", ["ext4", "ext4-journal", "xfs", "ext4-readonly"])
def test_nothing_is_left_on_it(read: Any, kind: str) -> None:
    assert read[kind]["left"] == []
    # A journal or an allocator may keep some blocks of its own.
    assert abs(read[kind]["kept"]) * 4096 < MIB


def test_where_memory_would_be_measured_there_is_no_rate(read: Any) -> None:
    assert "direct reads went through the page cache" in read["ext4-journal"]["error"]
    assert "memory" in read["tmpfs"]["error"]
    assert "rate" not in read["tmpfs"]


def test_a_mount_without_room_is_left_alone(read: Any) -> None:
    assert "MiB are free; a tenth of that is too little to read from" in read["full"]["error"]
    assert read["ext4-readonly"]["error"] == "it is mounted read-only (EROFS)"
    assert load.measured("/nowhere") == {"error": "there is no such folder"}


def test_a_reader_that_fails_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10**9))
    real = os.preadv

    def failing(descriptor: int, buffers: Any, offset: int, *flags: int) -> int:
        if next(calls) > 100:
            raise OSError(5, "Input/output error")
        return real(descriptor, buffers, offset, *flags)

    monkeypatch.setattr(os, "preadv", failing)
    begin = time.monotonic()
    assert load.measured(str(tmp_path), 600.0, 8 * MIB) == {"error": "EIO"}
    assert time.monotonic() - begin < SURELY


def test_who_ends_it_leaves_nothing_behind(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "gdsdeploy.host", "load", str(tmp_path), "--seconds", "60"]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert wait_for(
        lambda: subprocess.run(["pgrep", "-P", str(process.pid)], stdout=subprocess.DEVNULL).returncode == 0
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=50)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LARGEST", 8 * MIB)
    assert main(["load", str(tmp_path), "/nowhere", "--seconds", "0.2", "--json"]) == 31
    report = json.loads(capsys.readouterr().out)
    assert report[str(tmp_path)]["rate"] > 0
    assert "error" in report["/nowhere"]
    assert main(["load", "/nowhere"]) == 31
    assert capsys.readouterr().out == "/nowhere: there is no such folder\n"
    for seconds in ("0", "61", "x", "nan"):
        with pytest.raises(SystemExit):
            main(["load", str(tmp_path), "--seconds", seconds])


def test_load_does_not_go_with_what_was_collected_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--load", "--expectation", str(EXPECTED)]
    assert main(["validate", *words, "--evidence", str(tmp_path / "x.json")]) == 2
    assert "--load reads from mounts now" in capsys.readouterr().err
    assert main(["evidence", *words, "--mount", "/mnt"]) == 2
    assert "does not go with --mount" in capsys.readouterr().err


def expected(**storage: Any) -> Expectation:
    return replace(from_json(EXPECTED.read_text()), storage=[{"path": "compat", **storage}])


def judge(expectation: Expectation, record: dict[str, Any]) -> list[Finding]:
    document = {"version": 1, "load": record}
    return [finding for finding in run(facts_from(document), expectation) if finding.check.startswith("storage.load")]


RECORD = {"rate": 5_000_000_000, "readers": 16, "block": MIB, "latency": {"p50": 0.003, "p99": 0.01, "max": 0.02}}


@pytest.mark.parametrize(
    ("record", "verdict", "words"),
    [
        (RECORD, PASS, "5 GB/s read by 16 readers, 1 MiB each time; latency p50 3 ms, p99 10 ms, max 20 ms"),
        ({**RECORD, "rate": 4_999_999_999}, FAIL, "5 GB/s read by 16 readers"),
        ({"error": "its filesystem takes no direct I/O, so that memory would be measured"}, UNKNOWN, "no direct I/O"),
        ({**RECORD, "rate": "5"}, UNKNOWN, "malformed"),
        ({**RECORD, "latency": None}, UNKNOWN, "malformed"),
        ({**RECORD, "rate": float("nan")}, UNKNOWN, "malformed"),
    ],
)
def test_it_is_held_against_the_fleets_threshold(record: dict[str, Any], verdict: str, words: str) -> None:
    (finding,) = judge(expected(mount="/mnt", load={"read": 5_000_000_000, "seconds": 10}), {"/mnt": record})
    assert (finding.check, finding.verdict, finding.expected) == ("storage.load:/mnt", verdict, "at least 5 GB/s read")
    assert words in finding.found


def test_it_says_nothing_unless_it_was_asked_and_there_is_a_threshold() -> None:
    limits = {"read": 5_000_000_000, "seconds": 10}
    (finding,) = judge(expected(mount="/mnt", load=limits), {})
    assert finding.verdict == NOT_APPLICABLE
    # Somebody asked, and of this mount nothing came.
    (finding,) = judge(expected(mount="/mnt", load=limits), {"/other": RECORD})
    assert (finding.verdict, finding.found) == (UNKNOWN, "it was not read from")
    (finding,) = judge(expected(mount="/mnt"), {"/mnt": RECORD})
    assert finding.verdict == NOT_APPLICABLE


def test_evidence_has_it_only_on_request_and_only_of_what_is_mounted(tmp_path: Path) -> None:
    limits = {"read": 1, "seconds": 1}
    expectation = expected(mount=str(tmp_path), load=limits)
    assert request_for(expectation).load == ()
    assert request_for(expectation, load=True).load == ((str(tmp_path), 1.0),)
    assert request_for(expected(mount="/mnt", load=limits, scratch="no"), load=True).load == ()
    assert request_for(expected(mount="/mnt", load={"seconds": 3600}), load=True).load == (("/mnt", 60.0),)
    assert longest(60.0) < 100
    nowhere = request_for(expectation, load=True)._replace(scratch=())
    assert collect(nowhere)["load"] == {str(tmp_path): {"error": "nothing is mounted there"}}
    assert collect(nowhere._replace(load=()), total=0.0)["load"] == {}
