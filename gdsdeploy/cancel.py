"""Ends what this process waits for, from another thread: programs, connections, pauses.

Long work runs within :meth:`Stop.scope`; ``run`` and ``transport`` then end early when another thread asks for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gdsdeploy.errors import Interrupted


class Stop:
    """A request to end, made once and never withdrawn; safe to share between threads."""

    def __init__(self) -> None:
        self._wished = threading.Event()
        self._lock = threading.Lock()
        self._ends: dict[int, Callable[[], None]] = {}
        self._number = 0

    @property
    def event(self) -> threading.Event:
        """Set by the request; for code that waits in its own way."""
        return self._wished

    def request(self) -> None:
        """End everything within a scope of this soon.  Called from another thread."""
        with self._lock:
            self._wished.set()
            ends = list(self._ends.values())
        for end in ends:
            # Each may block.
            threading.Thread(target=end, daemon=True).start()

    def check(self) -> None:
        """Raise Interrupted after the request."""
        if self._wished.is_set():
            raise Interrupted("stopped before it was done; the next run resumes there")

    def wait(self, seconds: float) -> None:
        """Pause; the request raises Interrupted at once."""
        self._wished.wait(seconds)
        self.check()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Within the block, in this thread, the request ends long work; an earlier one raises Interrupted."""
        self.check()
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Within the block, the request calls ``end`` in another thread; at once after an earlier request."""
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
    """The stop of this thread's scope; outside of one, a stop that is never requested."""
    return _CURRENT.get() or _NEVER


def possible() -> bool:
    """Whether this thread is in a scope."""
    return _CURRENT.get() is not None
