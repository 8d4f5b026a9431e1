"""Plans, tasks and events between JSON and their classes: each comes back as it was, and nothing else is read."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from gdsdeploy.errors import JournalUnusable
from gdsdeploy.model import events
from gdsdeploy.model.events import PAYLOADS, Event, Facts, Kind, Payload, StepBegun
from gdsdeploy.model.rollout import VERSION, Plan, Step, Wave
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout import journal, machine
from gdsdeploy.rollout.display import Watch

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
        events.RolloutResumed("by command", ("a", "b")),
        '{"reason": "by command", "accept": ["a", "b"]}',
    ),
    (events.RolloutHalted("2 hosts failed"), '{"reason": "2 hosts failed"}'),
    (events.RolloutAborted(""), '{"reason": ""}'),
    (events.RollbackBegun("slower"), '{"reason": "slower"}'),
    (events.RolloutFinished({"done": 2}), '{"outcomes": {"done": 2}}'),
    (events.SchedulerLooked(("x",), ("a",)), '{"down": ["x"], "back": ["a"]}'),
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
        with pytest.raises(ValueError, match=rf"^{each.name}: Input should be "):
            Event(1, 0.0, kind, "", {each.name: True})


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (Kind.FAIL, {"error": {"kind": 1}}, "error.kind: .*string"),
        (Kind.SOAKING, {"until": 1, "measured": {"left": 1.0, "boot": "b"}}, "measured.steady: "),
        (Kind.RESUMED, {"accept": ["a", 1]}, "accept.1: .*string"),
        (Kind.RESUMED, {"accept": "a"}, "accept: .*tuple"),
        (Kind.FINISHED, {"outcomes": {"done": "1"}}, "outcomes.done: .*integer"),
        (Kind.END, {"data": {"validated_boot": 5}}, "data: .*validated_boot: .*string"),
        (Kind.END, {"data": {"release": {"lock": "x"}}}, "data: .*release.fleet: "),
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


#: A journal of the first version as its rows, with an event of every kind.
GOLDEN = Path(__file__).parents[2] / "golden/rollout/journal-1.jsonl"


def test_a_journal_of_the_first_version_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    rows = [tuple(json.loads(line)) for line in GOLDEN.read_text().splitlines()]
    assert {row[2] for row in rows} == set(Kind)
    plan = Plan.from_json(json.loads(rows[0][4])["plan"])
    files = [tmp_path / name for name in ("before", "again")]
    journal.writing(files[0], doing="test").close()
    with contextlib.closing(sqlite3.connect(files[0])) as shell, shell:
        shell.execute("INSERT INTO rollout (id) VALUES (?)", (plan.id,))
        shell.executemany("INSERT INTO event VALUES (1, ?, ?, ?, ?, ?, ?)", rows)
    with journal.reading(files[0]) as book:
        found = list(book.events(plan.id))
    assert machine.fold(found).phase == "rolled back"
    times = iter([event.time for event in found])
    with journal.writing(files[1], doing="test", wall=lambda: next(times)) as writer:
        writer.begin(plan)
        writer.append_many([(event.host, event.payload) for event in found[1:]])
    with contextlib.closing(sqlite3.connect(files[1])) as shell:
        query = "SELECT number, time, kind, host, data, digest FROM event ORDER BY number"
        assert shell.execute(query).fetchall() == rows


WHOLE = Plan(
    id="20261121T1054-7f3a",
    fleet="/fleets/fleet.yml",
    lock_digest="sha256:b",
    fleet_digest="sha256:f",
    waves=(Wave("builders", ("x",), drain=False), Wave("canary", ("a", "b"), soak=60, halt_at=2, canary=True)),
    settings=Rollout(windows=("22:00-05:00",), apart=("rack",)).model_dump(mode="json"),
    labels={"a": {"rack": "r1"}},
    previous={"a": "sha256:a"},
    down=("c",),
    skipped={"d": "it has the label gdsdeploy-skip"},
    max_unavailable=2,
    expected={"a": 812.5, "b": 900},
)


def test_a_plan_is_read_as_it_was_written() -> None:
    written = WHOLE.as_json()
    assert written["version"] == VERSION
    assert Plan.from_json(written) == WHOLE
    assert json.loads(json.dumps(written)) == written
    assert Rollout.model_validate(Plan.from_json(written).settings).apart == ("rack",)


def test_a_plan_of_a_wave_that_is_drained_says_so_only_by_default() -> None:
    written = WHOLE.as_json()
    del written["waves"][1]["drain"]
    assert Plan.from_json(written).waves[1].drain


_numbers = st.integers(-(1 << 60), 1 << 60) | st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none() | st.booleans() | _numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
#: No key is one of a payload, whose values are checked.
_data = st.dictionaries(st.text().map("_{}".format), _json, max_size=4)


@hypothesis_settings(deadline=None)
@given(st.integers(1), st.floats(0, 1e11), st.sampled_from(Kind), st.text(), _data)
def test_events_are_read_as_they_were_written(
    number: int, time: float, kind: Kind, host: str, data: dict[str, Any]
) -> None:
    event = Event(number, time, kind, host, data)
    assert Event.from_json(json.loads(json.dumps(event.as_json()))) == event


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in WHOLE.as_json().items() if name != key}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({**WHOLE.as_json(), "version": VERSION + 1}, f"version {VERSION + 1}, but this gdsdeploy reads {VERSION}"),
        (without("version"), "version None"),
        (without("lock_digest"), "plan: lock_digest: "),
        ({**WHOLE.as_json(), "surprise": 1}, "plan: surprise: "),
        ({**WHOLE.as_json(), "max_unavailable": "2"}, "plan: max_unavailable: .*integer"),
        ({**WHOLE.as_json(), "down": "c"}, "plan: down: "),
        ({**WHOLE.as_json(), "waves": [{"name": "1", "hosts": ["a"], "size": 3}]}, "plan: waves.0.size: "),
        ({**WHOLE.as_json(), "expected": {"a": float("inf")}}, "plan: "),
        ([], "plan: no object"),
        (None, "plan: no object"),
    ],
)
def test_a_plan_that_is_none(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Plan.from_json(value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"time": 1.0, "kind": "note"}, "event: number: "),
        ({"number": True, "time": 1.0, "kind": "note"}, "event: number: "),
        ({"number": 1, "time": "1", "kind": "note"}, "event: time: "),
        ({"number": 1, "time": float("nan"), "kind": "note"}, "event: "),
        ({"number": 1, "time": 1.0, "kind": "nope"}, "event: kind: "),
        ({"number": 1, "time": 1.0, "kind": "note", "data": []}, "event: data: "),
        ({"number": 1, "time": 1.0, "kind": "note", "hosts": ""}, "event: hosts: "),
        ({"number": 1, "time": 1.0, "kind": "note", "data": {"x": {1, 2}}}, "event: .*not JSON serializable"),
        (7, "event: "),
    ],
)
def test_an_event_that_is_none(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Event.from_json(value)


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
        ('{"step":"drain","attempt":"x"}', "attempt: .*integer"),
        ('{"step":[],"attempt":[]}', "step: .*string"),
        ('{"step":"drain","attempt":NaN}', "attempt: .*integer"),
        ('{"step":"drain","attempt":true}', "attempt: .*integer"),
        ("[]", ".*(dictionary|object)"),
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
