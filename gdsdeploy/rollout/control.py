"""How ``pause``, ``resume``, ``abort`` and ``rollback`` reach a rollout, with or without a driver.

Without a driver, the command writes the journal itself.  With one, the request is a file in the folder beside the
journal.  Its sender keeps the file locked while it waits, so that the request of a dead sender is never fulfilled.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gdsdeploy.errors import Busy, GdsError, JournalUnusable, RolloutRefused, error_named
from gdsdeploy.model.events import PAYLOADS, Event, Kind, Payload, as_json
from gdsdeploy.model.text import read
from gdsdeploy.rollout import journal
from gdsdeploy.rollout.machine import Fold, fold

#: Seconds for the driver's answer.
PATIENCE: Final = 30.0
_PAUSE: Final = 0.1
#: Kind → (verb of its command, participle).
_WORDS: Final = {
    Kind.PAUSED: ("pause", "paused"), Kind.RESUMED: ("resume", "resumed"), Kind.ABORTED: ("abort", "aborted"),
    Kind.ROLLBACK: ("rollback", "rolled back"),
}  # fmt: skip


def objection(kind: Kind, rollout: Fold) -> str | None:
    """Why ``rollout`` can't become ``kind``; None: it can."""
    match kind:
        case Kind.RESUMED:
            return None  # also when finished or under way: it asks lost hosts again
        case Kind.ROLLBACK:
            return "it is being rolled back already" if rollout.rolling_back and not rollout.finished else None
        case _ if rollout.finished:
            return "it is finished"
        case Kind.PAUSED:
            return "it is paused already" if rollout.paused else None
    return "it is being rolled back" if rollout.rolling_back else "it is aborted already" if rollout.aborted else None


@dataclass(frozen=True)
class Request:
    """A request whose sender waits."""

    #: of the event to write
    payload: Payload
    _path: Path

    def fulfilled(self, event: Event) -> None:
        """Answer with the event that was written."""
        self._answer({"event": event.as_json()})

    def refused(self, error: GdsError) -> None:
        """Answer with the reason of a refusal."""
        self._answer({"error": type(error).__name__, "message": error.message, "hint": error.hint})

    def _answer(self, value: Mapping[str, Any]) -> None:
        # A sender that is gone, or a full disk, must not stop the rollout.
        with contextlib.suppress(OSError), self._path.open("ab", buffering=0) as stream:
            stream.write(json.dumps(value).encode() + b"\n")


def folder(path: Path) -> Path:
    """Folder of requests to the writer of the journal ``path``: files of one line; the answer is the second line."""
    return path.with_name(path.name + ".requests")


def requests(path: Path) -> list[Request]:
    """Requests to the writer of the journal ``path`` whose senders wait, in order."""
    waiting = []
    for place in sorted(folder(path).glob("*.json")):
        # No file there may stop a rollout; its sender reports the missing answer.
        with contextlib.suppress(OSError, ValueError, KeyError):
            if not _is_awaited(place):
                place.unlink()
                continue
            lines = place.read_text().splitlines()
            if len(lines) == 1:
                value = json.loads(lines[0])
                waiting.append(Request(read(PAYLOADS[Kind(value["kind"])], dict(value["data"])), place))
    return waiting


def _is_awaited(place: Path) -> bool:
    handle = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def tell(path: Path, payload: Payload, *, patience: float = PATIENCE) -> tuple[Event, bool]:
    """Apply ``payload`` to the newest rollout of the journal ``path``: the event, and whether a driver wrote it.

    Raises RolloutRefused: it can't become that now; Busy: no answer within ``patience`` seconds; JournalUnusable.
    """
    end = time.monotonic() + patience
    while True:
        try:
            with journal.writing(path, doing=f"rollout: {_WORDS[payload.kind][1]} by hand") as writer:
                return write(writer, payload), False
        except Busy as busy:
            if (event := _request(path, payload, end)) is not None:
                return event, True
            if time.monotonic() > end:
                command = f"gdsdeploy rollout {_WORDS[payload.kind][0]}"
                hint = f"See whether it still runs; after kill -INT of it: {command}"
                raise Busy(f"{busy.message} and does not answer", hint=hint) from busy


def write(writer: journal.Writer, payload: Payload) -> Event:
    """Append ``payload`` to the newest rollout; raises RolloutRefused: it cannot become that."""
    newest = writer.newest()
    if newest is None:
        raise RolloutRefused("there is no rollout of this fleet", hint="Begin one: gdsdeploy rollout start FLEET")
    writer.go_on(newest)
    if why := objection(payload.kind, fold(writer.events(newest))):
        raise refusal(newest, payload.kind, why)
    return writer.append(payload)


def refusal(rollout: str, kind: Kind, why: str) -> RolloutRefused:
    """The error that ``rollout`` can't become ``kind``."""
    return RolloutRefused(f"{rollout} cannot be {_WORDS[kind][1]}: {why}", hint="See: gdsdeploy rollout status")


def _request(path: Path, payload: Payload, end: float) -> Event | None:
    """The event from the journal's writer; None: there is no writer any more, or no answer until ``end``."""
    with _request_file(path, {"kind": payload.kind, "data": as_json(payload)}) as handle:
        while True:
            text = os.pread(handle, 1 << 16, 0).decode()
            if text.count("\n") > 1:
                return _answer(json.loads(text.splitlines()[1]))
            try:
                with journal.lock_journal(path, doing="rollout: checks for a driver"):
                    return None
            except Busy:
                if time.monotonic() > end:
                    return None
            time.sleep(_PAUSE)


def _answer(value: Mapping[str, Any]) -> Event:
    if "event" in value:
        return Event.from_json(value["event"])
    raise error_named(value["error"])(value["message"], hint=value["hint"])


@contextlib.contextmanager
def _request_file(path: Path, request: Mapping[str, Any]) -> Iterator[int]:
    """A locked request in the folder during the block; yields the open file."""
    where = folder(path)
    try:
        where.mkdir(mode=0o700, exist_ok=True)
        # Complete and locked before a driver sees it.
        hidden = where / f".{time.time_ns()}-{os.getpid()}"
        handle = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise JournalUnusable(
            f"{where}: nothing can be left there for the driver: {error.strerror}", hint="Check its rights and df"
        ) from error
    shown = where / f"{hidden.name[1:]}.json"
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, json.dumps(request).encode() + b"\n")
        hidden.replace(shown)
        yield handle
    finally:
        hidden.unlink(missing_ok=True)
        shown.unlink(missing_ok=True)
        os.close(handle)
