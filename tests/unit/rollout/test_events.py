"""Events between JSON and their classes: each kind comes back as it was, and journals of before are read."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.model import events
from gdsdeploy.model.events import PAYLOADS, Event, Facts, Kind, Payload
from gdsdeploy.model.rollout import Plan, Step, Wave
from gdsdeploy.rollout import journal

PLAN = Plan("20261121T1054-7f3a", "/fleet.yml", "sha256:1", "sha256:2", (Wave("canary", ("a", "b"), soak=60),), {})
#: A payload of each kind, and its JSON as streams have it.
EACH: list[tuple[Payload, str]] = [
    (events.StepBegun(Step.DRAIN, 2), '{"step": "drain", "attempt": 2}'),
    (
        events.StepDone("boot", {"kernel": "6.12", "boot_id": "1", "more": [None]}),
        '{"step": "boot", "data": {"kernel": "6.12", "boot_id": "1", "more": [null]}}',
    ),
    (
        events.StepFailed("audit", events.StepError("HostUnfit", "no \udcff")),
        '{"step": "audit", "error": {"kind": "HostUnfit", "message": "no \\udcff", "hint": null}}',
    ),
    (events.HostEnded("done", "it passed"), '{"outcome": "done", "reason": "it passed"}'),
    (events.HostRecalled("slow"), '{"reason": "slow"}'),
    (events.RolloutPlanned({"id": "x", "waves": []}), '{"plan": {"id": "x", "waves": []}}'),
    (events.WaveOpened("canary"), '{"wave": "canary"}'),
    (events.WaveSoaking("canary", 7.5), '{"wave": "canary", "until": 7.5}'),
    (
        events.WaveSoaking("canary", 7.5, events.Measurement(1.5, "b", 3.0)),
        '{"wave": "canary", "until": 7.5, "measured": {"left": 1.5, "boot": "b", "steady": 3.0}}',
    ),
    (events.WaveClosed("canary"), '{"wave": "canary"}'),
    (events.RolloutPaused("lunch"), '{"reason": "lunch"}'),
    (
        events.RolloutResumed("by command", ("a",), (), ("c", "d")),
        '{"reason": "by command", "accept": ["a"], "back": [], "down": ["c", "d"]}',
    ),
    (events.RolloutHalted("2 hosts failed"), '{"reason": "2 hosts failed"}'),
    (events.RolloutAborted(""), '{"reason": ""}'),
    (events.RollbackBegun("slower"), '{"reason": "slower"}'),
    (events.RolloutFinished({"done": 2}), '{"outcomes": {"done": 2}}'),
    (events.Note("x"), '{"text": "x"}'),
]


@pytest.mark.parametrize(("payload", "text"), EACH, ids=lambda value: getattr(value, "kind", ""))
def test_each_kind_comes_back_as_it_was(payload: Payload, text: str) -> None:
    event = Event.of(3, 1.5, "", payload)
    assert (event.kind, event.payload, json.dumps(event.data)) == (payload.kind, payload, text)
    again = Event(3, 1.5, Kind(str(payload.kind)), "", json.loads(text))
    assert (again, again.payload) == (event, payload)
    assert json.loads(json.dumps(event.as_json())) == {
        "number": 3, "time": 1.5, "kind": str(payload.kind), "host": "", "data": json.loads(text),
    }  # fmt: skip


def test_every_kind_has_a_class() -> None:
    assert PAYLOADS.keys() == set(Kind)
    assert {type(payload) for payload, _ in EACH} == set(PAYLOADS.values())


@pytest.mark.parametrize("kind", Kind)
def test_a_value_of_another_type_is_refused_with_its_place(kind: Kind) -> None:
    for each in fields(PAYLOADS[kind]):
        with pytest.raises(ValueError, match=rf"^{each.name}: bool "):
            Event(1, 0.0, kind, "", {each.name: True})


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (Kind.FAIL, {"error": {"kind": 1}}, "error: kind: int "),
        (Kind.SOAKING, {"until": 1, "measured": {"left": 1.0, "boot": "b"}}, "measured: .*steady"),
        (Kind.RESUMED, {"accept": ["a", 1]}, "accept: int "),
        (Kind.RESUMED, {"accept": "a"}, "accept: str "),
        (Kind.FINISHED, {"outcomes": {"done": "1"}}, "outcomes: str "),
        (Kind.END, {"data": {"validated_boot": 5}}, "data: validated_boot: int "),
        (Kind.END, {"data": {"release": {"lock": "x"}}}, "data: release: .*fleet"),
    ],
)
def test_what_is_wrong_within_has_its_place(kind: Kind, data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Event(1, 0.0, kind, "", data)


def test_what_another_gdsdeploy_knows_is_kept_and_shown() -> None:
    data = {"why": [1], "reason": "x", "step": "jump"}
    event = Event(1, 0.0, Kind.PAUSED, "", data)
    assert event.payload == events.RolloutPaused("x")
    assert list(event.as_json()["data"].items()) == list(data.items())


def test_what_steps_found_is_read_and_kept() -> None:
    data = {"boot_id": "1", "more": {}, "modules_before": {"mode": "receive", "want": "w", "archive": "", "x": 1}}
    done = Event(1, 0.0, Kind.END, "a", {"step": "boot", "data": data}).payload
    assert isinstance(done, events.StepDone)
    assert done.data == data
    assert done.facts == Facts(boot_id="1", modules_before=events.ModulesBefore("receive", "w"))


#: Lines as they were written before events had classes, with their digests.
OLD = [
    (2, 1795258440.0, "begin", "gpu1", '{"attempt":1,"step":"drain"}', "0a0763b8343d410a15082f09a656192c"),
    (3, 1795258440.0, "note", "", '{"text":"\\udcff \\u00fc"}', "728790b7292ad36f2b2300c2ac2bdad4"),
]


def test_a_journal_of_before_is_read_and_written_on(tmp_path: Path) -> None:
    path = tmp_path / "fleet.sqlite"
    with journal.writing(path, doing="test", wall=lambda: 1795258440.0) as writer:
        writer.begin(PLAN)
    with contextlib.closing(sqlite3.connect(path)) as shell, shell:
        shell.executemany("INSERT INTO event VALUES (1, ?, ?, ?, ?, ?, ?)", OLD)
    with journal.writing(path, doing="test", wall=lambda: 1795258440.0) as writer:
        writer.go_on(PLAN.id)
        assert [event.payload for event in writer.events(PLAN.id, after=1)] == [
            events.StepBegun("drain", 1),
            events.Note("\udcff ü"),
        ]
        writer.append_many([("gpu1", events.StepBegun("drain", 1)), ("", events.Note("\udcff ü"))])
    with contextlib.closing(sqlite3.connect(path)) as shell:
        rows = shell.execute("SELECT kind, host, data, time FROM event WHERE number > 1 ORDER BY number").fetchall()
    assert rows[2:] == rows[:2], "the same events are the same lines"
