"""Ends what this process waits for: programs, connections, pauses; and the process itself, as a signal asks for it.

Long work runs within :meth:`Stop.scope`; ``run`` and ``transport`` then end early when another thread asks for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from gdsdeploy.errors import Interrupted
from gdsdeploy.host.io import streams

#: Ctrl-C, the request of a supervisor, a terminal that is gone.
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds that a second signal leaves to what ends; then it is killed.
HURRY = 5.0
#: Seconds in which what was killed has to be gone.
_GONE = 3.0
#: PR_SET_CHILD_SUBREAPER of prctl(2)
_ADOPT = 36
#: Seconds between two looks at a request.
_LOOK = 0.2
#: Seconds until an interruption that can't be made now, or that got lost, is made again.
_AGAIN = 0.05

T = TypeVar("T")


class Stop:
    """A request to end, made once and never withdrawn; safe to share between threads."""

    def __init__(self) -> None:
        #: set by the request
        self.event = threading.Event()

    def request(self) -> None:
        """End everything within a scope of this soon.  Called from another thread."""
        self.event.set()

    def check(self) -> None:
        """Raise Interrupted after the request."""
        if self.event.is_set():
            raise Interrupted("stopped before it was done; the next run resumes there")

    def wait(self, seconds: float) -> None:
        """Pause; the request raises Interrupted at once."""
        self.event.wait(seconds)
        self.check()

    def take(self, source: queue.SimpleQueue[T]) -> T:
        """The next value; the request raises Interrupted soon."""
        while True:
            self.check()
            with contextlib.suppress(queue.Empty):
                return source.get(timeout=_LOOK)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Within the block, in this thread, the request ends long work; an earlier one raises Interrupted."""
        self.check()
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


_CURRENT: ContextVar[Stop | None] = ContextVar("stop", default=None)
_NEVER = Stop()


def current() -> Stop:
    """The stop of this thread's scope; outside of one, of other threads than the main one: a signal requests it.

    The main thread gets a KeyboardInterrupt instead, and cleans up with programs and connections that nothing ends.
    """
    main = threading.current_thread() is threading.main_thread()
    return _CURRENT.get() or (_NEVER if main else _ending.stop)


def possible() -> bool:
    """Whether this thread is in a scope."""
    return _CURRENT.get() is not None


# -- Signals


class _Ending:
    """What signals have asked of this process.  Handlers run in the main thread, between any two instructions of it."""

    def __init__(self) -> None:
        #: number of the first one
        self.first = 0
        self.whole = False
        self.stop = Stop()
        self.hurried = False

    def note(self, number: int) -> None:
        """Take note of a signal, whatever it does here."""
        if not self.first:
            self.first = number
            # What Ansible's processes leave behind can be found then.
            _adopt(self.whole)

    def interrupt(self, frame: FrameType | None) -> None:
        """The first time: KeyboardInterrupt here, an end for other threads.  Later: HURRY seconds, then SIGKILL."""
        if not self.stop.event.is_set():
            self.stop.request()
            self._raise(0, frame)
        elif not self.hurried:
            self.hurried = True
            signal.signal(signal.SIGALRM, self._run_out)
            signal.setitimer(signal.ITIMER_REAL, HURRY, 1.0)

    def _raise(self, _number: int, frame: FrameType | None) -> None:
        """KeyboardInterrupt, after an import: what a module does while it is read may make another error of it."""
        above = frame
        while above is not None:
            if above.f_code.co_filename == "<frozen importlib._bootstrap>":
                self._again()
                return
            above = above.f_back
        raise KeyboardInterrupt

    def _again(self) -> None:
        if not self.hurried:
            signal.signal(signal.SIGALRM, self._raise)
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)

    def unraisable(self, error: sys.UnraisableHookArgs) -> None:
        """Python drops what is raised in a finaliser or in a callback of C: an interruption is made again."""
        if isinstance(error.exc_value, KeyboardInterrupt):
            self._again()
        else:
            sys.__unraisablehook__(error)

    def _run_out(self, _number: int, frame: FrameType | None) -> None:
        kill(os.getpid())
        self._raise(0, frame)


_ending = _Ending()
#: Processes that outlive this one: started to do so.
detached: set[int] = set()


@contextmanager
def signals(action: Callable[[int], None] | None = None) -> Iterator[None]:
    """Have ``action`` get the number of each signal during the block; ignored signals stay ignored.

    None: interrupt the main thread.
    """
    before: dict[signal.Signals, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        _ending.note(number)
        if action is None:
            _ending.interrupt(frame)
        else:
            action(number)

    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def whole_process() -> Iterator[None]:
    """The block is all that this process does: if a signal ends it, what it started is ended, too.

    The process then dies by that signal.  A block that a signal ended is left by KeyboardInterrupt, or by SystemExit
    with the code of Interrupted.
    """
    global _ending
    _ending = ending = _Ending()
    ending.whole = True
    before, sys.unraisablehook = sys.unraisablehook, ending.unraisable
    code: object = 0
    with signals():
        try:
            yield
        except SystemExit as error:
            code = error.code
            raise
        except KeyboardInterrupt:
            code = Interrupted.exit_code
            raise
        finally:
            if ending.first and (code == Interrupted.exit_code or (ending.stop.event.is_set() and code)):
                _die(ending.first)
            if ending.first:
                signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook = before
            _adopt(False)
            _ending = _Ending()


def is_interruption(error: BaseException | None) -> bool:
    """Whether it is one, or came out of the clean-up after one: zipfile raises another error then."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _adopt(whether: bool) -> None:
    """Whether orphans below this process become its children."""
    ctypes.CDLL(None).prctl(_ADOPT, int(whether), 0, 0, 0)


def _die(number: int) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    end = time.monotonic() + _GONE
    while kill(os.getpid()) and time.monotonic() < end:
        time.sleep(0.02)
    streams.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def kill(process: int) -> bool:
    """SIGKILL to all that the process started and that still runs, but for what is detached; whether there was any."""
    children = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The second field, the program's name in parentheses, may contain spaces and parentheses.
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children[int(parent)].append(int(entry.parent.name))
    found, waiting = False, [process]
    while waiting:
        for child in children[waiting.pop()]:
            if child not in detached:
                waiting.append(child)
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
                    found = True
    return found
