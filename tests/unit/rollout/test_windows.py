"""Maintenance windows, over midnight, over weekends, and where the clocks are set."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout.waves import window_is_open, window_opens_at

DAY = 86400


def settings(*windows: str, zone: str = "UTC") -> Rollout:
    return Rollout.model_validate({"windows": list(windows), "timezone": zone})


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
    assert window_is_open(settings(), 5.0)
    assert window_opens_at(settings(), 5.0) == 5.0
    assert closes_at(settings(), 5.0) is None


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
    assert window_is_open(settings(window), at(time)) is open_


def test_next_opening_and_closing() -> None:
    weekly = settings("Mon-Thu 22:00-05:00", "Fri 04:00-06:00")
    assert window_opens_at(weekly, at("2026-11-20 06:00")) == at("2026-11-23 22:00")
    assert window_opens_at(weekly, at("2026-11-19 23:00")) == at("2026-11-19 23:00")
    assert closes_at(weekly, at("2026-11-19 23:00")) == at("2026-11-20 06:00"), "windows that touch are one"
    assert closes_at(weekly, at("2026-11-20 06:00")) is None
    assert window_opens_at(settings("Fri 22:00-23:00"), at("2026-11-20 23:00")) == at("2026-11-27 22:00")


def test_one_that_never_closes() -> None:
    assert closes_at(settings("00:00-12:00", "12:00-24:00"), at("2026-11-20 11:00")) is None


def test_they_are_in_the_time_zone_of_the_fleet() -> None:
    tokyo = settings("Fri 22:00-23:00", zone="Asia/Tokyo")
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
    options = settings(window, zone=BERLIN)
    assert window_opens_at(options, begin - 3 * 3600) == begin
    assert closes_at(options, begin) == end
    assert [window_is_open(options, t) for t in (begin - 1, begin, end - 1, end)] == [False, True, True, False]


@pytest.mark.parametrize("name", ["Europe/Berlyn", "../etc/passwd", "Europe", "/etc/localtime", "a\0b", "."])
def test_an_unknown_time_zone_is_the_fleets_error(name: str) -> None:
    with pytest.raises(FleetInvalid, match="is not known on this machine"):
        window_is_open(settings("22:00-05:00", zone=name), 0.0)


_days = st.sampled_from(["", "Mon ", "Mon-Fri ", "Sat-Sun ", "Fri-Mon ", "Wed,Sun "])
_times = st.tuples(st.integers(0, 23), st.sampled_from([0, 30]), st.integers(0, 23), st.sampled_from([0, 15]))
_windows = st.builds(lambda d, t: f"{d}{t[0]:02}:{t[1]:02}-{t[2]:02}:{t[3]:02}", _days, _times)


@hypothesis.settings(deadline=None)
@given(
    st.lists(_windows, min_size=1, max_size=3),
    st.sampled_from(["UTC", BERLIN, "America/St_Johns", "Pacific/Apia", "Australia/Lord_Howe"]),
    st.integers(1_700_000_000, 1_900_000_000),
)
def test_opening_and_closing_agree_with_being_open(windows: list[str], zone: str, now: int) -> None:
    options = settings(*windows, zone=zone)
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
    assert window_is_open(settings("Mon-Fri 22:00-05:00"), now) is (evening or morning)
