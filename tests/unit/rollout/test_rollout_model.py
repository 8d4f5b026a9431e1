"""What is written down is read again as it was, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gdsdeploy.model.events import Event, Kind
from gdsdeploy.model.rollout import VERSION, Plan, Step, Task, Wave
from gdsdeploy.model.rollout_settings import Rollout

PLAN = Plan(
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
    written = PLAN.as_json()
    assert written["version"] == VERSION
    assert Plan.from_json(written) == PLAN
    assert Plan.from_json(json.dumps(written)) == PLAN
    assert json.loads(json.dumps(written)) == written
    assert Rollout.model_validate(Plan.from_json(written).settings).apart == ("rack",)


def test_a_plan_of_a_wave_that_is_drained_says_so_only_by_default() -> None:
    written = PLAN.as_json()
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
    assert Event.from_json(json.dumps(event.as_json())) == event


@hypothesis_settings(deadline=None)
@given(st.text(), st.sampled_from(Step), st.integers(1, 9), _data)
def test_tasks_are_read_as_they_were_written(host: str, step: Step, attempt: int, facts: dict[str, Any]) -> None:
    task = Task(host, step, attempt, facts)
    assert Task.from_json(json.loads(json.dumps(task.as_json()))) == task


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in PLAN.as_json().items() if name != key}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({**PLAN.as_json(), "version": VERSION + 1}, f"version {VERSION + 1}, but this gdsdeploy reads {VERSION}"),
        (without("version"), "version None"),
        (without("lock_digest"), "plan: lock_digest: "),
        ({**PLAN.as_json(), "surprise": 1}, "plan: surprise: "),
        ({**PLAN.as_json(), "max_unavailable": "2"}, "plan: max_unavailable: .*integer"),
        ({**PLAN.as_json(), "down": "c"}, "plan: down: "),
        ({**PLAN.as_json(), "waves": [{"name": "1", "hosts": ["a"], "size": 3}]}, "plan: waves.0.size: "),
        ({**PLAN.as_json(), "expected": {"a": float("inf")}}, "plan: "),
        ([], "plan: no object"),
        ("{", "plan: "),
        ("null", "plan: no object"),
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
