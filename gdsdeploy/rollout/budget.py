"""Which hosts may be out of work at the same time: a number of them, and no two of one rack.  Pure.

Every call costs O(log n): hosts that wait for another host of their rack are parked, and the return of that host wakes
only the first of them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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
        self._queues: list[Queue] = []
        for host in down:
            self.set_down(host, True)

    def listen(self, queue: Queue) -> None:
        """Report every key that becomes free to ``queue``."""
        self._queues.append(queue)

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
                for queue in self._queues:
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
        slots.listen(self)

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
