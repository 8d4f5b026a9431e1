"""The report's JSON in parts: the same bytes as one document, of which only one host at a time is held."""

from __future__ import annotations

import json as standard_json
import tracemalloc
from dataclasses import replace

import pytest

from gdsdeploy.cli import validate
from gdsdeploy.report import formats
from gdsdeploy.report.model import Report
from tests.unit.report.sample_report import report


def many(number: int) -> Report:
    first = report().hosts[0]
    return replace(report(), hosts=tuple(replace(first, host=f"gpu{n}") for n in range(number)))


@pytest.mark.parametrize(
    "whole",
    [report(), many(0), many(1), many(3), replace(many(1), hosts=(replace(many(1).hosts[0], host='a"\n  b'),))],
    ids=["sample", "no host", "one", "three", "a name"],
)
def test_the_parts_are_the_document_as_json_writes_it(whole: Report) -> None:
    text = "".join(formats.json_pieces(whole))
    assert text == formats.json_text(whole)
    assert text == standard_json.dumps(standard_json.loads(text), indent=2, ensure_ascii=False) + "\n"
    assert list(standard_json.loads(text)["hosts"]) == [host.host for host in whole.hosts]


def test_a_part_has_one_host_at_most_and_the_others_are_not_yet_there() -> None:
    whole = many(300)
    size = len(formats.json_text(whole))
    tracemalloc.start()
    parts = [len(part) for part in formats.json_pieces(whole)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(parts) == 302
    assert sum(parts) == size
    assert max(parts) < size / 100
    assert peak < size / 4


def test_validate_prints_the_parts_as_they_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = formats.json_text(many(3))

    def render(_: Report) -> str:
        raise AssertionError("the whole document was made")

    monkeypatch.setattr(formats, "json_text", render)
    validate._show(many(3), as_json=True, verbose=False)
    assert capsys.readouterr().out == expected


def test_what_is_printed_has_no_control_codes(capsys: pytest.CaptureFixture[str]) -> None:
    validate._show(replace(many(1), fleet="fleet\x9b31m\u202e.yml"), as_json=True, verbose=False)
    out = capsys.readouterr().out
    assert "\x9b" not in out
    assert "\u202e" not in out
    assert standard_json.loads(out)["fleet"] == "fleet\x9b31m\u202e.yml"
