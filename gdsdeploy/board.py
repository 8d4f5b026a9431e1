"""The board: which host or step is at work, and since when.  Any thread updates it; the console shows it.

How long work took on this machine is in ``durations.json`` of the state folder: what a live display calls usual.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gdsdeploy import atomic, paths
from gdsdeploy.report.model import Activity, build_words

#: Seconds that work takes at least to be worth remembering; times of one kind of work, and kinds, that are remembered.
LEAST, TIMES, KINDS = 5.0, 5, 500
#: Bytes of the file.
DURATIONS_LIMIT = 2**20


def load_durations() -> dict[str, list[float]]:
    """Work → seconds that it took, the latest last; empty where nothing, or nothing that can be read, is recorded."""
    try:
        with (paths.state() / "durations.json").open("rb") as file:
            value = json.loads(file.read(DURATIONS_LIMIT))
        return {str(what): [float(seconds) for seconds in times][-TIMES:] for what, times in value.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def record_durations(work: Mapping[str, Sequence[float]]) -> None:
    """Add times to those of earlier runs.  Where they can't be written, later runs know less."""
    times = load_durations()
    for what, seconds in work.items():
        # What was done last is at the end; what wasn't done for the longest time is forgotten first.
        times[what] = [*times.pop(what, []), *(round(each, 1) for each in seconds)][-TIMES:]
    latest = dict(list(times.items())[-KINDS:])
    with contextlib.suppress(OSError):
        paths.state().mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic.write(paths.state() / "durations.json", json.dumps(latest, ensure_ascii=False), mode=0o600)


def build_progress(path: Path) -> str:
    """What a build on this machine is at, by the file that it keeps; empty: it isn't known."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return build_words(os.read(descriptor, 64).decode("ascii", "replace"))
        finally:
            os.close(descriptor)
    return ""


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

    @contextmanager
    def step(self, what: str, detail: Callable[[], str] = str) -> Iterator[None]:
        """A step of this program.  detail: the part that it works on now."""
        key = object()
        self.begin("", what, key=key)
        self.tell(key, detail)
        done = False
        try:
            yield
            done = True
        finally:
            self.end(key, done=done)

    def begin(self, host: str, what: str, *, ago: float = 0.0, timed: bool = True, key: object = None) -> None:
        """``host`` is at work on ``what``, for ``ago`` seconds already.  timed: whether there is a usual time.

        key: with which it ends; by default the host.
        """
        with self._lock:
            if self._earlier is None:
                self._earlier = load_durations()
            times = sorted(self._earlier.get(what, ())) if timed else []
            # The (upper) median.
            usual = times[len(times) // 2] if times else None
            self._activities[key or host] = Activity(what, host, self.clock() - ago, usual, timed)

    def tell(self, key: object, detail: Callable[[], str]) -> None:
        """What the work of ``key`` is at, asked whenever it is shown; without such work, nothing."""
        with self._lock:
            if key in self._activities:
                self._activities[key] = replace(self._activities[key], detail=detail)

    def end(self, key: object, *, done: bool = True) -> None:
        """That work is over.  done: it came to its end, so that its time says how long it takes."""
        with self._lock:
            activity = self._activities.pop(key, None)
            if activity is None:
                return
            seconds = self.clock() - activity.since
            if done and activity.timed and seconds >= LEAST:
                self._times.setdefault(activity.what, []).append(seconds)
            if self._times and not any(not each.host for each in self._activities.values()):
                times, self._times = self._times, {}
                record_durations(times)
                self._earlier = None
