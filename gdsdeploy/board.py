"""The board: which host or step is at work, and since when.  Any thread updates it; the console shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gdsdeploy.report.model import Activity


class Board:
    """Steps of this program, and one activity of each host.  clock: seconds, only ever advancing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._activities: dict[object, Activity] = {}
        self._earlier: dict[str, list[float]] | None = None
        self._times: dict[str, list[float]] = {}

    def activities(self) -> list[Activity]:
        """All that is under way."""
        with self._lock:
            return list(self._activities.values())

    def begin(self, host: str, what: str, *, ago: float = 0.0, timed: bool = True) -> None:
        """``host`` is at work on ``what``, for ``ago`` seconds already.  timed: whether there is a usual time."""
        self._begin(host, what, host, ago, timed)

    def end(self, host: str, *, done: bool = True) -> None:
        """``host`` isn't at work any more.  done: it came to its end, so that its time says how long it takes."""
        self._end(host, done)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step of this program."""
        key = object()
        self._begin(key, what, "", 0.0, timed=True)
        done = False
        try:
            yield
            done = True
        finally:
            self._end(key, done)

    def _begin(self, key: object, what: str, host: str, ago: float, timed: bool) -> None:
        # Here, because most verbs print and never wait.
        from gdsdeploy import durations

        with self._lock:
            if self._earlier is None:
                self._earlier = durations.load()
            usual = durations.usual(self._earlier.get(what, ())) if timed else None
            self._activities[key] = Activity(what, host, self.clock() - ago, usual, timed)

    def _end(self, key: object, done: bool) -> None:
        from gdsdeploy import durations

        with self._lock:
            activity = self._activities.pop(key, None)
            if activity is None:
                return
            seconds = self.clock() - activity.since
            if done and activity.timed and seconds >= durations.LEAST:
                self._times.setdefault(activity.what, []).append(seconds)
            if self._times and not any(not each.host for each in self._activities.values()):
                times, self._times = self._times, {}
                durations.record(times)
                self._earlier = None
