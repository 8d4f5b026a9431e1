"""Events with other content than this program writes are one error, however well the journal's digests fit."""

from __future__ import annotations

from typing import Any

import pytest

from gdsdeploy.errors import JournalUnusable
from gdsdeploy.model.rollout import Event, Kind, Plan, Wave
from gdsdeploy.rollout import status
from gdsdeploy.rollout.display import Watch

PLAN = Plan("20261121T1054-7f3a", "/fleet.yml", "sha256:1", "sha256:2", (Wave("canary", ("a", "b"), soak=60),), {})
FIRST = Event(1, 1.0, Kind.PLANNED, "", {"plan": PLAN.as_json()})


@pytest.mark.parametrize(
    ("at", "kind", "data"),
    [
        (2.0, Kind.BEGIN, {"step": "drain", "attempt": "x"}),
        (2.0, Kind.BEGIN, {"step": [], "attempt": []}),
        (2.0, Kind.BEGIN, {"step": "drain", "attempt": float("nan")}),
        ("x", Kind.BEGIN, {"step": "drain"}),
        (None, Kind.BEGIN, {"step": "drain"}),
        (2**62, Kind.BEGIN, {"step": "drain"}),
        (float("inf"), Kind.BEGIN, {"step": "drain"}),
    ],
)
def test_an_event_that_is_not_understood(at: Any, kind: Kind, data: dict[str, Any]) -> None:
    with pytest.raises(JournalUnusable, match=r"^line 2 of the journal .* is not understood") as caught:
        status.fold([FIRST, Event(2, at, kind, "a", data)])
    assert caught.value.hint


def test_a_journal_that_does_not_begin_with_a_plan() -> None:
    with pytest.raises(JournalUnusable, match=r"^line 1 of the journal: ") as caught:
        Watch().known([Event(1, 1.0, Kind.PLANNED, "", {})])
    assert caught.value.hint
