"""Ends what this process waits for, from another thread: programs, connections, pauses.

Whoever performs something long does it within :meth:`Stop.scope`; ``run`` and ``transport`` then know how to end early
without every function in between passing that on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gdsdeploy.errors import Interrupted


class Stop:
    """A wish to end, which is made once and never taken back; safe to share between threads."""

    def __init__(self) -> None:
        self._wished = threading.Event()
        self._lock = threading.Lock()
        self._ends: dict[int, Callable[[], None]] = {}
        self._number = 0

    @property
    def wished(self) -> bool:
        return self._wished.is_set()

    @property
    def event(self) -> threading.Event:
        """Set once it is wished; for those who wait in their own way."""
        return self._wished

    def wish(self) -> None:
        """Have everything within a scope of this end soon.  Called from another thread."""
        with self._lock:
            self._wished.set()
            ends = list(self._ends.values())
        for end in ends:
            # Each may wait for what it ends.
            threading.Thread(target=end, daemon=True).start()

    def check(self) -> None:
        """Raise Interrupted once it is wished."""
        if self.wished:
            raise Interrupted("stopped before it was done; it is taken up again where it was left")

    def wait(self, seconds: float) -> None:
        """Pause; raises Interrupted as soon as it is wished."""
        self._wished.wait(seconds)
        self.check()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """For the block, in this thread, what can end early does.  Raises Interrupted if it is wished already."""
        self.check()
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """For the block ``end`` is called, by another thread, when it is wished; at once if it is already."""
        with self._lock:
            self._number += 1
            number = self._number
            self._ends[number] = end
            already = self._wished.is_set()
        if already:
            threading.Thread(target=end, daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._ends.pop(number, None)


_CURRENT: ContextVar[Stop | None] = ContextVar("stop", default=None)
_NEVER = Stop()


def current() -> Stop:
    """The stop of the scope that this thread is in; one that nobody wishes where it is in none."""
    return _CURRENT.get() or _NEVER


def possible() -> bool:
    """Whether this thread is in a scope."""
    return _CURRENT.get() is not None
