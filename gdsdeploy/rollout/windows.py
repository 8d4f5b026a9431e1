"""When hosts may be begun: the maintenance windows of a fleet, in its own time zone.  Pure.

A window belongs to the day on which it begins, so ``Fri 22:00-05:00`` lasts until Saturday.  Where the clocks are set,
a window begins and ends at the first of two equal times, and one that would begin or end at a time that is left out
keeps its length as far as it can.
"""

from __future__ import annotations

import datetime as dt
import functools
import zoneinfo
from collections.abc import Iterator

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.model.rollout_settings import Rollout

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
#: Days that are looked at before and after a time; what is open for longer counts as never closed.
_BEFORE, _AFTER = 2, 9


def is_open(settings: Rollout, now: float) -> bool:
    """Whether hosts may be begun at ``now`` (seconds since the epoch); raises FleetInvalid: unknown time zone."""
    return not settings.windows or _around(settings, now) is not None


def opens_at(settings: Rollout, now: float) -> float | None:
    """When they may next be begun: ``now`` itself if they may; None: in no week.  Raises FleetInvalid."""
    if is_open(settings, now):
        return now
    return min((begin for begin, _ in _spans(settings, now) if begin > now), default=None)


def closes_at(settings: Rollout, now: float) -> float | None:
    """When the window that is open at ``now`` ends; None: none is open, or it does not end.  Raises FleetInvalid."""
    if not settings.windows or (span := _around(settings, now)) is None:
        return None
    return span[1] if span[1] - now < (_AFTER - 2) * 86400 else None


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


def _around(settings: Rollout, now: float) -> tuple[float, float] | None:
    return next((span for span in _spans(settings, now) if span[0] <= now < span[1]), None)


def _spans(settings: Rollout, now: float) -> list[tuple[float, float]]:
    """Begin and end of the times around ``now`` at which a window is open, in order, none touching another."""
    where = zone(settings.timezone)
    today = dt.datetime.fromtimestamp(now, where).date()
    return _merged(settings.windows, where, today)


@functools.lru_cache(maxsize=8)
def _merged(windows: tuple[str, ...], where: dt.tzinfo, today: dt.date) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for begin, end in sorted(span for text in windows for span in _of(text, where, today)):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif begin < end:
            found.append((begin, end))
    return found


def _of(text: str, where: dt.tzinfo, today: dt.date) -> Iterator[tuple[float, float]]:
    *listed, times = text.split(" ")
    days = _listed(listed[0]) if listed else set(range(7))
    begin, end = map(_minutes, times.split("-"))
    if end <= begin:
        end += 24 * 60
    for offset in range(-_BEFORE, _AFTER + 1):
        day = today + dt.timedelta(days=offset)
        if day.weekday() in days:
            yield _at(day, begin, where), _at(day, end, where)


def _listed(text: str) -> set[int]:
    """``Mon-Wed,Sat`` → {0, 1, 2, 5}; ``Sat-Mon`` goes over the end of the week."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        found |= {number % 7 for number in range(begin, end + 1 if end >= begin else end + 8)}
    return found


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)


def _at(day: dt.date, minutes: int, where: dt.tzinfo) -> float:
    """Of the clock on the wall on ``day``; 24 hours and more are on the day after."""
    day += dt.timedelta(days=minutes // (24 * 60))
    return dt.datetime.combine(day, dt.time(minutes // 60 % 24, minutes % 60), where).timestamp()
