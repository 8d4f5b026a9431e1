"""Whom a request goes to by configuration and environment: the fetcher agrees with the real apt and the real dnf."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gdsdeploy.errors import GdsError, RepositoryUnusable
from gdsdeploy.repo.fetch import Fetcher, MissingFile, dnf_settings
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


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def filled(
    text: str, environment: dict[str, str], listeners: dict[str, Listener], monkeypatch: pytest.MonkeyPatch
) -> str:
    """``text`` with the proxies' addresses; so is the environment."""
    places = {name.upper(): f"http://127.0.0.1:{listeners[name].port}" for name in ("one", "two")}
    for name, value in environment.items():
        monkeypatch.setenv(name, places.get(value, value))
    return re.sub("ONE|TWO", lambda match: places[match[0]], text)


def heard(listeners: dict[str, Listener]) -> set[str]:
    """Who was spoken to since the last time."""
    names = {name for name, listener in listeners.items() if listener.heard}
    for listener in listeners.values():
        listener.heard.clear()
    return names


def asked(fetcher: Fetcher, uri: str, listeners: dict[str, Listener]) -> set[str]:
    """Who is spoken to when ``uri`` is fetched."""
    with pytest.raises((GdsError, MissingFile)):
        fetcher.small(uri)
    return heard(listeners)


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
    lines = filled(lines, environment, listeners, monkeypatch).replace("DETECT", str(tmp_path / "detect"))
    (tmp_path / "detect").write_text(
        filled("#!/bin/sh\nexpr $1 : https:// >&2 && echo TWO\n", {}, listeners, monkeypatch)
    )
    (tmp_path / "detect").chmod(0o755)
    machine = AptMachine.make(tmp_path / "machine", ())
    with (machine.root / "apt.conf").open("a") as file:
        file.write(f'#clear Acquire::http::Proxy;\nAcquire::Retries "0";\n{lines}\n')
    monkeypatch.setenv("APT_CONFIG", str(machine.root / "apt.conf"))
    with Fetcher(tmp_path / "cache", sleep=lambda _: None) as fetcher:
        for scheme, expected in (("http", http), ("https", https)):
            uri = f"{scheme}://localhost:{listeners[scheme].port}/"
            machine.source("it", f"deb [trusted=yes] {uri} suite main")
            machine.run("apt-get", "update", ok=(0, 100))
            assert (heard(listeners), asked(fetcher, uri, listeners)) == ({expected}, {expected}), scheme


@pytest.mark.parametrize(
    ("lines", "environment", "http", "https"),
    [
        ("proxy=ONE", {"http_proxy": "TWO", "https_proxy": "TWO"}, "one", "one"),
        ("proxy = ONE\nproxy_username=u\nproxy_password=p%w", {}, "one", "one"),
        ("proxy=ONE", {"no_proxy": "localhost"}, "http", "https"),
        ("proxy=", {"http_proxy": "TWO"}, "two", "https"),
        ("", {}, "http", "https"),
    ],
)
def test_requests_go_where_those_of_dnf_go(
    lines: str, environment: dict[str, str], http: str, https: str, listeners: dict[str, Listener], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    file = tmp_path / "dnf.conf"
    file.write_text(f"[main]\n{filled(lines, environment, listeners, monkeypatch)}\n")
    with Fetcher(tmp_path / "cache", apt=dnf_settings(file), sleep=lambda _: None) as fetcher:
        for scheme, expected in (("http", http), ("https", https)):
            uri = f"{scheme}://localhost:{listeners[scheme].port}/"
            argv = [
                "unshare", "--map-root-user", "dnf", f"--config={file}", f"--installroot={tmp_path / 'root'}",
                "--releasever=9", "--noplugins", f"--setopt=reposdir={tmp_path / 'none'}",
                f"--setopt=cachedir={tmp_path / 'dnf'}", f"--setopt=logdir={tmp_path}", "--setopt=retries=1",
                f"--repofrompath=it,{uri}", "makecache",
            ]  # fmt: skip
            subprocess.run(argv, capture_output=True, check=False)
            assert (heard(listeners), asked(fetcher, uri, listeners)) == ({expected}, {expected}), scheme


@pytest.mark.parametrize("text", ["proxy=hunter2", "[main]\n=hunter2", "[main]\nproxy=http://[hunter2", "\udcff"])
def test_a_configuration_of_dnf_that_cannot_be_read_is_named_and_not_quoted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "dnf.conf"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RepositoryUnusable, match=r"dnf\.conf: \w+: its \[main\] cannot be read") as error:
        dnf_settings(file)
    assert "hunter2" not in error.value.message
    assert dnf_settings(tmp_path / "none") == {}
