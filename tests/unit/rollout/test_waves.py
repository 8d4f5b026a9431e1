"""Who goes when, within which windows, and how many at a time."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import given, strategies as st

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout.waves import (
    Candidate,
    Claims,
    Key,
    Layout,
    Queue,
    Slots,
    keys_of,
    layout,
    share,
    window_is_open,
    window_opens_at,
)
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


DAY = 86400


def windows(*texts: str, zone: str = "UTC") -> Rollout:
    return Rollout.model_validate({"windows": list(texts), "timezone": zone})


def at(text: str, zone: str = "UTC", **changed: Any) -> float:
    """``2026-11-20 21:59`` (a Friday) → seconds since the epoch."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=zoneinfo.ZoneInfo(zone), **changed).timestamp()


def closes_at(settings: Rollout, now: float) -> float | None:
    """The end of the window that is open at ``now``, in quarters of an hour; None: none is open, or it has no end."""
    if not window_is_open(settings, now):
        return None
    following = int(now) - int(now) % 900 + 900
    return next(
        (time for time in range(following, following + 9 * DAY, 900) if not window_is_open(settings, time)), None
    )


def test_without_windows_it_is_always_open() -> None:
    assert window_is_open(windows(), 5.0)
    assert window_opens_at(windows(), 5.0) == 5.0
    assert closes_at(windows(), 5.0) is None


@pytest.mark.parametrize(
    ("window", "time", "open_"),
    [
        ("22:00-05:00", "2026-11-20 21:59", False),
        ("22:00-05:00", "2026-11-20 22:00", True),
        ("22:00-05:00", "2026-11-21 04:59", True),
        ("22:00-05:00", "2026-11-21 05:00", False),
        ("Fri 22:00-05:00", "2026-11-21 04:59", True),
        ("Fri 22:00-05:00", "2026-11-20 04:59", False),
        ("Mon-Thu 22:00-05:00", "2026-11-20 04:59", True),
        ("Mon-Thu 22:00-05:00", "2026-11-20 23:00", False),
        ("Sat-Mon 00:00-24:00", "2026-11-22 12:00", True),
        ("Sat-Mon 00:00-24:00", "2026-11-23 23:59", True),
        ("Sat-Mon 00:00-24:00", "2026-11-24 00:00", False),
        ("Tue,Fri-Sat 08:00-09:00", "2026-11-21 08:30", True),
        ("Tue,Fri-Sat 08:00-09:00", "2026-11-22 08:30", False),
        ("Sun 23:00-01:00", "2026-11-23 00:30", True),
        ("00:00-00:00", "2026-11-23 00:00", True),
    ],
)
def test_days_and_times(window: str, time: str, open_: bool) -> None:
    assert window_is_open(windows(window), at(time)) is open_


def test_next_opening_and_closing() -> None:
    weekly = windows("Mon-Thu 22:00-05:00", "Fri 04:00-06:00")
    assert window_opens_at(weekly, at("2026-11-20 06:00")) == at("2026-11-23 22:00")
    assert window_opens_at(weekly, at("2026-11-19 23:00")) == at("2026-11-19 23:00")
    assert closes_at(weekly, at("2026-11-19 23:00")) == at("2026-11-20 06:00"), "windows that touch are one"
    assert closes_at(weekly, at("2026-11-20 06:00")) is None
    assert window_opens_at(windows("Fri 22:00-23:00"), at("2026-11-20 23:00")) == at("2026-11-27 22:00")


def test_one_that_never_closes() -> None:
    assert closes_at(windows("00:00-12:00", "12:00-24:00"), at("2026-11-20 11:00")) is None


def test_they_are_in_the_time_zone_of_the_fleet() -> None:
    tokyo = windows("Fri 22:00-23:00", zone="Asia/Tokyo")
    assert window_is_open(tokyo, at("2026-11-20 13:30"))
    assert not window_is_open(tokyo, at("2026-11-20 22:30"))


BERLIN = "Europe/Berlin"  # forward on 2026-03-29 at 02:00, back on 2026-10-25 at 03:00


