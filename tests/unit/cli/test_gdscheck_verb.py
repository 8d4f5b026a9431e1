"""``gdsdeploy gdscheck parse`` and ``explain --log``: what they print for files, standard input and mistakes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gdsdeploy.cli import group
from gdsdeploy.errors import ChecksFailed, ChecksUnknown, GdsError
from gdsdeploy.host.__main__ import main
from gdsdeploy.host.cli.parsers import UNDECIDED
from gdsdeploy.host.gdscheck.reader import VERDICTS

EVIDENCE = Path(__file__).parents[2] / "evidence"
DIRECT = EVIDENCE / "gdscheck" / "gdscheck-p.libcufile-1.20.0.ngpu1.nvfs-2.28.open-driver.txt"
REFUSED = EVIDENCE / "gdscheck" / "gdscheck-p.libcufile-1.15.1.json-badtype.txt"
LOG = EVIDENCE / "h200" / "libcufile-1.20.0-p2pdma-requested-trace.log"
KEYS = ("release", "nvidia_fs_version", "storage", "rdma", "config", "gpus", "platform", "errors", "exit_status")


def parse(*words: str | Path, text: bytes | None = None) -> Result:
    return CliRunner().invoke(group, ["gdscheck", "parse", *map(str, words)], input=text)


def objects(result: Result, *, unknown: bool = False) -> list[dict[str, Any]]:
    assert isinstance(result.exception, ChecksUnknown) if unknown else result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_one_object_a_line_for_each_file_in_order() -> None:
    reports = objects(parse("--json", DIRECT, REFUSED, LOG))
    assert [report["file"] for report in reports] == [str(DIRECT), str(REFUSED), str(LOG)]
    assert [report["verdict"] for report in reports] == ["direct", "refused", "compat"]
    assert [report["kind"] for report in reports] == ["gdscheck", "gdscheck", "cufile.log"]
    assert all(key in report for report in reports for key in ("file", *KEYS, "verdict"))
    assert reports[1]["errors"][0] == {
        "line": "json type mismatch, config read failed for json field properties.use_poll_mode",
        "means": "the value of properties.use_poll_mode has a wrong type",
        "code": 5002,
        "name": "CU_FILE_DRIVER_INVALID_PROPS",
    }


@pytest.mark.parametrize("words", [(), ("-",)])
def test_standard_input(words: tuple[str, ...]) -> None:
    (report,) = objects(parse("--json", *words, text=DIRECT.read_bytes()))
    assert (report["file"], report["verdict"], report["exit_status"]) == ("-", "direct", 0)


def test_an_exit_status_that_is_given_overrules_the_file_but_not_the_verdict() -> None:
    (report,) = objects(parse("--json", "--exit-status", "134", DIRECT))
    assert (report["exit_status"], report["verdict"]) == (134, "direct")
    assert "it ended with status 134 after a whole report" in report["warnings"]
    (report,) = objects(parse("--json", "--exit-status", "0", REFUSED))
    assert (report["exit_status"], report["verdict"]) == (0, "refused")
    assert "it ended with status 0, although the library gave up" in report["warnings"]


def test_text_tells_verdict_reason_and_rows() -> None:
    result = parse(DIRECT, REFUSED)
    assert result.exit_code == 0
    assert f"{DIRECT}: direct\n  a direct path is offered for NVMe, NVMeOF\n" in result.stdout
    assert "  direct: NVMe (nvfs), NVMeOF (nvfs)\n" in result.stdout
    assert "  GPU 0 NVIDIA H100 80GB HBM3: supports GDS, BAR1 131072 MiB\n" in result.stdout
    assert f"{REFUSED}: refused\n  the value of properties.use_poll_mode has a wrong type: " in result.stdout


def test_what_is_no_report_is_told_so() -> None:
    (report,) = objects(parse("--json", text=b"hello\n"), unknown=True)
    assert (report["kind"], report["verdict"], report["storage"]) == ("unknown", "unknown", {})
    assert report["reasons"] == ["this is neither output of gdscheck nor a libcufile log of level INFO or more"]


@pytest.mark.parametrize("words", [("nowhere.txt",), (str(EVIDENCE),), ("--exit-status", "x", "-"), ("--frob",)])
def test_mistakes_end_in_usage(words: tuple[str, ...]) -> None:
    result = parse(*words, text=b"")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert "Error" in result.output


def test_a_gate_requires_a_direct_path() -> None:
    assert parse("--require", "direct", DIRECT, DIRECT).exit_code == 0
    refused = parse("--require", "direct", DIRECT, LOG)
    assert isinstance(refused.exception, ChecksFailed)
    assert str(refused.exception) == f"the verdict isn't direct: {LOG}: compat"
    assert isinstance(parse("--require", "direct", text=b"no report").exception, ChecksUnknown)


def test_the_page_tells_every_verdict_and_key() -> None:
    page = (EVIDENCE.parents[1] / "docs" / "gdscheck.md").read_text()
    (report,) = objects(parse("--json", DIRECT))
    assert not [key for key in report if f"`{key}`" not in page]
    assert not [key for key in (*report["rdma"], *report["platform"], *report["gpus"][0]) if f"`{key}`" not in page]
    assert not [verdict for verdict in VERDICTS if f"| `{verdict}` |" not in page]


def test_what_is_not_understood_is_no_success(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.txt"
    garbage.write_bytes(bytes(range(256)))
    for words in (("--json", garbage), (garbage,), (DIRECT, garbage), (garbage, DIRECT)):
        error = parse(*words).exception
        assert isinstance(error, ChecksUnknown)
        assert error.message.startswith(f"{garbage}: ")
    rows = objects(parse("--json", garbage, DIRECT), unknown=True)
    assert [row["verdict"] for row in rows] == ["unknown", "direct"]
    assert parse(DIRECT, REFUSED, LOG).exit_code == 0


TRACE = EVIDENCE / "h200" / "libcufile-1.15.1-trace.log"
XID = b"Nov 26 12:00:00 gpu7 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"


def explain(*arguments: str | Path, text: bytes | None = None) -> Result:
    return CliRunner().invoke(group, ["explain", *map(str, arguments)], input=text)


def ids(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [cause["id"] for cause in json.loads(result.stdout)["causes"]]


def test_several_files_are_one_question() -> None:
    assert ids(explain("--log", TRACE, "--json"))[0] == "udev.no-database"
    both = explain("--json", "--log", DIRECT, TRACE, "-", text=XID)
    assert {"kernel.xid-79", "udev.no-database"} <= set(ids(both))
    assert json.loads(both.stdout)["path"] == "broken"
    assert ids(explain("--log", DIRECT, "--log", TRACE, "--json")) == ids(explain("--log", TRACE, DIRECT, "--json"))


@pytest.mark.parametrize("words", [("--log",), ("--log", "-")])
def test_a_log_on_standard_input(words: tuple[str, ...]) -> None:
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
