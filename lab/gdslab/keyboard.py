"""The keyboard of a VM host, over QEMU's monitor protocol (QMP)."""

from __future__ import annotations

import json
import os
import socket
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdslab.errors import LabUnavailable

#: QMP's socket in the host's folder, where QEMU runs: a path of a socket has at most 107 bytes.
SOCKET = "monitor.sock"
#: QEMU's names of keys.
ENTER, DOWN = "ret", "down"
#: Milliseconds that a key is down, and seconds until QEMU answers.
HOLD, PATIENCE = 50, 30.0
#: Keys of a US keyboard: without and with Shift.
_KEYS = {
    **{letter: letter for letter in string.ascii_lowercase + string.digits},
    **dict(zip(" -=[];'\\`,./", (
        "spc", "minus", "equal", "bracket_left", "bracket_right", "semicolon", "apostrophe", "backslash",
        "grave_accent", "comma", "dot", "slash",
    ), strict=True)),
}  # fmt: skip
_SHIFTED = {
    **dict(zip(string.ascii_uppercase, string.ascii_lowercase, strict=True)),
    **dict(zip(')!@#$%^&*(_+{}:"|~<>?', "0123456789-=[];'\\`,./", strict=True)),
}


class Keyboard:
    """The keyboard of the VM host in ``folder``; a context, which holds a connection to its QEMU.

    Raises LabUnavailable if QEMU doesn't answer, or for a key that it doesn't know.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._path = name, folder / SOCKET
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(PATIENCE)
        self._input = b""

    def __enter__(self) -> Keyboard:
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            self._connection.connect(f"/proc/self/fd/{folder}/{self._path.name}")
            self._receive()
            self._execute("qmp_capabilities")
        except (OSError, ValueError) as error:
            self._connection.close()
            raise LabUnavailable(
                f"{self._name}'s QEMU doesn't answer on {self._path}: {error}",
                hint="Another program may use that socket; end it and repeat",
            ) from None
        finally:
            os.close(folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def press(self, *keys: str) -> None:
        """Press ``keys`` (QEMU's names) together."""
        codes = [{"type": "qcode", "data": key} for key in keys]
        try:
            self._execute("send-key", {"keys": codes, "hold-time": HOLD})
        except (OSError, ValueError) as error:
            raise LabUnavailable(
                f"{self._name}'s QEMU did not take a key: {error}", hint="gdsdeploy lab list"
            ) from None

    def _execute(self, command: str, arguments: dict[str, Any] | None = None) -> None:
        request = {"execute": command, **({"arguments": arguments} if arguments else {})}
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        # QEMU also reports events.
        while not ({"return", "error"} & (answer := self._receive()).keys()):
            pass
        if "error" in answer:
            raise ValueError(answer["error"].get("desc", "refused"))

    def _receive(self) -> dict[str, Any]:
        while b"\n" not in self._input:
            data = self._connection.recv(1 << 16)
            if not data:
                raise ValueError("it ended")
            self._input += data
        line, _, self._input = self._input.partition(b"\n")
        value: dict[str, Any] = json.loads(line)
        return value


def strokes(text: str) -> list[Sequence[str]]:
    """The keys to press for each letter of ``text`` on a US keyboard; raises LabUnavailable for another letter."""
    if not all(letter in _KEYS or letter in _SHIFTED for letter in text):
        raise LabUnavailable(
            "the password has letters that a US keyboard doesn't have, and MokManager knows no other",
            hint="Make the request again with a password of ASCII letters and digits",
        )
    return [(_KEYS[letter],) if letter in _KEYS else ("shift", _KEYS[_SHIFTED[letter]]) for letter in text]
