"""How much hosts may send: each of them, and all of them together; below everything that reads what they send."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

#: Bytes of all hosts together that are not parsed yet; without room for more, hosts wait.
IN_FLIGHT = 256 * 2**20


class Room:
    """Memory that many share.  size: bytes."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Whether there was room, which then is taken."""
        with self._lock:
            fits = size <= self._left
            self._left -= size if fits else 0
        return fits

    def give(self, size: int) -> None:
        """Make room again."""
        with self._lock:
            self._left += size


_ROOM = Room(IN_FLIGHT)


class Meter:
    """A connection's socket, as an SSH library reads it: counts what the host sends and ends at ``limit`` bytes.

    The library keeps all that comes, also what a server sends before it is asked, or beyond the window that it has.
    """

    def __init__(self, limit: int, room: Room = _ROOM) -> None:
        self._socket: socket.socket
        self._limit, self._room = limit, room
        self._received = 0
        self._lock = threading.Lock()
        #: whether the host has sent more
        self.full = False

    def around(self, connected: socket.socket) -> Meter:
        """The same, for this socket."""
        self._socket = connected
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def recv(self, size: int) -> bytes:
        """As a socket's; raises TimeoutError, "nothing yet", where there is no room, and EOFError at the limit."""
        room, size = self._room, min(size, 1 << 16)
        if not room.take(size):
            time.sleep(0.05)
            raise TimeoutError
        data = b""
        try:
            data = self._socket.recv(size)
        finally:
            room.give(size - len(data))
            self._keep(len(data), room)
        self.full = self._received > self._limit
        if self.full:
            raise EOFError
        return data

    def done(self) -> None:
        """Release the room of what was received; nothing more is received."""
        with self._lock:
            self._room.give(self._received)
            self._room = Room(0)

    def _keep(self, size: int, room: Room) -> None:
        """Count what was received; the library's thread may still be at it when all is done."""
        with self._lock:
            self._received += size
            if self._room is not room:
                room.give(size)
