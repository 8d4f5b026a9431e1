"""The only module that writes to the terminal: progress, warnings and errors to stderr, data to stdout.

Every text is made printable on its way out, because it may come from hosts, files and programs: the terminal gets no
control codes but this module's styles.  Colour never carries meaning alone; rich honours NO_COLOR and pipes.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from json import dumps
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gdsdeploy.board import Board
from gdsdeploy.host.io.wording import joined, line, printable, span
from gdsdeploy.report import model
from gdsdeploy.report.model import FEW

#: Columns of a terminal: fewer are no width of one.
LEAST = 20


class _Terminal(Console):
    """Everything that is drawn passes through ``render``; control codes of rich's own are no text."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # COLUMNS=0 is no width: rich would print nothing at all.
        if self.width < LEAST:
            self.width = 80
        if not self.height:
            self.height = 25

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


_talk = _Terminal(stderr=True, highlight=False, soft_wrap=True)
_data = _Terminal(highlight=False, soft_wrap=True)
_quiet = False
#: Seconds between two lines about work that is under way, where lines can't be redrawn.
BEAT = 60.0
#: Columns of a table that goes to a pipe or a file.
PIPE = 200
#: Lines of the live region.
ROWS = 12
#: What is under way, of all threads.
board = Board()
_drawing = threading.Lock()


def configure(*, quiet: bool) -> None:
    """Silence progress (never errors or data)."""
    global _quiet
    _quiet = quiet


def say(text: str = "") -> None:
    """One line of progress to stderr."""
    if not _quiet:
        _talk.print(Text(line(text)))


def warn(text: str) -> None:
    """One warning to stderr."""
    _talk.print(Text.assemble(("warning:", "yellow"), " ", line(text)))


def error(text: str, hint: str | None = None) -> None:
    """One error to stderr, followed by its next step."""
    _talk.print(Text.assemble(("error:", "bold red"), " ", text))
    if hint:
        _talk.print(Text.assemble(("hint:", "bold"), " ", hint))


def usage(text: str) -> None:
    """How a command is used, and what was wrong, to stderr."""
    _talk.print(Text(text))


def data(text: str) -> None:
    """Results to stdout, without buffering.  JSON stays the same document."""
    stream([text + "\n"])


def stream(parts: Iterable[str]) -> None:
    """Results to stdout as they come, with the line ends that they have; printable as ``data``."""
    for part in parts:
        print(printable(part), end="", flush=True)  # noqa: T201 - this is the place that may


def file(text: str) -> None:
    """The text of a file to stdout: as it is, in UTF-8, where stdout is redirected, as ``data`` on a terminal."""
    if sys.stdout.isatty():
        data(text)
        return
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print(text, flush=True)  # noqa: T201


def table(rows: Table) -> None:
    """A table of results to stdout; as wide as it needs to be where that isn't a terminal."""
    (_data if _data.is_terminal else _Terminal(highlight=False, width=PIPE)).print(rows)


def json(value: object) -> None:
    """A JSON document to stdout."""
    data(dumps(value, indent=2, ensure_ascii=False))


def say_each(number: int) -> Callable[[str], None]:
    """``say`` for a line about each of a few hosts; what says nothing where their ``number`` is large."""
    return say if number <= FEW else lambda _: None


def is_live() -> bool:
    """Whether stderr is a terminal on which lines can be redrawn."""
    # rich takes a pipe for a terminal where FORCE_COLOR is set.
    return _talk.is_terminal and _talk.file.isatty() and not _talk.is_dumb_terminal and not _quiet


@contextmanager
def live(
    render: Callable[[int, int], Sequence[str]],
    beat: Callable[[], str],
    *,
    redraw: bool = True,
    transient: bool = False,
) -> Iterator[None]:
    """Keep lines below all other output and redraw them twice a second; elsewhere, say ``beat()`` every BEAT seconds.

    render: columns, rows → lines; called by another thread, as is ``beat``, whose text may be empty.
    redraw: False: only say beats.  transient: remove the last lines at the end.
    Within another one, it shows nothing.
    """

    def drawn() -> Text:
        return Text(joined(render(_talk.width, _talk.height)), no_wrap=True, overflow="ellipsis")

    if not _drawing.acquire(blocking=False):
        yield
        return
    try:
        if redraw and is_live():
            region = Live(
                get_renderable=drawn, console=_talk, refresh_per_second=2, vertical_overflow="ellipsis",
                transient=transient, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            with region:
                yield
        else:
            with _beating(beat):
                yield
    finally:
        _drawing.release()


@contextmanager
def _beating(beat: Callable[[], str]) -> Iterator[None]:
    ended = threading.Event()
    thread = threading.Thread(target=keep_beating, args=(beat, ended.wait), daemon=True)
    if not _quiet:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


def keep_beating(beat: Callable[[], str], wait: Callable[[float], bool]) -> None:
    """Say ``beat()`` every BEAT seconds until ``wait``, which waits for some seconds, returns True."""
    while not wait(BEAT):
        if text := beat():
            say(text)


@dataclass
class Step:
    """A step that is under way."""

    #: the part of the step that runs now
    detail: Callable[[], str] = str
    #: what failed in it, although no error ends it: ``2 of 3 hosts failed``
    failure: str = ""


@contextmanager
def step(title: str) -> Iterator[Step]:
    """Announce a long step, show it with all that is on the board while it lasts, measure it, and print its end.

    Its end is a ✓ only without an error and a failure.
    """
    if not is_live():
        say(f"‣ {title} …")
    begin = time.monotonic()
    current, mark = Step(), "✗"
    try:
        with live(_lines, _beat, transient=True), board.step(title, lambda: current.detail()):
            yield current
        mark = "✗" if current.failure else "✓"
    finally:
        end = f"{title}: {current.failure}" if current.failure else title
        say(f"  {mark} {end} ({span(time.monotonic() - begin)})")


def _lines(_columns: int, rows: int) -> Sequence[str]:
    return model.activity_lines(board.activities(), board.clock(), min(ROWS, rows - 2))


def _beat() -> str:
    return model.heartbeat(board.activities(), board.clock())
