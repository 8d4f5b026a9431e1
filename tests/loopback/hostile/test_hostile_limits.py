"""What a host sends is bounded, whatever it is, and so is its time; the host beside it is answered for as ever."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from gdsdeploy.errors import HostUnfit, HostUnreachable
from gdsdeploy.host.io import jsontext
from gdsdeploy.ssh import endpoint, transport
from gdsdeploy.ssh.endpoint import Answer, Endpoint
from gdsdeploy.ssh.transport import Meter
from tests.loopback.hostile.hostile_server import Question, Reply, Server, endless, text
from tests.patience import SURELY, with_time

MIB = 2**20
DEEP = "[" * 50_000
Make = Callable[[Reply], Server]


@pytest.fixture
def lying(tmp_path: Path) -> Iterator[Make]:
    """A server whose host ``honest`` answers, and whose host ``liar`` replies as it is told."""
    servers: list[Server] = []

    def make(reply: Reply) -> Server:
        def both(question: Question, channel: paramiko.Channel) -> None:
            (text({"fine": 1}) if question.host == "honest" else reply)(question, channel)

        servers.append(Server(tmp_path, both))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def ask(*hosts: Endpoint, timeout: float = 600) -> dict[str, Answer]:
    return {answer.host: answer for answer in transport.fan_out(hosts, b"program", ["evidence"], timeout=timeout)}


def beside(server: Server, timeout: float = 600) -> Answer:
    """The liar's answer; the honest host's is as it should be."""
    answers = ask(server.endpoint("liar"), server.endpoint("honest"), timeout=timeout)
    assert answers["honest"].document == {"fine": 1}, answers["honest"].error
    return answers["liar"]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ('{"a":' + DEEP, "nested more than 64 deep"),
        ('{"a":' + "[" * 65 + "]" * 65 + "}", "nested more than 64 deep"),
        ('{"a":[' + "[]," * 200_000 + "1]}", "too many items"),
        ('{"a":' + "9" * 4000 + "}", "a number has 4000 digits"),
        ('{"a":' + "9" * 5000 + "}", "a number has 5000 digits"),
        ('{"a":NaN}', "NaN is no number"),
        ('{"a":-Infinity}', "-Infinity is no number"),
        ('{"a":1e999}', "1e999 is no number"),
        ('{"a":1,"a":2}', "a key twice"),
        ('{"\\ud800":1,"\\udfff":2}', "a key twice"),
        ("", "gave no answer"),
        ("[1]", "gave no answer"),
        ('{"a":', "gave no answer"),
        ("\x00\xff" * 1000, "gave no answer"),
    ],
    ids=lambda sent: sent[:12],
)
def test_a_text_that_is_no_answer(lying: Make, sent: str, words: str) -> None:
    answer = beside(lying(text(sent)))
    assert isinstance(answer.error, HostUnfit)
    assert words in answer.error.message
    assert answer.error.message.startswith("liar (127.0.0.1:")
    assert len(answer.error.message) < 400


def test_half_a_character_is_replaced(lying: Make) -> None:
    answer = beside(lying(text('{"a\\ud800":["\\udc00","\\ud83d\\ude00"]}')))
    assert answer.document == {"a\ufffd": ["\ufffd", "\U0001f600"]}


def test_an_answer_has_at_most_eight_mebibytes(lying: Make) -> None:
    answer = beside(lying(text(b"x" * (9 * MIB))))
    assert isinstance(answer.error, HostUnfit)
    assert "its answer is larger than 8 MiB" in answer.error.message


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is reached sooner."""
    monkeypatch.setattr(transport, "ANSWER_LIMIT", MIB)


def soon_too_large(answer: Answer) -> None:
    """It was cut off at the limit, long before its time was up."""
    assert "larger than 1 MiB" in str(answer.error)
    assert answer.seconds < SURELY


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("data", [b"[]," * 100_000, b"\n" * 65536])
def test_endless_output_is_cut_off(lying: Make, data: bytes) -> None:
    soon_too_large(beside(lying(endless(data))))


@pytest.mark.usefixtures("small")
def test_a_whole_answer_that_goes_on_is_cut_off(lying: Make) -> None:
    def reply(_: Question, channel: paramiko.Channel) -> None:
        channel.sendall(b'{"a":1}')
        endless(b" " * 65536)(_, channel)

    soon_too_large(beside(lying(reply)))


