"""Tells a webhook and a command what happens in a rollout.  Never holds it up, and never ends it.

Events are put on a bounded queue; one thread takes them off, posts them and starts the command.  What cannot be told
is said once for each reason and dropped.  Addresses of webhooks often are secrets themselves: only the host is named.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from gdsdeploy import paths, run
from gdsdeploy.errors import FleetInvalid, GdsError
from gdsdeploy.host.io import reading
from gdsdeploy.host.io.private import exposure
from gdsdeploy.model.events import Event, HostEnded, Kind
from gdsdeploy.model.rollout import FAILURES
from gdsdeploy.model.rollout_settings import Notify
from gdsdeploy.rollout.report import events

#: What a person is woken for; an OUTCOME only where the host failed.
DEFAULT: Final = frozenset({Kind.HALTED, Kind.PAUSED, Kind.ABORTED, Kind.ROLLBACK, Kind.FINISHED, Kind.OUTCOME})
#: Seconds: for a connection, for an answer as a whole, for the command, and before each repetition.
CONNECT: Final = 5.0
ANSWER: Final = 10.0
COMMAND: Final = 30.0
PAUSES: Final = (1.0, 4.0, 15.0)
#: Seconds that the end of a rollout waits for what is still to be told.
LAST: Final = 15.0
#: Events that wait; the oldest is dropped for a new one.
WAITING: Final = 1000
#: Characters of a token at most.
_TOKEN_SIZE: Final = 64 * 1024
#: Answers after which it is worth to try again.
_AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class Notifier:
    """Call it with each event.  Use as a context manager: its end waits a little for what is left to be told."""

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
        """rollout: id of the plan.  fleet: the fleet file.  warn: told once for each reason why somebody is not told.

        Raises FleetInvalid where the token cannot be read: better now than at 3 a.m.
        """
        self._settings, self._rollout, self._fleet, self._warn = settings, rollout, fleet, warn
        self._pauses, self._answer = pauses, answer
        self._token = paths.locate(fleet.resolve().parent, settings.token_file) if settings.token_file else None
        if self._token is not None:
            _token(self._token)
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(WAITING)
        self._stop = threading.Event()
        self._said: set[str] = set()
        self._thread: threading.Thread | None = None
        if settings.webhook or settings.command:
            # A daemon: somebody who does not answer must not hold up the end of the process.
            self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
            self._thread.start()

    def __enter__(self) -> Notifier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __call__(self, event: Event) -> None:
        """Take note of an event; returns at once."""
        if self._thread is None or not is_reported(event, self._settings):
            return
        item = events.to_json(event, self._rollout, str(self._fleet))
        while not self._put(item):
            self._complain("more happens than can be told; the oldest events were dropped")
            with suppress(queue.Empty):
                self._queue.get_nowait()

    def _put(self, item: Mapping[str, Any] | None) -> bool:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def close(self, seconds: float = LAST) -> None:
        """Wait ``seconds`` at most for what is left; then nothing more is tried."""
        if self._thread is None:
            return
        end = time.monotonic() + seconds
        while self._thread.is_alive() and not self._put(None) and time.monotonic() < end:
            time.sleep(0.05)
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            self._complain(f"not everybody was told what happened within {seconds:g} s")
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            item = self._queue.get()
            if item is None:
                return
            for tell in (self._post, self._start):
                try:
                    tell(item)
                except GdsError as error:
                    self._complain(error.message.splitlines()[0])

    def _post(self, item: Mapping[str, Any]) -> None:
        address = self._settings.webhook
        if not address:
            return
        reason = ""
        for number in range(len(self._pauses) + 1):
            if number and self._stop.wait(self._pauses[number - 1]):
                return
            reason, again = self._posted(address, item)
            if not again:
                break
        if reason:
            self._complain(f"the webhook at {urlsplit(address).hostname} {reason}")

    def _posted(self, address: str, item: Mapping[str, Any]) -> tuple[str, bool]:
        """Why it was not taken (empty: it was), and whether to try again."""
        headers = {"User-Agent": "gdsdeploy", "Idempotency-Key": f"{self._rollout}-{item['number']}"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {_token(self._token)}"
        try:
            # A redirection is not followed: the token is for the address in the fleet file.
            with (
                httpx.Client(timeout=httpx.Timeout(self._answer, connect=min(CONNECT, self._answer))) as client,
                client.stream("POST", address, json=item, headers=headers) as answer,
            ):
                status = answer.status_code
        except httpx.InvalidURL:
            return "has an address that cannot be used", False
        except httpx.TimeoutException:
            return "does not answer in time", True
        except httpx.HTTPError as error:
            return f"cannot be reached ({type(error).__name__})", True
        return ("", False) if status < 300 else (f"answers with status {status}", status in _AGAIN)

    def _start(self, item: Mapping[str, Any]) -> None:
        if not self._settings.command:
            return
        words = {"{host}": item["host"], "{kind}": item["kind"], "{rollout}": item["rollout"]}
        argv = []
        for argument in self._settings.command:
            for word, value in words.items():
                argument = argument.replace(word, str(value))
            argv.append(argument)
        run.run(argv, doing="tell the command of rollout.notify", input=json.dumps(item) + "\n", timeout=COMMAND)

    def _complain(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            self._warn(f"notification: {reason}")


def is_reported(event: Event, settings: Notify) -> bool:
    """Whether somebody is to be told of ``event``."""
    if settings.events:
        return str(event.kind) in settings.events
    if isinstance(event.payload, HostEnded):
        return event.payload.outcome in FAILURES
    return event.kind in DEFAULT


def _token(path: Path) -> str:
    try:
        with reading.opened(str(path)) as file:
            exposed = exposure(str(path), os.fstat(file.fileno()))
            token = file.read(_TOKEN_SIZE).decode().strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise FleetInvalid(f"rollout.notify.token_file: {path}: {reason}") from None
    if exposed:
        raise FleetInvalid(f"rollout.notify.token_file: {path} {exposed[0]}", hint=f"Run: {exposed[1]}")
    if not token or not token.isprintable() or not token.isascii():
        raise FleetInvalid(f"rollout.notify.token_file: {path} holds no token", hint="One line of printable ASCII")
    return token
