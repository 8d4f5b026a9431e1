"""Who goes when; the same for the same fleet."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout.waves import Candidate, Layout, layout, share


def settings(**keys: Any) -> Rollout:
    return Rollout.model_validate(keys)


def hosts(number: int, **changed: Any) -> list[Candidate]:
    return [Candidate(f"h{i}", **changed) for i in range(1, number + 1)]


def names(result: Layout) -> list[list[str]]:
    return [list(wave.hosts) for wave in result.waves]


def sizes(number: int, **batches: Any) -> list[int]:
    result = layout(settings(canary={"per_kind": False}, batches=batches), hosts(number))
    return [len(wave.hosts) for wave in result.waves]


def test_one_of_each_kind_goes_first_and_twice_as_many_each_time_after() -> None:
    kinds = [Candidate("a1", kind="a"), Candidate("a2", kind="a"), Candidate("b1", kind="b")]
    result = layout(settings(), [*kinds, *hosts(20, kind="a")])
    first, *rest = result.waves
    assert (first.name, first.hosts, first.canary, first.soak, first.halt_at) == ("canary", ("a1", "b1"), True, 600, 1)
    assert [wave.name for wave in rest] == [f"wave-{n}" for n in range(2, 8)]
    assert [len(wave.hosts) for wave in rest] == [1, 2, 4, 5, 5, 4]
    assert {wave.halt_at for wave in rest} == {1}
    assert result.max_unavailable == 5


def test_a_canary_changes_if_any_of_its_kind_does() -> None:
    kinds = [Candidate("a1", satisfied=True), Candidate("a2"), Candidate("b1", kind="b", satisfied=True)]
    assert names(layout(settings(), kinds))[0] == ["a2", "b1"]


@pytest.mark.parametrize(
    ("canary", "first"),
    [
        ({"hosts": ["h2"]}, ["h2"]),
        ({"hosts": ["h1?", "h3"]}, ["h3", "h10", "h11", "h12"]),
        ({"hosts": ["h3"], "labels": {"rack": "7"}}, ["h3", "new"]),
        ({"labels": {"rack": "7", "row": "a"}}, ["new"]),
    ],
)
def test_a_canary_is_who_is_named(canary: dict[str, Any], first: list[str]) -> None:
    everyone = [*hosts(12), Candidate("new", {"rack": "7", "row": "a"}), Candidate("old", {"rack": "8"})]
    result = layout(settings(canary=canary), everyone)
    assert names(result)[0] == first
    assert sorted(name for wave in result.waves for name in wave.hosts) == sorted(each.name for each in everyone)


@pytest.mark.parametrize(
    ("canary", "words"),
    [
        ({"hosts": ["h1", "gpu*"]}, r"'gpu\*' names no host that takes part$"),
        (
            {"hosts": ["out"]},
            "'out' names no host that takes part; out does not because it has the label gdsdeploy-skip",
        ),
        ({"hosts": ["builder"]}, "'builder' names no host"),
        ({"labels": {"rack": "7", "row": "z"}}, "no host that takes part has rack: 7, row: z"),
    ],
)
def test_a_canary_that_is_nobody_is_an_error(canary: dict[str, Any], words: str) -> None:
    everyone = [
        Candidate("h1", {"rack": "7"}),
        Candidate("out", {"gdsdeploy-skip": "broken"}),
        Candidate("builder", builder=True),
    ]
    with pytest.raises(FleetInvalid, match=words) as caught:
        layout(settings(canary=canary), everyone)
    assert caught.value.hint


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


def test_labels_order_hosts_with_numbers_by_value_and_hosts_without_last() -> None:
    racks = {"a": "r10", "b": "r9", "c": None, "d": "r9", "e": "r1", "f": "r01"}
    rows = {"a": "1", "b": "2", "c": "1", "d": "1", "e": "1", "f": "1"}
    everyone = [
        Candidate(name, {"row": rows[name], **({"rack": rack} if rack else {})}) for name, rack in racks.items()
    ]
    wishes = settings(canary={"per_kind": False}, order=["rack", "row"], batches={"strategy": "fixed", "size": 6,
        "largest": 6})  # fmt: skip
    assert names(layout(wishes, everyone)) == [["f", "e", "d", "b", "a", "c"]]
    assert names(layout(wishes, everyone[::-1])) == [["f", "e", "d", "b", "a", "c"]]


def test_builders_go_first_are_not_drained_and_count_for_no_share() -> None:
    everyone = [*hosts(4), Candidate("x", builder=True), Candidate("y", builder=True)]
    result = layout(settings(max_unavailable="50%"), everyone)
    assert [(w.name, w.hosts, w.drain, w.halt_at) for w in result.waves][:2] == [
        ("builders", ("x", "y"), False, 1),
        ("canary", ("h1",), True, 1),
    ]
    assert [wave.name for wave in result.waves[2:]] == ["wave-2", "wave-3", "wave-4"]
    assert result.max_unavailable == 2


def test_a_label_leaves_hosts_out() -> None:
    everyone = [*hosts(2), Candidate("out", {"hands-off": "no"}), Candidate("b", {"hands-off": "x"}, builder=True)]
    result = layout(settings(skip="hands-off"), everyone)
    assert result.skipped == {"out": "it has the label hands-off", "b": "it has the label hands-off"}
    assert names(result) == [["h1"], ["h2"]]


def test_thresholds_are_those_of_the_fleet() -> None:
    result = layout(settings(failures={"canary": 2, "later": "10%"}), hosts(50))
    assert [wave.halt_at for wave in result.waves] == [2] + [5] * (len(result.waves) - 1)


def test_nobody_takes_part() -> None:
    assert layout(settings(), []).waves == ()


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


def test_hosts_that_wait_for_a_person_are_the_last_waves_as_many_as_there_are_people() -> None:
    waiting = [Candidate(f"w{i}", console=True) for i in range(1, 6)]
    result = layout(settings(console={"hosts": 2}), [*waiting, *hosts(3)])
    assert names(result) == [["h1"], ["h2"], ["h3"], ["w1", "w2"], ["w3", "w4"], ["w5"]]
    assert [wave.console for wave in result.waves] == [False] * 3 + [True] * 3
    assert [wave.name for wave in result.waves[3:]] == ["console-1", "console-2", "console-3"]
    assert [wave.canary for wave in result.waves] == [True] + [False] * 5


def test_where_every_host_waits_the_first_is_the_canary() -> None:
    result = layout(settings(), [Candidate(f"w{i}", console=True) for i in range(1, 4)])
    assert names(result) == [["w1"], ["w2"], ["w3"]]
    assert [(wave.canary, wave.halt_at) for wave in result.waves] == [(True, 1), (False, 1), (False, 1)]


def test_a_canary_that_waits_for_a_person_is_no_canary() -> None:
    candidates = [Candidate("a", console=True), Candidate("b"), Candidate("c")]
    result = layout(settings(canary={"hosts": ["a"]}), candidates)
    assert names(result) == [["b"], ["c"], ["a"]]
