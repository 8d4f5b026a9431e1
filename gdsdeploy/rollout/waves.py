"""Which hosts are begun, and when.  Pure.

*Waves* come from the fleet file's settings and facts of its hosts.

*The budget* says which hosts may be out of work at the same time: a number of them, and no two of one rack.  Every call
costs O(log n): hosts that wait for another host of their rack are parked, and the return of that host wakes only the
first of them.

*Maintenance windows* are in the fleet's own time zone.  A window belongs to the day on which it begins: ``Fri
22:00-05:00`` ends on Saturday.  Where daylight saving repeats a time, a window begins and ends at the first of the two;
where it skips one, the window keeps its length if possible.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import functools
import heapq
import zoneinfo
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.model.hostnames import natural
from gdsdeploy.model.rollout import Wave
from gdsdeploy.model.rollout_settings import Batches, Canary, Rollout

BUILDERS, CANARY, CONSOLE = "builders", "canary", "console"


@dataclass(frozen=True)
class Candidate:
    """A host, or a builder, that may take part."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    #: equal for hosts of one kind: e.g. profile, GPU model and running kernel
    kind: str = ""
    #: it builds modules for others, and runs no jobs
    builder: bool = False
    #: it has the new lock already; such a host makes a poor canary
    satisfied: bool = False
    #: a person has to enrol a key at its console
    console: bool = False


@dataclass(frozen=True)
class Layout:
    """Waves in their order, and hosts that are left out, with why."""

    waves: tuple[Wave, ...]
    skipped: Mapping[str, str]
    #: hosts out of work at a time
    max_unavailable: int


def share(value: int | str, of: int) -> int:
    """A number of hosts, or ``N%`` of them, rounded down; never less than one."""
    number = int(Fraction(value.removesuffix("%")) * of / 100) if isinstance(value, str) else value
    return max(1, number)


def layout(settings: Rollout, candidates: Sequence[Candidate]) -> Layout:
    """The waves, the same for the same input; raises FleetInvalid: a canary takes no part.

    Builders go first, and hosts that wait for a person at their console last.  Shares count the hosts that take part;
    hosts that ``order`` doesn't sort keep their order.
    """
    skipped = {host.name: f"it has the label {settings.skip}" for host in candidates if settings.skip in host.labels}
    taking = [host for host in candidates if host.name not in skipped]
    hosts = sorted((host for host in taking if not host.builder), key=lambda host: _order(settings.order, host.labels))
    waves: list[Wave] = []
    if builders := tuple(host.name for host in taking if host.builder):
        waves.append(Wave(BUILDERS, builders, halt_at=1, drain=False))
    waiting = {host.name for host in hosts if host.console}
    alone = [host for host in hosts if not host.console]
    first = tuple(name for name in _canary(settings.canary, hosts, skipped) if name not in waiting)
    if waiting and not first:
        first = tuple(_one_of_each(alone))
    if first:
        limit = min(settings.failures.canary, len(first))
        waves.append(Wave(CANARY, first, soak=settings.canary.soak, halt_at=limit, canary=True))
    rest = [host.name for host in alone if host.name not in set(first)]
    halt_at = share(settings.failures.later, len(hosts))
    at = 0
    for number, size in enumerate(_sizes(settings.batches, len(hosts)), 2 if first else 1):
        if at >= len(rest):
            break
        waves.append(Wave(f"wave-{number}", tuple(rest[at : at + size]), settings.batches.soak, halt_at))
        at += size
    waves += _consoles(settings, [host.name for host in hosts if host.name in waiting], halt_at, canary=not first)
    return Layout(tuple(waves), skipped, share(settings.max_unavailable, len(hosts)))


def _consoles(settings: Rollout, names: Sequence[str], halt_at: int, *, canary: bool) -> Iterator[Wave]:
    """Waves of as many hosts as have a person at their console at a time; canary: the first one is the canary."""
    size = settings.console.hosts
    for number, at in enumerate(range(0, len(names), size), 1):
        first = canary and number == 1
        hosts = tuple(names[at : at + size])
        limit = min(settings.failures.canary, len(hosts)) if first else halt_at
        yield Wave(f"{CONSOLE}-{number}", hosts, halt_at=limit, canary=first, console=True)


