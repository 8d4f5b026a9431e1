"""The command line: what it reads, what it prints, and how it ends.  Only checks: nothing here changes this machine."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import __main__ as program
from gdsdeploy.host.apply import engine, registry
from gdsdeploy.host.apply.model import Change, Refusal
from gdsdeploy.host.cli import apply
from gdsdeploy.host.errors import DesiredError


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = program.main([*words, "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.fixture
def desired(tmp_path: Path) -> Path:
    path = tmp_path / "desired.json"
    path.write_text(json.dumps({"version": 1, "resources": [{"resource": "expectation", "desired": {}}]}))
    return path


def test_an_answer(desired: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = run(capsys, "apply", "--check", "--desired", str(desired))
    assert status == 0
    assert answer == {
        "version": 1,
        "check": True,
        "error": None,
        "notes": [],
        "resources": [{"name": "expectation", "changes": [], "refusals": [], "unknown": [], "report": {}, "diffs": []}],
    }


DEEP = "[" * 200_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON, or cut off: Expecting value"),
        ('{"version": 1, "resources": [{"resource": "expec', "not JSON, or cut off: Unterminated string"),
        ('{"version": 1, "resources": [', "not JSON, or cut off: Expecting value"),
        (DEEP, "nested too deeply"),
        ('{"version": 1, "resources": ' + DEEP, "nested too deeply"),
        ("\udcff", "not JSON, or cut off: 'utf-8' codec can't decode"),
        ('{"version": 99, "resources": []}', "the desired state has version 99; this program reads 1"),
        ('{"version": 1, "resources": [{"resource": "toaster"}]}', "toaster: unknown resource; known: boot_arguments,"),
        (
            '{"version": 1, "resources": [{"resource": "expectation", "desired": {"expectation": 1}}]}',
            "resources[0].desired.expectation: string is needed, not a number",
        ),
        (
            '{"version": 1, "resources": [{"resource": "expectation", "desired": {"expectation": "\\u0000"}}]}',
            "resources[0].desired.expectation: has a NUL character",
        ),
        (
            '{"version": 1, "resources": [{"resource": "expectation", "desired": {"expectation": "\\ud800"}}]}',
            "resources[0].desired.expectation: has half of a surrogate pair",
        ),
    ],
)
@pytest.mark.parametrize("piped", [True, False])
def test_a_document_that_cannot_be_used(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    message: str,
    piped: bool,
) -> None:
    path = tmp_path / "desired.json"
    path.write_text(text, errors="surrogateescape")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    status, answer = run(capsys, "apply", "--check", "--desired", "-" if piped else str(path))
    assert status == 2
    assert answer["error"]["kind"] == "desired"
    assert message in answer["error"]["message"]
    assert str(path) in answer["error"]["message"] or piped or "JSON" not in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["apply"], "there is no desired state"),
        (["apply", "--desired", "/nowhere/desired.json"], "/nowhere/desired.json: No such file or directory"),
        (["apply", "--desired", "/"], "/: Is a directory"),
        (["remove", "--check", "toaster"], "toaster: can't be removed by itself; known: guard, gate"),
    ],
)
def test_words_that_cannot_be_used(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    status, answer = run(capsys, *words)
    assert (status, answer["error"]["kind"]) == (2, "desired")
    assert message in answer["error"]["message"]


def test_a_document_that_is_too_large(desired: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "_LIMIT", 10)
    with pytest.raises(DesiredError, match="larger than 0 MiB"):
        apply.read(str(desired))


def test_variants_are_only_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "desired.json"
    one = [{"resource": "expectation", "desired": {}}]
    path.write_text(json.dumps({"version": 1, "variants": {"build": one, "receive": [*one, *one]}}))
    status, answer = run(capsys, "apply", "--check", "--desired", str(path))
    assert status == 0
    assert {name: len(results) for name, results in answer["variants"].items()} == {"build": 1, "receive": 2}
    status, answer = run(capsys, "apply", "--desired", str(path))
    assert (status, answer["error"]["message"]) == (2, "a document with variants can only be checked: pass --check")
    assert program.main(["apply", "--check", "--desired", str(path)]) == 0
    assert capsys.readouterr().out == "build:\nnothing to change\nreceive:\nnothing to change\n"


def test_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["apply", "--schema"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)) == registry.names()


def result(**fields: Any) -> dict[str, Any]:
    return engine.Result("gate", **fields).to_json()


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([], "nothing to change\n"),
        ([result()], "nothing to change\n"),
        ([result(unknown=["/etc/x: Input/output error"])], "gate: /etc/x: Input/output error\n"),
        ([result(refusals=[Refusal("os", "this is Plan 9")])], "gate: this is Plan 9\n"),
        (
            [result(changes=[Change("install", "pkg", "", "1.2"), Change("enable", "gate.service")])],
            "would install pkg (nothing → 1.2)\nwould enable gate.service\n",
        ),
        (
            [result(diffs=[{"path": "/etc/x", "before": "a\n", "after": "b\n"}])],
            "nothing to change\n--- /etc/x\n+++ /etc/x\n@@ -1 +1 @@\n-a\n+b\n",
        ),
    ],
)
def test_words_for_people(capsys: pytest.CaptureFixture[str], results: list[Any], text: str) -> None:
    apply._print({"resources": results, "error": None}, check=True)
    assert capsys.readouterr().out == text
