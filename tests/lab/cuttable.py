"""A forwarder on loopback whose connections a test can cut."""

from __future__ import annotations

import contextlib
import socket
import threading


class Way:
    """Forwards ``port`` to ``target``, both on loopback."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        with self._lock:
            self._is_cut = True
            broken, self._open = self._open, set()
        for each in broken:
            _close(each)

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            with self._lock:
                refused = self._is_cut
            if refused:
                _close(near)
                continue
            far = socket.create_connection(("127.0.0.1", self._target))
            with self._lock:
                self._open |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for each in (one, other):
            with self._lock:
                self._open.discard(each)
            _close(each)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