def _sizes(batches: Batches, of: int) -> Iterator[int]:
    """Sizes of the waves, without an end."""
    size = first = share(batches.size, of)
    largest = share(batches.largest, of)
    while True:
        yield min(size, largest)
        if batches.strategy == "linear":
            size += first
        elif batches.strategy == "exponential" and size < largest:
            size *= batches.factor


def _canary(canary: Canary, hosts: Sequence[Candidate], skipped: Mapping[str, str]) -> tuple[str, ...]:
    names: set[str] = set()
    for pattern in canary.hosts:
        matches = {host.name for host in hosts if fnmatch.fnmatchcase(host.name, pattern)}
        if not matches:
            raise FleetInvalid(
                f"rollout: canary: hosts: {pattern!r} names no host that takes part{_left_out(pattern, skipped)}",
                hint="Name hosts of the fleet file, or shell patterns of their names",
            )
        names |= matches
    if canary.labels:
        matches = {host.name for host in hosts if canary.labels.items() <= host.labels.items()}
        if not matches:
            labels = ", ".join(f"{name}: {value}" for name, value in sorted(canary.labels.items()))
            raise FleetInvalid(
                f"rollout: canary: labels: no host that takes part has {labels}",
                hint="Give a host these labels in the fleet file; without this key one host of each kind goes first",
            )
        names |= matches
    if not names and canary.per_kind:
        names = set(_one_of_each(hosts))
    return tuple(host.name for host in hosts if host.name in names)


def _left_out(pattern: str, skipped: Mapping[str, str]) -> str:
    names = sorted(name for name in skipped if fnmatch.fnmatchcase(name, pattern))
    return f"; {names[0]} does not because {skipped[names[0]]}" if names else ""


def _one_of_each(hosts: Iterable[Candidate]) -> Iterator[str]:
    """The first host of each kind, preferably one that will change."""
    first: dict[str, Candidate] = {}
    for host in hosts:
        if host.kind not in first or (first[host.kind].satisfied and not host.satisfied):
            first[host.kind] = host
    return (host.name for host in first.values())


def _order(names: Iterable[str], labels: Mapping[str, str]) -> list[tuple[int, tuple[tuple[int, str], ...]]]:
    """By the labels' values, ``rack9`` before ``rack10``; hosts without a label after those that have it."""
    return [(0, natural(labels[name])) if name in labels else (1, ()) for name in names]


#: A label and its value, of which only one host may be out at a time.
Key = tuple[str, str]
#: rank, unique number, host
_Waiter = tuple[tuple[int, ...], int, str]


@dataclass
class Claims:
    """What chosen hosts will take once they are begun."""

    room: int
    keys: set[Key] = field(default_factory=set)


class Slots:
    """Hosts that are out of work or about to be: by this rollout (``held``), or for other reasons (``down``)."""

    def __init__(self, limit: int, keys: Callable[[str], tuple[Key, ...]], down: Iterable[str]) -> None:
        """limit: number of hosts.  keys: host → keys of which only one host may be out."""
        self.limit = limit
        self.keys = keys
        self.held: set[str] = set()
        #: builders, which never have work
        self.exempt: set[str] = set()
        self.down: set[str] = set()
        #: key → hosts that are out
        self.busy: Counter[Key] = Counter()
        #: number of hosts that take a slot
        self.used = 0
        #: get every key that becomes free
        self.queues: list[Queue] = []
        for host in down:
            self.set_down(host, True)

    def costs(self, host: str) -> int:
        """Slots that beginning the host takes: none if it's out already, or has no work."""
        return 0 if host in self.down or host in self.exempt else 1

    def claim(self, host: str, claims: Claims) -> bool:
        """Add the host to ``claims``; False: it may not go now."""
        keys = () if host in self.exempt else self.keys(host)
        costs = self.costs(host)
        if costs > claims.room or self.blocking(host) or not claims.keys.isdisjoint(keys):
            return False
        claims.keys.update(keys)
        claims.room -= costs
        return True

    def set_held(self, host: str, holds: bool) -> None:
        """Whether the host takes a slot for this rollout."""
        self._set(self.held, host, holds, self.down)

    def set_down(self, host: str, down: bool) -> None:
        """Whether the host is out of work for reasons outside of this rollout."""
        self._set(self.down, host, down, self.held)

    def _set(self, hosts: set[str], host: str, belongs: bool, others: set[str]) -> None:
        """Put the host into ``hosts`` or take it out; one that is in ``others`` has its slot already."""
        if belongs is (host in hosts):
            return
        (hosts.add if belongs else hosts.remove)(host)
        if host not in others:
            (self._take if belongs else self._give)(host)

    def blocking(self, host: str) -> Key | None:
        """A key of ``host`` that another host has that is out."""
        if host in self.exempt:
            return None
        own = 1 if host in self.held or host in self.down else 0
        return next((key for key in self.keys(host) if self.busy[key] > own), None)

    def _take(self, host: str) -> None:
        self.used += 1
        for key in self.keys(host):
            self.busy[key] += 1

    def _give(self, host: str) -> None:
        self.used -= 1
        for key in self.keys(host):
            self.busy[key] -= 1
            if not self.busy[key]:
                del self.busy[key]
                for queue in self.queues:
                    queue.freed(key)


