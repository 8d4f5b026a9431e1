"""Shows a rollout to whoever runs or watches it: lines that are drawn anew, lines one after the other, or JSON."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from gdsdeploy import console
from gdsdeploy.errors import JournalUnusable
from gdsdeploy.model.events import Event, Kind
from gdsdeploy.rollout import status as states
from gdsdeploy.rollout.report import events as words
from gdsdeploy.rollout.report import progress
from gdsdeploy.rollout.status import Status

#: Not said one by one: who wants them has JSON, or sees the hosts' states change.
_SMALL = (Kind.END, Kind.PLANNED)
_STEPS = (Kind.BEGIN, Kind.END, Kind.PLANNED)
#: Rows of a terminal that are not for hosts.
_OTHER_ROWS = 12


class Watch:
    """Feed it every event.  Events of the past are ``known``; new ones are ``observe``d and shown."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._live = not as_json and console.is_live()
        self._lock = threading.Lock()
        self._latest: dict[str, str] = {}
        self.status: Status | None = None

    def known(self, events: Iterable[Event]) -> None:
        """Take note of what has happened already; nothing is shown.  Raises JournalUnusable."""
        for event in events:
            self._feed(event)

    def observe(self, event: Event) -> None:
        """Take note of an event, and show it."""
        self._feed(event)
        if self._as_json:
            plan = self._status().plan
            console.data(words.line(event, plan.id, plan.fleet))
        elif event.kind not in (_STEPS if self._live else _SMALL):
            console.say(f"{words.clock(event.time)} {words.sentence(event)}")

    def report_progress(self, host: str, text: str) -> None:
        """A line of progress of a host's step; empty: of nobody's."""
        with self._lock:
            self._latest[host] = text
        if not host or not (self._live or self._as_json):
            console.say(f"  {host}: {words.plain(text)}" if host else words.plain(text))

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep what is under way at the bottom of a terminal, where there is one, for the block."""
        if not self._live:
            yield
            return
        with console.live(self._lines):
            yield

    def lines(
        self, *, width: int = progress.WIDTH, live: bool = True, shown: int = progress.SHOWN, whole: bool = False
    ) -> Sequence[str]:
        """What is so now; see progress.lines."""
        with self._lock:
            if self.status is None:
                return []
            return progress.lines(
                self.status,
                now=time.time(),
                width=width,
                live=live,
                shown=shown,
                latest=dict(self._latest),
                whole=whole,
            )

    def _lines(self, columns: int, rows: int) -> Sequence[str]:
        return self.lines(width=columns, shown=min(progress.SHOWN, max(2, (rows - _OTHER_ROWS) // 2)))

    def _feed(self, event: Event) -> None:
        with self._lock:
            if self.status is None:
                try:
                    self.status = states.begun(event)
                except ValueError as error:
                    hint = "Go on with the gdsdeploy that began this rollout"
                    raise JournalUnusable(f"line 1 of the journal: {error}", hint=hint) from error
                return
            self.status.feed(event)
            if event.host and event.kind is not Kind.NOTE:
                self._latest.pop(event.host, None)

    def _status(self) -> Status:
        assert self.status is not None
        return self.status
