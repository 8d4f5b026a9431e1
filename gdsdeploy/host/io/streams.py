"""Standard streams that neither change a program's exit code nor hide its errors."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import sys
from typing import Any, Iterable, Iterator, Type

from .wording import escaped, printable

#: What a program ends with whose reader has gone, as SIGPIPE ends others; and one whose results are lost otherwise.
UNREAD, UNWRITTEN = 141, 1
_NOT_ASCII, _NOT_UTF8 = re.compile(r"[^\x00-\x7f]"), re.compile(r"[\ud800-\udfff]")


class Outlet:
    """A text stream that takes each character and never fails; for the rest, the stream that it wraps.

    An encoding other than UTF-8 gets ASCII, and other characters as JSON escapes them, so that JSON stays the same
    document.  What can't be written is lost: of standard output that is said once, and ``code`` is not 0 from then on.
    """

    encoding = "utf-8"

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.code = 0

    def write(self, text: str) -> int:
        """Write ``text``; returns the number of characters that it had."""
        strange = _NOT_UTF8 if codecs.lookup(self._stream.encoding or "utf-8").name == "utf-8" else _NOT_ASCII
        shown = text if text.isascii() else strange.sub(lambda match: escaped(match[0]), text)
        with self._losing():
            self._stream.write(shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of ``lines``."""
        for text in lines:
            self.write(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._losing():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            # So goes the rest, and what Python writes when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self.code = UNREAD if isinstance(problem, BrokenPipeError) else UNWRITTEN
            self._say(problem)

    def _say(self, problem: OSError) -> None:
        if self is sys.stdout and self.code == UNWRITTEN:
            print(f"error: standard output can't be written: {problem.strerror}", file=sys.stderr, flush=True)


class Printable(Outlet):
    """An Outlet on which everything is printable; a reader that has gone raises BrokenPipeError."""

    def write(self, text: str) -> int:
        super().write(printable(text))
        return len(text)

    def _say(self, problem: OSError) -> None:
        if self.code == UNREAD:
            raise problem
        super()._say(problem)


@contextlib.contextmanager
def guarded(kind: Type[Outlet] = Outlet) -> Iterator[None]:
    """Have standard output and errors be of this ``kind``; a stream that is closed is empty, and can't be written."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # No file that is opened later gets its number, nor do programs that are started lack it.
            handle = os.open(os.devnull, os.O_RDONLY)
            os.set_inheritable(handle, handle <= 2)
            setattr(sys, name, os.fdopen(handle, "w" if number else "r"))
    with contextlib.redirect_stdout(kind(sys.stdout)), contextlib.redirect_stderr(kind(sys.stderr)):
        yield


def flush() -> None:
    """Write what is buffered, where that is possible."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def end(status: int) -> int:
    """What a program ends with: its own ``status``, or what is to be said of its standard output where that is 0."""
    sys.stdout.flush()
    return status or lost()


def lost() -> int:
    """What a program would end with whose results can't be written; 0: they can, so far."""
    return int(getattr(sys.stdout, "code", 0))
