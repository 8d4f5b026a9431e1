"""A rollout for a command: which rollouts a fleet has, what a terminal shows of one, and how it ended."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gdsdeploy import console
from gdsdeploy.errors import GdsError, Interrupted, JournalUnusable, RolloutFailed, RolloutRefused
from gdsdeploy.host.io.wording import first_few
from gdsdeploy.model.events import Event, Kind
from gdsdeploy.model.rollout import Outcome
from gdsdeploy.rollout import journal, machine, progress as words
from gdsdeploy.rollout.machine import Status
from gdsdeploy.rollout.page import sentence

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
            console.data(json.dumps(words.to_json(event, plan.id, plan.fleet), ensure_ascii=False))
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
        self, *, width: int = words.WIDTH, live: bool = True, shown: int = words.SHOWN, whole: bool = False
    ) -> Sequence[str]:
        """The current state; see words.lines."""
        with self._lock:
            if self.status is None:
                return []
            return words.lines(
                self.status, now=time.time(), width=width, live=live, shown=shown, latest=self._at(), whole=whole
            )

    def _at(self) -> dict[str, str]:
        """Host → the unit that its build compiles now, else the last line of its step."""
        details = {each.host: each.detail() for each in console.board.activities()}
        return {**self._latest, **{host: detail for host, detail in details.items() if detail}}

    def _lines(self, columns: int, rows: int) -> Sequence[str]:
        return self.lines(width=columns, shown=min(words.SHOWN, max(2, (rows - _OTHER_ROWS) // 2)))

    def _beat(self) -> str:
        with self._lock:
            if self.status is None or self.status.finished:
                return ""
            return words.heartbeat(self.status, now=time.time(), latest=self._at())

    def _feed(self, event: Event) -> None:
        with self._lock:
            if self.status is None:
                try:
                    self.status = machine.first_status(event)
                except ValueError as error:
                    hint = "Continue with the gdsdeploy that began this rollout"
                    raise JournalUnusable(f"line 1 of the journal: {error}", hint=hint) from error
                return
            self.status.apply(event)
            if event.host and event.kind is not Kind.NOTE:
                self._latest.pop(event.host, None)


def journal_of(fleet: Path) -> Path | None:
    """The fleet's journal, or None where there was no rollout of it; raises FleetInvalid: no such fleet file."""
    path = journal.path_of(fleet)
    if path.exists():
        return path
    # With a journal nothing else reads the fleet file, and what reads it is half of what such a command imports.
    from gdsdeploy.fleetfile.load import TRUSTED, load_fleet

    load_fleet(fleet, TRUSTED)
    return None


def require_journal(fleet: Path) -> Path:
    """As ``journal_of``; raises RolloutRefused where there was no rollout."""
    path = journal_of(fleet)
    if path is None:
        raise RolloutRefused(
            f"there is no rollout of {fleet}",
            hint=f"Begin one: gdsdeploy rollout start {fleet}; its journal is {journal.path_of(fleet)}",
        )
    return path


def find_rollout(fleet: Path, rollout: str | None) -> tuple[journal.Summary, list[Event]]:
    """The fleet's rollout of that id, or its newest, with its events; raises RolloutRefused where there is none."""
    with journal.reading(require_journal(fleet)) as book:
        summaries = {summary.id: summary for summary in book.rollouts()}
        name = rollout or next(reversed(summaries), "")
        if name not in summaries:
            raise RolloutRefused(
                f"there is no rollout {rollout}" if rollout else "there is no rollout of this fleet",
                hint=f"List the rollouts: gdsdeploy rollout history {fleet}",
            )
        return summaries[name], list(book.events(name))


def has_driver(path: Path) -> bool:
    """Whether a process works on the journal ``path``; the check doesn't take the lock."""
    place = journal.lock_path(path)
    try:
        inode, text = place.stat().st_ino, place.read_text()
    except OSError:
        return False
    # Not every file system has the same device number there as in stat.
    with suppress(OSError):
        if re.search(rf"^\S+ FLOCK .*:{inode} ", Path("/proc/locks").read_text(), re.MULTILINE):
            return True
    # Over NFS only the machine with the lock lists it; the file's content survives a crash.
    with suppress(ValueError, TypeError, KeyError):
        return bool(json.loads(text)["host"] != socket.gethostname())
    return False


def final_error(current: Status) -> GdsError | None:
    """The error with which a command ends; None: the rollout reached its goal."""
    fleet, why = current.plan.fleet, words.plain(current.reason)
    see = f"See: gdsdeploy rollout status {fleet} --html rollout.html"
    if not current.finished:
        resume = f"gdsdeploy rollout resume {fleet}"
        if current.phase == machine.PAUSED:
            return Interrupted(f"paused: {why or 'by request'}", hint=f"Continue with: {resume}")
        return RolloutFailed(
            f"{current.phase}: {why}\n{sentence(current)}",
            hint=f"Look at the hosts above; then: {resume}, or rollback, or abort",
        )
    hosts = current.hosts.values()
    stuck = [host.name for host in hosts if host.outcome in (Outcome.KEPT, Outcome.LOST)]
    failed = [host.name for host in hosts if host.outcome in (Outcome.ROLLED_BACK, Outcome.REFUSED)]
    if current.phase == machine.ROLLED_BACK:
        failed = [host.name for host in hosts if host.outcome == Outcome.DONE]
    elif current.phase == machine.CUT:
        return RolloutFailed(f"aborted: {why}\n{sentence(current)}", hint=see)
    if stuck or failed:
        return RolloutFailed(f"{sentence(current)}: {first_few([*stuck, *failed], 10)}", hint=see)
    return None