@pytest.mark.parametrize(
    ("window", "begins", "ends"),
    [
        ("Sat 22:00-05:00", "2026-03-28T21:00Z", "2026-03-29T03:00Z"),
        ("Sun 02:00-02:30", "2026-03-29T01:00Z", "2026-03-29T01:30Z"),
        ("Sun 01:00-02:30", "2026-03-29T00:00Z", "2026-03-29T01:30Z"),
        ("Sat 22:00-05:00", "2026-10-24T20:00Z", "2026-10-25T04:00Z"),
        ("Sun 02:00-03:00", "2026-10-25T00:00Z", "2026-10-25T02:00Z"),
        ("Sun 01:30-02:30", "2026-10-24T23:30Z", "2026-10-25T00:30Z"),
    ],
)
def test_where_the_clocks_are_set(window: str, begins: str, ends: str) -> None:
    begin, end = (dt.datetime.fromisoformat(text).timestamp() for text in (begins, ends))
    options = windows(window, zone=BERLIN)
    assert window_opens_at(options, begin - 3 * 3600) == begin
    assert closes_at(options, begin) == end
    assert [window_is_open(options, t) for t in (begin - 1, begin, end - 1, end)] == [False, True, True, False]


@pytest.mark.parametrize("name", ["Europe/Berlyn", "../etc/passwd", "Europe", "/etc/localtime", "a\0b", "."])
def test_an_unknown_time_zone_is_the_fleets_error(name: str) -> None:
    with pytest.raises(FleetInvalid, match="is not known on this machine"):
        window_is_open(windows("22:00-05:00", zone=name), 0.0)


_days = st.sampled_from(["", "Mon ", "Mon-Fri ", "Sat-Sun ", "Fri-Mon ", "Wed,Sun "])
_times = st.tuples(st.integers(0, 23), st.sampled_from([0, 30]), st.integers(0, 23), st.sampled_from([0, 15]))
_windows = st.builds(lambda d, t: f"{d}{t[0]:02}:{t[1]:02}-{t[2]:02}:{t[3]:02}", _days, _times)


