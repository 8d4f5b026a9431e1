"""Recordings of a machine with an H100: the controller takes them, and probes and counters agree."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gdsdeploy.host.watch.metrics import INCOMPLETE, NAMES
from gdsdeploy.host.watch.table import lines, probe_lines
from gdsdeploy.validate.watch import Watched, _with_words

FOLDER = Path(__file__).parents[2] / "evidence" / "watch"
#: The others have the probe's former keys: the README beside them.
RECORDINGS = sorted([*FOLDER.glob("watch-*.json"), *FOLDER.glob("failed-*.json")])


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_is_an_answer(path: Path) -> None:
    document = json.loads(path.read_text())
    Watched.model_validate(document)
    assert len(lines([("gpu1", row) for row in _with_words(document)["processes"]])) > 1


@pytest.mark.parametrize("version", ["1.15.1.6", "1.20.0.107"])
def test_calls_that_failed_moved_nothing(version: str) -> None:
    document = json.loads((FOLDER / f"failed-{version}.json").read_text())
    (row,) = document["processes"]
    probe = row["probe"]
    moved = probe["read_bytes"] + probe["written_bytes"]
    assert moved == pytest.approx(probe["posix_bytes"], rel=0.01), "all of it in compat mode"
    requested = sum(file["read_bytes"] + file["written_bytes"] for file in probe["files"])
    assert requested - moved == pytest.approx(probe["failed"] << 20, rel=0.01), "each call requests 1 MiB"
    assert row["read_rate"] * 3 == pytest.approx(probe["read_bytes"], rel=0.03), "the process's own counters"
    assert f"; {probe['failed']} calls failed" in probe_lines("gpu1", document)[0]


def test_metrics_of_a_program_that_has_ended() -> None:
    text = (FOLDER / "metrics-1.15.1.6.prom").read_text()
    assert set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) == set(NAMES) - {INCOMPLETE}, "which is newer"
    assert re.search(r'operations_total\{.*direction="read",path="compat"\} 17384$', text, re.MULTILINE)