@pytest.mark.usefixtures("small")
def test_a_server_that_ignores_the_window_is_cut_off(lying: Make) -> None:
    """It sends what nobody has room for, and before it was asked: paramiko would keep all of it."""

    def reply(_: Question, channel: paramiko.Channel) -> None:
        channel.out_window_size = 1 << 40
        while not channel.closed:
            channel.sendall(b"x" * 30_000)

    server = lying(reply)
    liar = server.endpoint("liar")
    soon_too_large(ask(liar)["liar"])


@pytest.mark.parametrize("pace", ["drip", "silence"])
def test_a_slow_drip_ends_at_the_hosts_time(lying: Make, pace: str) -> None:
    server = lying(endless(b" " if pace == "drip" else b"", 0.2))
    hosts = server.endpoint("liar"), server.endpoint("honest")
    answers = with_time(lambda limit: ask(*hosts, timeout=limit), lambda answers: answers["honest"].document)
    assert answers["honest"].document == {"fine": 1}, answers["honest"].error
    liar = answers["liar"]
    assert isinstance(liar.error, HostUnreachable)
    assert re.search(r"no answer within \d+ s", liar.error.message)
    assert liar.seconds < SURELY


def test_a_request_that_is_never_answered_ends_at_the_hosts_time(lying: Make) -> None:
    """paramiko waits for that answer without a limit."""
    server = lying(text("{}"))
    server.runs = False
    answer = ask(server.endpoint("liar"), timeout=1)["liar"]
    assert isinstance(answer.error, HostUnreachable)
    assert "no answer within 1 s" in answer.error.message
    assert answer.seconds < SURELY


@pytest.mark.parametrize("line", [b"x", b"\n", b"SSH-2.0-x\r\n" + b"\xff" * 999, b"a line\r\n"])
def test_what_is_no_ssh_is_bounded_too(lying: Make, line: bytes) -> None:
    server = lying(text("{}"))
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            peer, _ = listening.accept()
            with peer:
                try:
                    while True:
                        peer.sendall(line * 1000)
                except OSError:
                    return

        threading.Thread(target=greet, daemon=True).start()
        end = replace(server.endpoint("liar"), port=listening.getsockname()[1])
        answer = ask(end, timeout=3)["liar"]
        assert answer.error is not None
        assert answer.error.exit_code in {20, 22}
        assert answer.seconds < SURELY


def test_whatever_one_host_sets_off_the_others_are_answered_for(lying: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real = transport.document

    def document(host: Endpoint, *more: Any) -> dict[str, Any]:
        if host.host == "liar":
            raise RecursionError("maximum recursion depth exceeded")
        return real(host, *more)

    monkeypatch.setattr(transport, "document", document)
    answer = beside(lying(text("{}")))
    assert isinstance(answer.error, HostUnfit)
    assert "RecursionError" in answer.error.message


def test_the_worst_answer_of_all_takes_little_memory() -> None:
    worst = ['{"a":[' + "{}," * (endpoint.VALUES // 2 - 3) + "1]}", '{"a":"' + "\U0001f600" * (2 * MIB - 10) + '"}']
    for sent in worst:
        tracemalloc.start()
        try:
            jsontext.loads(sent, items=endpoint.VALUES, more=True)
            assert tracemalloc.get_traced_memory()[1] < 48 * MIB
        finally:
            tracemalloc.stop()


class Taken(transport.Room):
    """Room that others have, until somebody asks for it in vain."""

    def __init__(self) -> None:
        super().__init__(100_000)
        self.in_vain = 0

    def take(self, size: int) -> bool:
        if super().take(size):
            return True
        if not self.in_vain:
            self.give(MIB - 100_000)
        self.in_vain += 1
        return False


def test_answers_wait_for_room(lying: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have taken is waited for, and given back in the end."""
    room = Taken()
    monkeypatch.setattr(transport, "Meter", lambda limit: Meter(limit, room))
    answer = ask(lying(text({"a": "x" * (MIB // 2)})).endpoint("liar"))["liar"]
    assert answer.error is None, answer.error
    assert room.in_vain
    end = time.monotonic() + SURELY
    while room._left < MIB:
        assert time.monotonic() < end, "room is lost"
        time.sleep(0.02)


def test_a_host_without_room_waits_for_its_time(lying: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "Meter", lambda limit: Meter(limit, transport.Room(100_000)))
    answer = ask(lying(text(json.dumps({"a": "x" * MIB}))).endpoint("liar"), timeout=2)["liar"]
    assert isinstance(answer.error, HostUnreachable)
