"""The only module that writes to the terminal: progress, warnings and errors to stderr, data to stdout.

Every text is made printable on its way out, because it may come from hosts, files and programs: the terminal gets no
control codes but this module's styles.  Colour never carries meaning alone; rich honours NO_COLOR and pipes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from json import dumps

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gdsdeploy.host.io.printable import printable


class _Terminal(Console):
    """Everything that is drawn passes through ``render``; control codes of rich's own are no text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


_talk = _Terminal(stderr=True, highlight=False, soft_wrap=True)
_data = _Terminal(highlight=False, soft_wrap=True)
_quiet = False


def configure(*, quiet: bool) -> None:
    """Silence progress (never errors or data)."""
    global _quiet
    _quiet = quiet


def say(text: str = "") -> None:
    """One line of progress to stderr."""
    if not _quiet:
        _talk.print(Text(text))


def warn(text: str) -> None:
    """One warning to stderr."""
    _talk.print(Text.assemble(("warning:", "yellow"), " ", text))


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
    print(printable(text), flush=True)  # noqa: T201 - this is the place that may


def stream(parts: Iterable[str]) -> None:
    """Results to stdout as they come, with the line ends that they have; printable as ``data``."""
    for part in parts:
        print(printable(part), end="")  # noqa: T201 - this is the place that may
    sys.stdout.flush()


def file(text: str) -> None:
    """The text of a file to stdout: as it is where stdout is redirected, as ``data`` on a terminal."""
    print(printable(text) if sys.stdout.isatty() else text, flush=True)  # noqa: T201 - this is the place that may


def table(rows: Table) -> None:
    """A table of results to stdout."""
    _data.print(rows)


def json(value: object) -> None:
    """A JSON document to stdout."""
    data(dumps(value, indent=2, ensure_ascii=False))


def is_live() -> bool:
    """Whether stderr is a terminal on which lines can be redrawn."""
    return _talk.is_terminal and not _talk.is_dumb_terminal and not _quiet


@contextmanager
def live(render: Callable[[int, int], Sequence[str]]) -> Iterator[None]:
    """Keep lines below all other output, redraw them twice a second, and leave the last ones there.

    render: columns, rows → lines; called by another thread.
    """

    def drawn() -> Text:
        return Text("\n".join(render(_talk.width, _talk.height)), no_wrap=True, overflow="ellipsis")

    with Live(get_renderable=drawn, console=_talk, refresh_per_second=2, vertical_overflow="ellipsis"):
        yield


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a long step, measure its time, and print its end."""
    say(f"‣ {title} …")
    begin = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"  ✗ {title} ({time.monotonic() - begin:.0f} s)")
        raise
    say(f"  ✓ {title} ({time.monotonic() - begin:.0f} s)")
