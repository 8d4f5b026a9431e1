"""Who goes when; the same for the same fleet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout.waves import Candidate, Layout, layout, share
from tests.unit.host import cases, expect


def names(result: Layout) -> list[list[str]]:
    return [list(wave.hosts) for wave in result.waves]


CASES = cases.load("rollout/waves")


def candidates(hosts: dict[str | int, dict[str, Any] | None]) -> Iterator[Candidate]:
    for name, fields in hosts.items():
        names = [f"h{number}" for number in range(1, name + 1)] if isinstance(name, int) else [name]
        yield from (Candidate(each, **(fields or {})) for each in names)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    expected = dict(CASES[name])
    wishes, everyone = settings(**expected.pop("settings", {})), list(candidates(expected.pop("hosts")))
    assert expected
    try:
        result = layout(wishes, everyone)
    except FleetInvalid as error:
        found: dict[str, Any] = {"error": error.message if error.hint else "it has no hint"}
    else:
        if "order" in CASES[name].get("settings", {}):
            assert names(layout(wishes, everyone[::-1])) == names(result)
        fields = ("canary", "halt_at", "soak", "drain", "console")
        found = {field: [getattr(wave, field) for wave in result.waves] for field in fields}
        found |= {"waves": names(result), "names": [wave.name for wave in result.waves]}
        found |= {"sizes": list(map(len, names(result))), "everybody": sum(map(len, names(result)))}
        found |= {"max_unavailable": result.max_unavailable, "skipped": dict(result.skipped)}
    for difference in expect.differences(expected, found, ""):
        pytest.fail(f"tests/cases/rollout/waves.yml: {name}: {difference}", pytrace=False)


def settings(**keys: Any) -> Rollout:
    return Rollout.model_validate(keys)


def hosts(number: int, **changed: Any) -> list[Candidate]:
    return [Candidate(f"h{i}", **changed) for i in range(1, number + 1)]


def sizes(number: int, **batches: Any) -> list[int]:
    result = layout(settings(canary={"per_kind": False}, batches=batches), hosts(number))
    return [len(wave.hosts) for wave in result.waves]


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ({"strategy": "fixed", "size": 4, "largest": "100%"}, [4, 4, 4, 4, 4]),
        ({"strategy": "fixed", "size": "30%", "largest": "100%"}, [6, 6, 6, 2]),
        ({"strategy": "fixed", "size": 9, "largest": 8}, [8, 8, 4]),
        ({"strategy": "linear", "size": 2, "largest": "100%"}, [2, 4, 6, 8]),
        ({"strategy": "linear", "size": 2, "largest": "25%"}, [2, 4, 5, 5, 4]),
        ({"strategy": "exponential", "size": 1, "factor": 3, "largest": "100%"}, [1, 3, 9, 7]),
        ({"strategy": "exponential", "size": "1%", "largest": 6}, [1, 2, 4, 6, 6, 1]),
        ({"strategy": "fixed", "size": 0, "largest": 0}, [1] * 20),
    ],
)
def test_batches(batches: dict[str, Any], expected: list[int]) -> None:
    assert sizes(20, **batches) == expected


@pytest.mark.parametrize(
    ("value", "of", "number"),
    [(3, 100, 3), ("25%", 6, 1), ("25%", 8, 2), ("5%", 3, 1), ("12.5%", 8, 1), ("100%", 7, 7), ("29%", 100, 29)],
)
def test_a_share_is_rounded_down_to_no_less_than_one(value: int | str, of: int, number: int) -> None:
    assert share(value, of) == number


shares = st.one_of(st.integers(0, 30), st.integers(0, 100).map(lambda n: f"{n}%"))


@hypothesis.settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans(), st.booleans()), max_size=60),
    st.sampled_from(["fixed", "linear", "exponential"]),
    shares,
    shares,
    st.booleans(),
)
def test_everybody_goes_once(
    kinds: list[tuple[str, bool, bool, bool]], strategy: str, size: int | str, largest: int | str, per_kind: bool
) -> None:
    everyone = [
        Candidate(f"h{i}", {"gdsdeploy-skip": "y"} if skip else {}, kind, builder, done)
        for i, (kind, builder, skip, done) in enumerate(kinds)
    ]
    wishes = settings(
        canary={"per_kind": per_kind}, batches={"strategy": strategy, "size": size, "largest": largest}
    )  # fmt: skip
    result = layout(wishes, everyone)
    going = [name for wave in result.waves for name in wave.hosts]
    assert sorted([*going, *result.skipped]) == sorted(each.name for each in everyone)
    assert all(wave.hosts for wave in result.waves)
    assert len({wave.name for wave in result.waves}) == len(result.waves)
    part = sum(1 for each in everyone if not each.builder and each.name not in result.skipped)
    assert all(len(wave.hosts) <= share(largest, part) for wave in result.waves if wave.drain and not wave.canary)
    assert result == layout(wishes, everyone)
