"""Recordings of a machine with an H100: the controller takes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gdsdeploy.host.watch.document import lines
from gdsdeploy.host.watch.service import HELP
from gdsdeploy.validate.watch import Watched, _with_words

FOLDER = Path(__file__).parents[2] / "evidence" / "watch"
RECORDINGS = sorted(FOLDER.glob("watch-*.json"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_is_an_answer(path: Path) -> None:
    document = json.loads(path.read_text())
    # These keys are newer.
    fallback = {"client": "", "mode": "", "refused": "", "mount": ""}
    document["processes"] = [
        {**row, "beside": "", "beside_bytes": 0, "fallback": fallback} for row in document["processes"]
    ]
    Watched.model_validate(document)
    assert len(lines([("gpu1", row) for row in _with_words(document)["processes"]])) > 1


def test_metrics_of_a_program_that_has_ended() -> None:
    text = (FOLDER / "metrics-1.15.1.6.prom").read_text()
    newer = {"gdsdeploy_cufile_incomplete", "gdsdeploy_bounced_bytes_total"}
    assert set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) == HELP.keys() - newer
    assert re.search(r'operations_total\{.*direction="read",path="compat"\} 17384$', text, re.MULTILINE)
