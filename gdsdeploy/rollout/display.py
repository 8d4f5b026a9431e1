"""Shows a rollout: a live display in a terminal, lines, or JSON."""

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

#: Kinds of events without a line of their own; JSON has them, and the hosts' states show them.
_SMALL = (Kind.END, Kind.PLANNED)
_STEPS = (Kind.BEGIN, Kind.END, Kind.PLANNED)
#: Rows of a terminal that are not for hosts.
_OTHER_ROWS = 12


class Watch:
    """Feed it every event: earlier ones with ``replay``, new ones with ``observe``."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._live = not as_json and console.is_live()
        self._lock = threading.Lock()
        self._latest: dict[str, str] = {}
        self.status: Status | None = None

    def replay(self, events: Iterable[Event]) -> None:
        """Take earlier events without showing them.  Raises JournalUnusable."""
        for event in events:
            self._feed(event)

    def observe(self, event: Event) -> None:
        """Take an event, and show it."""
        self._feed(event)
        if self._as_json:
            assert self.status is not None
            plan = self.status.plan
            console.data(words.line(event, plan.id, plan.fleet))
        elif event.kind not in (_STEPS if self._live else _SMALL):
            console.say(f"{words.clock(event.time)} {words.sentence(event)}")

    def report_progress(self, host: str, text: str) -> None:
        """A line of progress of a host's step; without a host: of the rollout."""
        with self._lock:
            self._latest[host] = text
        if not host or not (self._live or self._as_json):
            console.say(f"  {host}: {words.plain(text)}" if host else words.plain(text))

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the live display at the bottom of the terminal during the block; elsewhere, say what is under way."""
        with console.live(self._lines, self._beat, redraw=self._live):
            yield

    def lines(
        self, *, width: int = progress.WIDTH, live: bool = True, shown: int = progress.SHOWN, whole: bool = False
    ) -> Sequence[str]:
        """The current state; see progress.lines."""
        with self._lock:
            if self.status is None:
                return []
            now, latest = time.time(), dict(self._latest)
            return progress.lines(self.status, now=now, width=width, live=live, shown=shown, latest=latest, whole=whole)

    def _lines(self, columns: int, rows: int) -> Sequence[str]:
        return self.lines(width=columns, shown=min(progress.SHOWN, max(2, (rows - _OTHER_ROWS) // 2)))

    def _beat(self) -> str:
        with self._lock:
            if self.status is None or self.status.finished:
                return ""
            return progress.heartbeat(self.status, now=time.time(), latest=dict(self._latest))

    def _feed(self, event: Event) -> None:
        with self._lock:
            if self.status is None:
                try:
                    self.status = states.first_status(event)
                except ValueError as error:
                    hint = "Continue with the gdsdeploy that began this rollout"
                    raise JournalUnusable(f"line 1 of the journal: {error}", hint=hint) from error
                return
            self.status.feed(event)
            if event.host and event.kind is not Kind.NOTE:
                self._latest.pop(event.host, None)
