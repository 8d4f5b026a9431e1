"""When hosts may be begun: the maintenance windows of a fleet, in its own time zone.  Pure.

A window belongs to the day on which it begins: ``Fri 22:00-05:00`` ends on Saturday.  Where daylight saving repeats a
time, a window begins and ends at the first of the two; where it skips one, the window keeps its length if possible.
"""

from __future__ import annotations

import datetime as dt
import functools
import zoneinfo
from collections.abc import Iterator

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.model.rollout_settings import Rollout

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
#: Days to search before and after a time.
_BEFORE, _AFTER = 2, 9


def is_open(settings: Rollout, now: float) -> bool:
    """Whether hosts may be begun at ``now`` (seconds since the epoch); raises FleetInvalid: unknown time zone."""
    return not settings.windows or any(begin <= now < end for begin, end in _spans(settings, now))


def opens_at(settings: Rollout, now: float) -> float | None:
    """When hosts may next be begun, which may be ``now``; None: never.  Raises FleetInvalid."""
    if is_open(settings, now):
        return now
    return min((begin for begin, _ in _spans(settings, now) if begin > now), default=None)


def zone(name: str) -> dt.tzinfo:
    """A time zone by its name in the tz database; raises FleetInvalid."""
    if name == "UTC":
        return dt.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise FleetInvalid(
            f"rollout: timezone: {name!r} is not known on this machine",
            hint='Write a name of the tz database such as "Europe/Berlin" or "UTC", and install the package tzdata',
        ) from None


def _spans(settings: Rollout, now: float) -> list[tuple[float, float]]:
    """(begin, end) of open times around ``now``, in order and merged."""
    where = zone(settings.timezone)
    return _merged_spans(settings.windows, where, dt.datetime.fromtimestamp(now, where).date())


@functools.lru_cache(maxsize=8)
def _merged_spans(windows: tuple[str, ...], where: dt.tzinfo, today: dt.date) -> list[tuple[float, float]]:
    spans: list[tuple[float, float]] = []
    for begin, end in sorted(span for text in windows for span in _window_spans(text, where, today)):
        if spans and begin <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        elif begin < end:
            spans.append((begin, end))
    return spans


def _window_spans(text: str, where: dt.tzinfo, today: dt.date) -> Iterator[tuple[float, float]]:
    *named, times = text.split(" ")
    days = _days(named[0]) if named else set(range(7))
    begin, end = map(_minutes, times.split("-"))
    if end <= begin:
        end += 24 * 60
    for offset in range(-_BEFORE, _AFTER + 1):
        day = today + dt.timedelta(days=offset)
        if day.weekday() in days:
            yield _at(day, begin, where), _at(day, end, where)


def _days(text: str) -> set[int]:
    """``Mon-Wed,Sat`` → {0, 1, 2, 5}; ``Sat-Mon`` → {5, 6, 0}."""
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        days |= {number % 7 for number in range(begin, end + 1 if end >= begin else end + 8)}
    return days


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


def _at(day: dt.date, minutes: int, where: dt.tzinfo) -> float:
    """Seconds since the epoch of a local time on ``day``; 24 hours and more are on the day after."""
    day += dt.timedelta(days=minutes // (24 * 60))
    return dt.datetime.combine(day, dt.time(minutes // 60 % 24, minutes % 60), where).timestamp()
