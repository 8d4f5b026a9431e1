"""The only module that writes to the terminal.

Talk (progress, warnings, errors) goes to stderr, data to stdout, so that `--json | jq` always works.
Colour never carries meaning alone; NO_COLOR and pipes are honoured by rich.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_talk = Console(stderr=True, highlight=False, soft_wrap=True)
_data = Console(highlight=False, soft_wrap=True)
_quiet = False


def configure(*, quiet: bool) -> None:
    """Silence progress (never errors or data)."""
    global _quiet
    _quiet = quiet


def say(text: str = "") -> None:
    """One line of progress to stderr."""
    if not _quiet:
        _talk.print(escape(text))


def warn(text: str) -> None:
    """One warning to stderr."""
    _talk.print(f"[yellow]warning:[/] {escape(text)}")


def error(text: str, hint: str | None = None) -> None:
    """One error to stderr, followed by its next step."""
    _talk.print(f"[bold red]error:[/] {escape(text)}")
    if hint:
        _talk.print(f"[bold]hint:[/] {escape(hint)}")


def data(text: str) -> None:
    """Results to stdout, as they are, and at once: somebody may wait for each line."""
    print(text, flush=True)  # noqa: T201 - this is the place that may


def table(rows: Table) -> None:
    """A table of results to stdout."""
    _data.print(rows)


def is_live() -> bool:
    """Whether somebody looks at a terminal on which lines can be drawn again."""
    return _talk.is_terminal and not _talk.is_dumb_terminal and not _quiet


@contextmanager
def live(render: Callable[[int, int], Sequence[str]]) -> Iterator[None]:
    """Keep lines below everything else that is said, drawn anew twice a second, and leave the last ones there.

    render: columns, rows → lines; called by another thread.
    """

    def drawn() -> Text:
        return Text("\n".join(render(_talk.width, _talk.height)), no_wrap=True, overflow="ellipsis")

    with Live(get_renderable=drawn, console=_talk, refresh_per_second=2, vertical_overflow="ellipsis"):
        yield


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a long step, keep its time, and say how it ended."""
    say(f"‣ {title} …")
    begin = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"  ✗ {title} ({time.monotonic() - begin:.0f} s)")
        raise
    say(f"  ✓ {title} ({time.monotonic() - begin:.0f} s)")
