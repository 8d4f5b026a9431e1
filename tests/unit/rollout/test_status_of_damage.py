"""Events with other content than this program writes are one error, however well the journal's digests fit."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import JournalUnusable
from gdsdeploy.model.events import Event, Kind, StepBegun
from gdsdeploy.model.rollout import Plan, Wave
from gdsdeploy.rollout import journal, machine
from gdsdeploy.rollout.display import Watch

PLAN = Plan("20261121T1054-7f3a", "/fleet.yml", "sha256:1", "sha256:2", (Wave("canary", ("a", "b"), soak=60),), {})
FIRST = Event(1, 1.0, Kind.PLANNED, "", {"plan": PLAN.as_json()})


@pytest.mark.parametrize(
    ("at", "kind", "data"),
    [
        ("x", Kind.BEGIN, {"step": "drain"}),
        (None, Kind.BEGIN, {"step": "drain"}),
        (2**62, Kind.BEGIN, {"step": "drain"}),
        (float("inf"), Kind.BEGIN, {"step": "drain"}),
    ],
)
def test_an_event_that_is_not_understood(at: Any, kind: Kind, data: dict[str, Any]) -> None:
    with pytest.raises(JournalUnusable, match=r"^line 2 of the journal .* is not understood") as caught:
        machine.fold([FIRST, Event(2, at, kind, "a", data)])
    assert caught.value.hint


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ('{"step":"drain","attempt":"x"}', "attempt: str "),
        ('{"step":[],"attempt":[]}', "step: list "),
        ('{"step":"drain","attempt":NaN}', "attempt: float "),
        ('{"step":"drain","attempt":true}', "attempt: bool "),
        ("[]", "its data is no object"),
    ],
)
def test_a_line_that_is_not_understood(tmp_path: Path, data: str, place: str) -> None:
    path = tmp_path / "fleet.sqlite"
    with journal.writing(path, doing="test") as writer:
        writer.begin(PLAN)
        writer.append(StepBegun("drain"), "a")
    with contextlib.closing(sqlite3.connect(path)) as shell, shell:
        shell.execute("DROP TRIGGER event_stays")
        ((at,),) = shell.execute("SELECT time FROM event WHERE number = 2")
        digest = journal._digest(PLAN.id, 2, at, "begin", "a", data)
        shell.execute("UPDATE event SET data = ?, digest = ? WHERE number = 2", (data, digest))
    words = f": line 2 of {PLAN.id} is not understood: {place}"
    with journal.reading(path) as reader, pytest.raises(JournalUnusable, match=words) as caught:
        machine.fold(reader.events(PLAN.id))
    assert caught.value.hint


def test_a_journal_that_does_not_begin_with_a_plan() -> None:
    with pytest.raises(JournalUnusable, match=r"^line 1 of the journal: ") as caught:
        Watch().replay([Event(1, 1.0, Kind.PLANNED, "", {})])
    assert caught.value.hint
