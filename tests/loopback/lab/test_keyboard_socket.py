"""Keys that QEMU gets over its monitor's socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdslab.errors import LabUnavailable
from gdslab.keyboard import SOCKET, Keyboard


class Qemu(threading.Thread):
    """The other end: greets, answers each request, and notes it."""

    def __init__(self, listener: socket.socket, answers: list[dict[str, Any]]) -> None:
        super().__init__(daemon=True)
        self._listener, self._answers = listener, answers
        self.requests: list[dict[str, Any]] = []

    def run(self) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rw") as stream:
            lines = [{"QMP": {}}, {"return": {}}]
            print(json.dumps(lines[0]), file=stream, flush=True)
            for line in stream:
                self.requests.append(json.loads(line))
                if len(self.requests) > 1:
                    lines = [{"event": "RTC_CHANGE"}, self._answers.pop(0)]
                print(json.dumps(lines[0]) + "\n" + json.dumps(lines[1]), file=stream, flush=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose sockets have longer paths than an address can have."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    return folder


@pytest.fixture
def listener(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(SOCKET)
        listener.listen()
        yield listener


def test_a_key_and_a_refusal(folder: Path, listener: socket.socket) -> None:
    qemu = Qemu(listener, [{"return": {}}, {"error": {"class": "GenericError", "desc": "no such key"}}])
    qemu.start()
    with Keyboard("gpu1", folder) as keyboard:
        keyboard.press("shift", "a")
        with pytest.raises(LabUnavailable, match="gpu1's QEMU did not take a key: no such key"):
            keyboard.press("strange")
    keys = qemu.requests[1]["arguments"]["keys"]
    assert qemu.requests[0] == {"execute": "qmp_capabilities"}
    assert keys == [{"type": "qcode", "data": "shift"}, {"type": "qcode", "data": "a"}]


def test_without_a_machine_it_is_one_error(folder: Path) -> None:
    with pytest.raises(LabUnavailable, match=r"gpu1's QEMU doesn't answer on .*No such file"), Keyboard("gpu1", folder):
        pass
