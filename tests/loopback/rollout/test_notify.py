"""Notifications, against a real HTTP server on loopback and a real command."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.model.events import Event, Kind
from gdsdeploy.model.rollout import Outcome
from gdsdeploy.model.rollout_settings import Notify
from gdsdeploy.rollout import notify
from gdsdeploy.rollout.notify import Notifier, is_reported
from tests.patience import SURELY, wait_for

TOKEN = "s3cr3t-t0ken"
HALTED = Event(7, 1795258800.25, Kind.HALTED, data={"reason": "1 of 1 canaries failed"})


class Server(ThreadingHTTPServer):
    """Answers with the statuses given, the last one for ever; 0 closes the connection, a float waits that long."""

    daemon_threads = True

    def __init__(self, *answers: float) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.answers = list(answers) or [204]
        self.got: list[tuple[dict[str, str], Any]] = []
        self.release = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hooks/in-the-path-a-secret"


class _Request(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((dict(self.headers), json.loads(body)))
        answer = self.server.answers.pop(0) if len(self.server.answers) > 1 else self.server.answers[0]
        if isinstance(answer, float):
            self.server.release.wait(answer)
        elif answer:
            self.send_response(int(answer))
            self.send_header("Content-Length", "0")
            self.send_header("Location", "/elsewhere")
            self.end_headers()
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    running: list[Server] = []

    def start(*answers: float) -> Server:
        running.append(Server(*answers))
        threading.Thread(target=running[-1].serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return running[-1]

    yield start
    for server in running:
        server.release.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def warnings() -> list[str]:
    return []


def private(path: Path, content: str | bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def notifier(tmp_path: Path, warnings: list[str], **settings: Any) -> Notifier:
    fleet = tmp_path / "fleet.yml"
    quick = {key: settings.pop(key) for key in ("pauses", "answer") if key in settings}
    return Notifier(
        Notify.model_validate(settings), rollout="20261121T1054-7f3a", fleet=fleet, warn=warnings.append,
        **{"pauses": (0.01, 0.01), "answer": SURELY, **quick},
    )  # fmt: skip


def test_a_webhook_gets_each_event_with_its_token(
    serve: Callable[..., Server], tmp_path: Path, warnings: list[str]
) -> None:
    server = serve()
    private(tmp_path / "token", TOKEN + "\n")
    with notifier(tmp_path, warnings, webhook=server.address, token_file="token") as tell:
        tell(HALTED)
        tell(Event(8, 1795258801.0, Kind.FINISHED, data={"outcomes": {"rolled-back": 1}}))
    headers, body = server.got[0]
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert headers["Content-Type"] == "application/json"
    assert body == {
        "version": 1,
        "rollout": "20261121T1054-7f3a",
        "fleet": str(tmp_path / "fleet.yml"),
        "number": 7,
        "time": "2026-11-21T11:00:00.250Z",
        "kind": "halted",
        "host": "",
        "data": {"reason": "1 of 1 canaries failed"},
        "text": "halted: no other host is begun, those under way finish: 1 of 1 canaries failed",
    }
    assert [request[1]["number"] for request in server.got] == [7, 8]
    assert warnings == []


@pytest.mark.parametrize(
    ("answers", "tries", "complaint"),
    [
        ((503, 429, 200), 3, ""),
        ((0, 204), 2, ""),
        ((500,), 3, "answers with status 500"),
        ((0,), 3, "cannot be reached (RemoteProtocolError)"),
        ((403,), 1, "answers with status 403"),
        ((307,), 1, "answers with status 307"),
        ((9.0,), 3, "does not answer in time"),
    ],
)
def test_what_a_webhook_may_do(
    answers: tuple[float, ...],
    tries: int,
    complaint: str,
    serve: Callable[..., Server],
    tmp_path: Path,
    warnings: list[str],
) -> None:
    server = serve(*answers)
    private(tmp_path / "token", TOKEN)
    answer = 0.2 if 9.0 in answers else SURELY
    with notifier(tmp_path, warnings, webhook=server.address, token_file="token", answer=answer) as tell:
        tell(HALTED)
        assert wait_for(lambda: len(server.got) == tries)
    assert len(server.got) == tries
    assert len({headers["Idempotency-Key"] for headers, _ in server.got}) == 1
    assert warnings == ([f"notification: the webhook at 127.0.0.1 {complaint}"] if complaint else [])
    assert not any(TOKEN in text or "secret" in text for text in warnings)


def test_nobody_waits_for_a_webhook_that_hangs(
    serve: Callable[..., Server], tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "WAITING", 5)
    server = serve(600.0)
    tell = notifier(tmp_path, warnings, webhook=server.address, answer=600.0)
    begin = time.monotonic()
    for number in range(1, 201):
        tell(Event(number, 0.0, Kind.HALTED))
    tell.close(0.2)
    assert time.monotonic() - begin < SURELY, "telling is not waiting, and closing waits for so long and no longer"
    assert warnings == [
        "notification: events come faster than they can be sent; the oldest were dropped",
        "notification: not all events were sent within 0.2 s",
    ]


def test_a_command_gets_the_event_on_standard_input(tmp_path: Path, warnings: list[str]) -> None:
    script = tmp_path / "tell"
    script.write_text(f'#!/bin/sh\necho "$1 $2" >> {tmp_path}/args; cat >> {tmp_path}/stdin\n')
    script.chmod(0o755)
    event = Event(3, 0.0, Kind.OUTCOME, "gpu1", {"outcome": "kept", "reason": "$(touch /tmp/no)"})
    with notifier(tmp_path, warnings, command=[str(script), "{kind} of {rollout}", "host={host}"]) as tell:
        tell(event)
    assert (tmp_path / "args").read_text() == "outcome of 20261121T1054-7f3a host=gpu1\n"
    assert json.loads((tmp_path / "stdin").read_text())["data"]["outcome"] == "kept"
    assert warnings == []


@pytest.mark.parametrize(
    ("environment", "command", "complaint"),
    [
        ({}, "notexec", "cannot start the command of rollout.notify: {} cannot be started: Permission denied"),
        ({}, "noshebang", "cannot start the command of rollout.notify: {} cannot be started: Exec format error"),
        ({"all_proxy": "socks5://me:hunter2@127.0.0.1:1", "no_proxy": ""}, "", "'halted' was not sent: ImportError: "),
        ({"all_proxy": "gopher://me:hunter2@127.0.0.1:1", "no_proxy": ""}, "", "'halted' was not sent: ValueError"),
        ({"SSL_CERT_FILE": "/nonexistent.pem"}, "", "'halted' was not sent: FileNotFoundError: "),
    ],
)
def test_whatever_goes_wrong_is_said_once_and_the_next_event_is_sent(
    environment: dict[str, str], command: str, complaint: str,
    serve: Callable[..., Server], tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    program = tmp_path / command
    if command:
        program.write_text("#!/bin/sh\n" if command == "notexec" else "\x7fELF?")
        program.chmod(0o644 if command == "notexec" else 0o755)
    server, settings = serve(), {"command": [str(program)]} if command else {}
    gets, get = list[object](), queue.Queue.get
    monkeypatch.setattr(queue.Queue, "get", lambda *words: (gets.append(words), get(*words))[1])
    with notifier(tmp_path, warnings, webhook=server.address, **settings) as tell:
        with monkeypatch.context() as stranger:
            for name, value in environment.items():
                stranger.setenv(name, value)
            tell(HALTED)
            tell(HALTED)
            assert wait_for(lambda: len(gets) == 3), "it has done with both"
        tell(Event(8, 0.0, Kind.FINISHED))
    assert server.got[-1][1]["number"] == 8
    assert [text.startswith("notification: " + complaint.format(program)) for text in warnings] == [True], warnings
    assert "hunter2" not in warnings[0]


def test_a_command_runs_beside_the_fleet_file_and_may_leave_something_running(
    tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "tell").write_text("#!/bin/sh\nsleep 600 &\necho $! >pid\n")
    (tmp_path / "tell").chmod(0o755)
    with notifier(tmp_path, warnings, command=["./tell"]) as tell:
        tell(HALTED)
    assert warnings == [], "nothing waits for what it left"
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_which_events_are_told() -> None:
    failed, done = (Event(1, 0.0, Kind.OUTCOME, "a", {"outcome": str(o)}) for o in (Outcome.LOST, Outcome.DONE))
    begin = Event(1, 0.0, Kind.BEGIN, "a", {"step": "drain"})
    assert [is_reported(event, Notify()) for event in (HALTED, failed, done, begin)] == [True, True, False, False]
    chosen = Notify(events=("begin", "outcome"))
    assert [is_reported(event, chosen) for event in (HALTED, failed, done, begin)] == [False, True, True, True]


@pytest.mark.parametrize("content", [None, "", "two\nlines", "späte", b"\xff\xfe"])
def test_a_token_that_cannot_be_read_is_said_before_the_rollout(
    content: str | bytes | None, tmp_path: Path, warnings: list[str]
) -> None:
    if content is not None:
        private(tmp_path / "token", content)
    with pytest.raises(FleetInvalid, match="token_file"):
        notifier(tmp_path, warnings, webhook="http://127.0.0.1:1/", token_file="token")


def test_events_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="'finnished' isn't an event"):
        Notify(events=("finnished",))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602, 0o610, 0o777])
def test_a_token_that_others_can_read_is_refused_with_the_command(
    mode: int, tmp_path: Path, warnings: list[str]
) -> None:
    private(tmp_path / "token", TOKEN)
    (tmp_path / "token").chmod(mode)
    with pytest.raises(FleetInvalid, match=rf"can be read by others than its owner \(mode {mode:04o}\)") as caught:
        notifier(tmp_path, warnings, webhook="http://127.0.0.1:1/", token_file="token")
    assert caught.value.hint == f"Run: chmod 0600 {tmp_path / 'token'}"
    assert TOKEN not in caught.value.message


def test_a_token_of_another_owner_is_refused(
    tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    private(tmp_path / "token", TOKEN)
    owner = (tmp_path / "token").stat().st_uid
    monkeypatch.setattr("gdsdeploy.host.io.atomic.os.geteuid", lambda: owner + 1)
    settings = {"webhook": "http://127.0.0.1:1/", "token_file": "token"}
    if owner == 0:
        notifier(tmp_path, warnings, **settings).close()  # Root's file serves every user who can read it.
        os.chown(tmp_path / "token", 4711, -1)
    with pytest.raises(FleetInvalid, match="token belongs to uid") as caught:
        notifier(tmp_path, warnings, **settings)
    assert caught.value.hint == f"Run: chown {owner + 1} {tmp_path / 'token'}"