class Queue:
    """Hosts that wait for a slot, the lowest rank first."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        #: host → its current entry; others are stale
        self._entry: dict[str, _Waiter] = {}
        self._heap: list[_Waiter] = []
        self._parked: dict[Key, list[_Waiter]] = {}
        self._number = 0
        slots.queues.append(self)

    def __len__(self) -> int:
        return len(self._entry)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entry)

    def __contains__(self, host: object) -> bool:
        return host in self._entry

    def add(self, host: str, rank: tuple[int, ...]) -> None:
        """Add the host, or move it to ``rank``."""
        old = self._entry.get(host)
        if old is None or old[0] != rank:
            self._number += 1
            entry = self._entry[host] = (rank, self._number, host)
            heapq.heappush(self._heap, entry)

    def discard(self, host: str) -> None:
        if self._entry.pop(host, None) is not None:
            self._look_again(self._slots.keys(host))

    def first(self, number: int, claims: Claims) -> list[str]:
        """Up to ``number`` hosts that may all be begun now, in order; they stay in the queue."""
        chosen: list[str] = []
        aside: list[_Waiter] = []
        slots = self._slots
        while self._heap and len(chosen) < number:
            entry = self._heap[0]
            host = entry[2]
            costs = slots.costs(host)
            if self._entry.get(host) == entry and costs > claims.room:
                break
            heapq.heappop(self._heap)
            if self._entry.get(host) != entry:
                continue
            key = slots.blocking(host)
            if key and costs:
                heapq.heappush(self._parked.setdefault(key, []), entry)
                self._look_again(other for other in slots.keys(host) if other != key)
                continue
            aside.append(entry)
            if slots.claim(host, claims):
                chosen.append(host)
            elif not key:
                # Hosts behind it may go where only another of its keys is claimed.
                self._look_again(each for each in slots.keys(host) if each not in claims.keys)
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return chosen

    def freed(self, key: Key) -> None:
        """No host with this key is out any more: wake the first that waits for it."""
        parked = self._parked.get(key)
        while parked:
            entry = heapq.heappop(parked)
            if self._entry.get(entry[2]) == entry:
                heapq.heappush(self._heap, entry)
                break
        if not parked:
            self._parked.pop(key, None)

    def _look_again(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if not self._slots.busy[key]:
                self.freed(key)


def keys_of(apart: Iterable[str], labels: Mapping[str, str]) -> tuple[Key, ...]:
    """The host's labels of which only one host may be out, with their values."""
    return tuple((name, labels[name]) for name in apart if name in labels)


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
#: Days to search before and after a time.
_BEFORE, _AFTER = 2, 9


def window_is_open(settings: Rollout, now: float) -> bool:
    """Whether hosts may be begun at ``now`` (seconds since the epoch); raises FleetInvalid: unknown time zone."""
    return not settings.windows or any(begin <= now < end for begin, end in _spans(settings, now))


def window_opens_at(settings: Rollout, now: float) -> float | None:
    """When hosts may next be begun, which may be ``now``; None: never.  Raises FleetInvalid."""
    if window_is_open(settings, now):
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