@hypothesis.settings(deadline=None)
@given(
    st.lists(_windows, min_size=1, max_size=3),
    st.sampled_from(["UTC", BERLIN, "America/St_Johns", "Pacific/Apia", "Australia/Lord_Howe"]),
    st.integers(1_700_000_000, 1_900_000_000),
)
def test_opening_and_closing_agree_with_being_open(texts: list[str], zone: str, now: int) -> None:
    options = windows(*texts, zone=zone)
    opens, closes = window_opens_at(options, now), closes_at(options, now)
    assert opens is not None
    assert now <= opens < now + 8 * DAY
    assert window_is_open(options, opens)
    if window_is_open(options, now):
        assert opens == now
        if closes is not None:
            assert closes > now
            assert window_is_open(options, closes - 1)
            assert not window_is_open(options, closes)
    else:
        assert closes is None
        assert not window_is_open(options, opens - 1)
        assert not window_is_open(options, (now + opens) // 2) or opens - now < 2


@hypothesis.settings(deadline=None)
@given(st.integers(1_700_000_000, 1_900_000_000))
def test_in_a_zone_without_changes_it_is_what_the_clock_says(now: int) -> None:
    clock = dt.datetime.fromtimestamp(now, dt.UTC)
    evening = clock.weekday() < 5 and clock.hour >= 22
    morning = 0 < clock.weekday() < 6 and clock.hour < 5
    assert window_is_open(windows("Mon-Fri 22:00-05:00"), now) is (evening or morning)


HOSTS = [f"h{i}" for i in range(12)]


def by_looking(slots: Slots, waiting: dict[str, tuple[int, ...]], number: int) -> list[str]:
    """The first that may go, then the next that may go with it, and so on, until one is met for which no room is."""
    room, claims, chosen = slots.limit - slots.used, set[Key](), list[str]()
    for host in sorted(waiting, key=lambda each: (waiting[each], each)):
        costs = 0 if host in slots.down else 1
        if len(chosen) == number or costs > room:
            break
        others = (slots.held | slots.down) - {host}
        out = {key for other in others for key in slots.keys(other)}
        if not (out | claims) & set(slots.keys(host)):
            chosen.append(host)
            claims.update(slots.keys(host))
            room -= costs
    return chosen


_labels = st.fixed_dictionaries({}, optional={"rack": st.sampled_from("ab"), "row": st.sampled_from("xyz")})
_acts = st.tuples(st.sampled_from(["add", "begin", "begin", "free", "free", "leave", "down", "up"]), st.integers(0, 11))


@hypothesis.settings(deadline=None, max_examples=300)
@given(st.lists(_labels, min_size=12, max_size=12), st.integers(1, 6), st.lists(_acts, max_size=60), st.integers(0, 5))
def test_a_queue_chooses_as_if_it_looked_at_everybody(
    labels: list[dict[str, str]], limit: int, acts: list[tuple[str, int]], number: int
) -> None:
    keys = {host: keys_of(["rack", "row"], each) for host, each in zip(HOSTS, labels, strict=True)}
    slots = Slots(limit, lambda host: keys[host], ())
    queue = Queue(slots)
    waiting: dict[str, tuple[int, ...]] = {}

    def add(host: str) -> None:
        waiting[host] = (0 if host in slots.down else 1, HOSTS.index(host))
        queue.add(host, waiting[host])

    for host in HOSTS:
        add(host)
    for act, which in acts:
        host = HOSTS[which]
        chosen = queue.first(number, Claims(slots.limit - slots.used))
        assert chosen == by_looking(slots, waiting, number)
        assert chosen == queue.first(number, Claims(slots.limit - slots.used)), "it changes nothing"
        if act == "begin" and chosen:
            host = chosen[which % len(chosen)]
            queue.discard(host)
            del waiting[host]
            slots.set_held(host, True)
        elif act == "leave":
            queue.discard(host)
            waiting.pop(host, None)
        elif act == "free":
            slots.set_held(host, False)
        elif act == "add" and host not in slots.held:
            add(host)
        elif act in ("down", "up"):
            slots.set_down(host, act == "down")
            if host in waiting:
                add(host)
        assert slots.used == len(slots.held | slots.down)
    assert sorted(queue) == sorted(waiting)


def racks(**labels: str) -> tuple[Slots, Queue]:
    """Hosts that wait in this order, with their racks and rows: ``h1="a"``, ``h2="az"``."""
    slots = Slots(9, lambda host: tuple(("label", letter) for letter in labels[host]), ())
    queue = Queue(slots)
    for rank, host in enumerate(labels):
        queue.add(host, (rank,))
    return slots, queue


def begin(slots: Slots, queue: Queue, *hosts: str) -> None:
    assert queue.first(9, Claims(9)) == list(hosts)
    for host in hosts:
        queue.discard(host)
        slots.set_held(host, True)
    assert queue.first(9, Claims(9)) == []


def test_who_leaves_keeps_nobody_behind_it_waiting() -> None:
    slots, queue = racks(h1="a", h2="a", h3="a")
    begin(slots, queue, "h1")
    slots.set_held("h1", False)
    queue.discard("h2")
    assert queue.first(9, Claims(9)) == ["h3"]


def test_who_waits_for_something_else_keeps_nobody_behind_it_waiting() -> None:
    slots, queue = racks(h0="z", h1="a", h2="az", h3="a")
    begin(slots, queue, "h0", "h1")
    slots.set_held("h1", False)
    assert queue.first(9, Claims(9)) == ["h3"]
    slots.set_held("h0", False)
    assert queue.first(9, Claims(9)) == ["h2"]


def test_who_has_no_work_takes_no_room() -> None:
    slots = Slots(1, lambda _: (("rack", "1"),), ["x"])
    slots.exempt.add("builder")
    queue = Queue(slots)
    queue.add("host", (2,))
    queue.add("builder", (1,))
    assert queue.first(9, Claims(0)) == ["builder"]


def test_claims_are_shared_between_queues() -> None:
    slots = Slots(2, lambda host: (("rack", host[0]),), ())
    one, other = Queue(slots), Queue(slots)
    one.add("a1", (1,))
    for rank, host in enumerate(["a2", "b1", "c1"]):
        other.add(host, (rank,))
    claims = Claims(2)
    assert one.first(9, claims) == ["a1"]
    assert other.first(9, claims) == ["b1"]
