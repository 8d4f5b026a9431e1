"""gdscheck's real output of seven releases, and what damage to it must never turn into."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gdsdeploy.host.gdscheck import BROKEN, COMPAT, DIRECT, REFUSED, parse

EVIDENCE = Path(__file__).parents[2] / "evidence"
FILES = sorted((EVIDENCE / "gdscheck").glob("gdscheck-p.*.txt"))


def recorded(path: Path) -> tuple[str, int]:
    """A recording without its last line, which holds the exit status."""
    text, _, status = path.read_text().rstrip("\n").rpartition("\nrc=")
    return text, int(status)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[20:-4])
def test_verdict_of_every_recording(path: Path) -> None:
    result = parse(*recorded(path))
    name = path.name
    refused = re.search(r"ngpu0|json-badtype|json-trailing|compat-false|nvfs-version-3", name)
    ruled_out = re.search(r"nvfs-version-2|proprietary", name)
    good = COMPAT if "no-nvidia-fs" in name else BROKEN if ruled_out else DIRECT
    assert result.verdict == (REFUSED if refused else good)
    assert bool(result.contradictions) is (ruled_out is not None)
    assert result.complete is (refused is None)
    assert bool(result.errors) is (refused is not None)
    assert result.strays == ()


@pytest.mark.parametrize("status", [None, 0, 1, 134, 255, -11])
def test_the_verdict_does_not_follow_the_exit_status(status: int | None) -> None:
    for path in FILES:
        text, own = recorded(path)
        assert parse(text, status).verdict == parse(text, own).verdict


def test_known_remarks_between_rows_are_harmless() -> None:
    text, status = recorded(EVIDENCE / "gdscheck" / "gdscheck-p.libcufile-1.9.1.ngpu1.nvfs-2.28.open-driver.txt")
    remark = " warn: error opening log file: Permission denied, logging will be disabled\n"
    lines = text.splitlines(keepends=True)
    for place in range(len(lines)):
        assert parse("".join([*lines[:place], remark, *lines[place:]]), status).verdict == DIRECT
    assert parse(text + "\n harmless words at the end", status).verdict == DIRECT
