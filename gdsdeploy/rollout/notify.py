"""Sends the events of a rollout to a webhook and a command, without delaying or ending the rollout.

One thread takes events from a bounded queue, posts them and starts the command.  A failure is reported once for each
reason, and the event is dropped.  A webhook's address may be a secret, so messages name only its host.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from gdsdeploy import paths, run
from gdsdeploy.errors import FleetInvalid, GdsError
from gdsdeploy.files.secret import read_secret
from gdsdeploy.model.events import Event, HostEnded, Kind
from gdsdeploy.model.rollout import FAILURES
from gdsdeploy.model.rollout_settings import Notify, fill
from gdsdeploy.rollout import progress

#: Kinds that are sent by default; an OUTCOME only where the host failed.
DEFAULT: Final = frozenset({Kind.HALTED, Kind.PAUSED, Kind.ABORTED, Kind.ROLLBACK, Kind.FINISHED, Kind.OUTCOME})
#: Seconds: for a connection, for a whole answer, for the command, and before each retry.
CONNECT: Final = 5.0
ANSWER: Final = 10.0
COMMAND: Final = 30.0
PAUSES: Final = (1.0, 4.0, 15.0)
#: Seconds that the end of a rollout waits for unsent events.
LAST: Final = 15.0
#: Events in the queue; the oldest is dropped for a new one.
WAITING: Final = 1000
#: Status codes after which the webhook is retried.
_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class Notifier(AbstractContextManager["Notifier"]):
    """Call it with each event.  Use as a context manager: its end waits a little for unsent events."""

    def __init__(
        self,
        settings: Notify,
        *,
        rollout: str,
        fleet: Path,
        warn: Callable[[str], None],
        pauses: tuple[float, ...] = PAUSES,
        answer: float = ANSWER,
    ) -> None:
        """rollout: id of the plan.  fleet: the fleet file.  warn: gets each reason for an unsent event once.

        Raises FleetInvalid where the token can't be read.
        """
        self._settings, self._rollout, self._fleet, self._warn = settings, rollout, fleet, warn
        self._pauses, self._answer = pauses, answer
        self._token = paths.locate(paths.folder_of(fleet), settings.token_file) if settings.token_file else None
        if self._token is not None:
            _token(self._token)
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(WAITING)
        self._stop = threading.Event()
        self._complaints: set[str] = set()
        self._thread: threading.Thread | None = None
        if settings.webhook or settings.command:
            # A daemon: a receiver that doesn't answer must not delay the end of the process.
            self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        """Queue an event; returns at once."""
        if self._thread is None or not is_reported(event, self._settings):
            return
        document = progress.to_json(event, self._rollout, str(self._fleet))
        while not self._put(document):
            self._complain("events come faster than they can be sent; the oldest were dropped")
            with suppress(queue.Empty):
                self._queue.get_nowait()

    def _put(self, document: Mapping[str, Any] | None) -> bool:
        try:
            self._queue.put_nowait(document)
        except queue.Full:
            return False
        return True

    def close(self, seconds: float = LAST) -> None:
        """Wait ``seconds`` at most for unsent events; then drop them."""
        if self._thread is None:
            return
        end = time.monotonic() + seconds
        while self._thread.is_alive() and not self._put(None) and time.monotonic() < end:
            time.sleep(0.05)
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            self._complain(f"not all events were sent within {seconds:g} s")
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            document = self._queue.get()
            if document is None:
                return
            for send in (self._post, self._start):
                try:
                    send(document)
                except GdsError as error:
                    self._complain(error.message.splitlines()[0])
                except Exception as error:  # noqa: BLE001 - the thread has to go on with the next event
                    # A message of others' may have the address or a password in it.
                    words = f": {error}" if isinstance(error, ImportError | OSError) else ""
                    self._complain(f"{type(error).__name__}{words}", f"{document['kind']!r} was not sent: ")

    def _post(self, document: Mapping[str, Any]) -> None:
        address = self._settings.webhook
        if not address:
            return
        for pause in (0.0, *self._pauses):
            if pause and self._stop.wait(pause):
                return
            reason, again = self._post_once(address, document)
            if not again:
                break
        if reason:
            self._complain(f"the webhook at {urlsplit(address).hostname} {reason}")

    def _post_once(self, address: str, document: Mapping[str, Any]) -> tuple[str, bool]:
        """(why the webhook didn't take it, or empty; whether to try again)."""
        headers = {"User-Agent": "gdsdeploy", "Idempotency-Key": f"{self._rollout}-{document['number']}"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {_token(self._token)}"
        try:
            # A redirection is not followed: the token is for the address in the fleet file.
            with (
                httpx.Client(timeout=httpx.Timeout(self._answer, connect=min(CONNECT, self._answer))) as client,
                client.stream("POST", address, json=document, headers=headers) as answer,
            ):
                status = answer.status_code
        except httpx.InvalidURL:
            return "has an address that cannot be used", False
        except httpx.TimeoutException:
            return "does not answer in time", True
        except httpx.HTTPError as error:
            return f"cannot be reached ({type(error).__name__})", True
        return ("", False) if status < 300 else (f"answers with status {status}", status in _AGAIN)

    def _start(self, document: Mapping[str, Any]) -> None:
        if not self._settings.command:
            return
        argv = fill(self._settings.command, {key: document[key] for key in ("host", "kind", "rollout")})
        doing, text = "start the command of rollout.notify", json.dumps(document) + "\n"
        run.run(argv, doing=doing, input=text, timeout=COMMAND, cwd=paths.folder_of(self._fleet).resolve())

    def _complain(self, reason: str, what: str = "") -> None:
        if reason not in self._complaints:
            self._complaints.add(reason)
            self._warn(f"notification: {what}{reason}")


def is_reported(event: Event, settings: Notify) -> bool:
    """Whether ``event`` is sent."""
    if settings.events:
        return str(event.kind) in settings.events
    if isinstance(event.payload, HostEnded):
        return event.payload.outcome in FAILURES
    return event.kind in DEFAULT


def _token(path: Path) -> str:
    return read_secret(path, "rollout.notify.token_file", FleetInvalid)
