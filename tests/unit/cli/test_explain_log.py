"""``gdsdeploy explain --log`` and the same on the host program: files, standard input, and mistakes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gdsdeploy.cli import group
from gdsdeploy.errors import ChecksUnknown, GdsError
from gdsdeploy.host.__main__ import UNDECIDED, main

EVIDENCE = Path(__file__).parents[2] / "evidence"
TRACE = EVIDENCE / "h200" / "libcufile-1.15.1-trace.log"
DIRECT = EVIDENCE / "gdscheck" / "gdscheck-p.libcufile-1.20.0.ngpu1.nvfs-2.28.open-driver.txt"
XID = b"Nov 26 12:00:00 gpu7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"


def explain(*arguments: str | Path, text: bytes | None = None) -> Result:
    return CliRunner().invoke(group, ["explain", *map(str, arguments)], input=text)


def ids(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [cause["id"] for cause in json.loads(result.stdout)["causes"]]


def test_several_files_are_one_question() -> None:
    assert ids(explain("--log", TRACE, "--json"))[0] == "udev.no-database"
    both = explain("--json", "--log", DIRECT, TRACE, "-", text=XID)
    assert {"kernel.xid-79", "nvidia-fs.not-loaded"} <= set(ids(both))
    assert json.loads(both.stdout)["path"] == "broken"
    assert ids(explain("--log", DIRECT, "--log", TRACE, "--json")) == ids(explain("--log", TRACE, DIRECT, "--json"))


@pytest.mark.parametrize("words", [("--log",), ("--log", "-")])
def test_standard_input(words: tuple[str, ...]) -> None:
    result = explain(*words, text=XID)
    assert result.exit_code == 0
    assert "kernel.xid-79" in result.stdout
    assert "-:1: NVRM: Xid" in result.stdout


def test_what_is_not_recognised_ends_with_31() -> None:
    result = explain("--log", text=b"it rains\n")
    assert isinstance(result.exception, ChecksUnknown)
    assert result.exception.exit_code == 31


@pytest.mark.parametrize("text", [b"", b"\x1f\x8b\x08\xff\xfe\xfd" * 500])
def test_bad_input_is_one_plain_error(text: bytes) -> None:
    result = explain("--log", text=text)
    assert isinstance(result.exception, GdsError)
    assert "standard input is" in result.exception.message


def test_other_questions_and_missing_ones_are_refused() -> None:
    for words in (("--log", str(TRACE), "--error", "5027"), ("a", "/b", "c")):
        assert explain(*words).exit_code == 2


def test_the_host_program_answers_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--log", str(TRACE), "--json"]) == 0
    own = json.loads(capsys.readouterr().out)
    assert own == json.loads(explain("--log", TRACE, "--json").stdout)


def test_the_host_program_reads_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"it rains\n")))
    assert main(["explain", "--log"]) == UNDECIDED
    assert main(["explain", "--log", str(EVIDENCE)]) == 2
    assert "is a folder" in capsys.readouterr().err
