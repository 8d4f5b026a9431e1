"""Whom a request goes to by apt's configuration and the environment: the fetcher and the real apt agree."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gdsdeploy.errors import GdsError
from gdsdeploy.repo.fetch import Fetcher, MissingFile
from tests.pins.aptmachine import AptMachine


@dataclass
class Listener:
    """Takes connections, remembers how they begin, and hangs up."""

    port: int
    heard: list[bytes] = field(default_factory=list)

    def serve(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                with server.accept()[0] as connection:
                    self.heard.append(connection.recv(4096))


@pytest.fixture
def listeners() -> Iterator[dict[str, Listener]]:
    """Two proxies, and a server of each scheme."""
    made = {}
    with contextlib.ExitStack() as stack:
        for name in ("one", "two", "http", "https"):
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            made[name] = Listener(server.getsockname()[1])
            threading.Thread(target=made[name].serve, args=(server,), daemon=True).start()
        yield made


HTTP, HTTPS = "Acquire::http", "Acquire::https"


@pytest.mark.parametrize(
    ("lines", "environment", "http", "https"),
    [
        (f'{HTTP}::Proxy "ONE";', {}, "one", "one"),
        (f'{HTTP}::proxy "ONE";', {}, "one", "one"),
        ('acquire { HTTP { PROXY "ONE"; }; Https::Proxy "TWO"; };', {}, "one", "two"),
        (f'{HTTP}::Proxy "ONE"; {HTTP}::Proxy::LocalHost "DIRECT";', {}, "http", "https"),
        (f'{HTTP}::Proxy "ONE"; {HTTPS}::Proxy::localhost "TWO";', {}, "one", "two"),
        (f'{HTTP}::Proxy::localhost "ONE"; {HTTPS}::Proxy "TWO";', {}, "one", "one"),
        (f'{HTTP}::Proxy "ONE"; {HTTPS}::Proxy "DIRECT";', {}, "one", "https"),
        (f'{HTTP}::Proxy "false";', {"http_proxy": "TWO"}, "http", "https"),
        (f'{HTTP}::localhost::Proxy "ONE";', {}, "one", "one"),
        (f'{HTTP}::Proxy "ONE"; {HTTPS}::Proxy-Auto-Detect "DETECT";', {}, "one", "two"),
        (f'{HTTP}::Proxy "ONE"; {HTTP}::ProxyAutoDetect "DETECT"; {HTTP}::Proxy::localhost "DIRECT";', {}, "http",
         "https"),
        (f'{HTTP}::Proxy "ONE";', {"no_proxy": "localhost"}, "http", "https"),
        ("", {"http_proxy": "ONE"}, "one", "one"),
        ("", {"http_proxy": "ONE", "https_proxy": "TWO"}, "one", "two"),
        ("", {}, "http", "https"),
    ],
)  # fmt: skip
def test_requests_go_where_those_of_apt_go(
    lines: str, environment: dict[str, str], http: str, https: str, listeners: dict[str, Listener], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def filled(text: str) -> str:
        text = text.replace("DETECT", str(tmp_path / "detect"))
        return text.replace("ONE", places["one"]).replace("TWO", places["two"])

    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    places = {name: f"http://127.0.0.1:{listener.port}" for name, listener in listeners.items()}
    (tmp_path / "detect").write_text(f"#!/bin/sh\nexpr $1 : https:// >&2 && echo {places['two']}\n")
    (tmp_path / "detect").chmod(0o755)
    machine = AptMachine.make(tmp_path / "machine", ())
    with (machine.root / "apt.conf").open("a") as file:
        file.write(f'#clear Acquire::http::Proxy;\nAcquire::Retries "0";\n{filled(lines)}\n')
    for name, value in environment.items():
        monkeypatch.setenv(name, filled(value))
    monkeypatch.setenv("APT_CONFIG", str(machine.root / "apt.conf"))
    addresses = {scheme: f"{scheme}://localhost:{listeners[scheme].port}/" for scheme in ("http", "https")}
    with Fetcher(tmp_path / "cache", sleep=lambda _: None) as fetcher:
        for scheme, expected in (("http", http), ("https", https)):
            machine.source("it", f"deb [trusted=yes] {addresses[scheme]} suite main")
            machine.run("apt-get", "update", ok=(0, 100))
            taken = {name for name, listener in listeners.items() if listener.heard}
            for listener in listeners.values():
                listener.heard.clear()
            with pytest.raises((GdsError, MissingFile)):
                fetcher.small(addresses[scheme])
            own = {name for name, listener in listeners.items() if listener.heard}
            for listener in listeners.values():
                listener.heard.clear()
            assert (taken, own) == ({expected}, {expected}), scheme
