"""Fetching with certificates, proxies and logins: as the real apt and dnf do it, and no secret gets into a message."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from gdsdeploy.errors import FleetInvalid, GdsError, RepositoryUnusable
from gdsdeploy.repo import credentials
from gdsdeploy.repo.fetch import Fetcher, MissingFile, dnf_settings
from tests.pins.aptmachine import AptMachine


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that is its own authority, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-days", "2", "-subj", f"/CN={name}",
            "-addext", "subjectAltName=DNS:localhost", "-out", cert, "-keyout", key]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certificates")
    for name in ("server", "client"):
        certificate(path, name)
    return path


@pytest.fixture
def uri(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "client.pem"))
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"https://localhost:{server.server_address[1]}/file"
        server.shutdown()
        thread.join()


def fetched(uri: str, tmp_path: Path, prefix: str = "https", **settings: str) -> bytes:
    apt = {f"Acquire::{prefix}::{key.replace('_of_', '::')}": value for key, value in settings.items()}
    with Fetcher(tmp_path, apt=apt, sleep=lambda _: None) as fetcher:
        return fetcher.small(uri)


@pytest.mark.parametrize(
    ("prefix", "host", "by_apt"),
    [
        ("https", "", True),
        ("https", "_of_localhost", False),  # only its manual has this
        ("https::localhost", "", True),
        ("HTTP", "", True),
        ("http::LocalHost", "", True),
    ],
)
def test_the_certificate_that_apt_would_show_is_shown(
    prefix: str, host: str, by_apt: bool, uri: str, folder: Path, tmp_path: Path
) -> None:
    files = {"CaInfo": "server.pem", "SSLCert": "client.pem", "SslKey": "client.key"}
    names = {f"{name}{host}": str(folder / file) for name, file in files.items()}
    assert fetched(uri, tmp_path / "cache", prefix, **names) == b"hello"
    machine = AptMachine.make(tmp_path / "machine", ())
    with (machine.root / "apt.conf").open("a") as file:
        file.writelines(f'Acquire::{prefix}::{key.replace("_of_", "::")} "{value}";\n' for key, value in names.items())
    machine.source("it", f"deb [trusted=yes] {uri.removesuffix('file')} suite main")
    said = machine.run("apt-get", "update", ok=(0, 100))
    assert ("ertificate" not in said) is by_apt, said


def test_another_hosts_certificate_is_not_shown(uri: str, folder: Path, tmp_path: Path) -> None:
    names = {"SSLCert_of_mirror": str(folder / "client.pem"), "SSLKey_of_mirror": str(folder / "client.key")}
    with pytest.raises(RepositoryUnusable):
        fetched(uri, tmp_path, CAInfo=str(folder / "server.pem"), **names)


def test_the_server_is_verified_all_the_same(uri: str, folder: Path, tmp_path: Path) -> None:
    names = {"SSLCert_of_localhost": str(folder / "client.pem"), "SSLKey_of_localhost": str(folder / "client.key")}
    with pytest.raises(RepositoryUnusable, match=r"(?i)certificate verify failed"):
        fetched(uri, tmp_path, **names)


def test_a_certificate_that_cannot_be_used_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RepositoryUnusable, match=r"none\.pem: not a client's certificate"):
        fetched("https://localhost/", tmp_path, SSLCert=str(folder / "none.pem"))


# -- Whom a request goes to by configuration and environment: the fetcher agrees with the real apt and the real dnf.


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


# -- Logins for repositories: from a private file, to the machines that it names, and into no message.

WORD = "Basic " + base64.b64encode(b"someone:hunter2:x").decode()


@dataclass
class Guarded:
    """A server that wants a login; ``seen``: path → what the request had."""

    port: int = 0
    seen: dict[str, str | None] = field(default_factory=dict)
    #: where /away leads
    away: str = ""


@pytest.fixture
def servers() -> Iterator[tuple[Guarded, Guarded]]:
    pair, running = (Guarded(), Guarded()), []
    for one in pair:

        class Handler(http.server.BaseHTTPRequestHandler):
            state = one

            def do_GET(self) -> None:
                word = self.headers["Authorization"]
                self.state.seen[self.path] = word
                if self.path == "/away":
                    self.send_response(302)
                    self.send_header("Location", self.state.away)
                else:
                    self.send_response(200 if word == WORD else 401)
                self.send_header("Content-Length", "2" if self.path != "/away" else "0")
                self.end_headers()
                if self.path != "/away":
                    self.wfile.write(b"ok")

            do_HEAD = do_GET  # noqa: N815 - http.server looks for this name

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        one.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        running.append(server)
    yield pair
    for server in running:
        server.shutdown()
        server.server_close()


def written(folder: Path, text: str) -> Path:
    path = folder / "logins.conf"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_login_goes_to_its_machine_alone(servers: tuple[Guarded, Guarded], tmp_path: Path) -> None:
    one, other = servers
    one.away = f"http://127.0.0.1:{other.port}/there"
    path = written(tmp_path, f"# mine\nmachine http://127.0.0.1:{one.port}\n login someone\n password hunter2:x\n")
    with Fetcher(tmp_path / "cache", apt={}, logins=credentials.read(path)) as fetcher:
        assert fetcher.small(f"http://127.0.0.1:{one.port}/a") == b"ok"
        assert fetcher.has(f"http://127.0.0.1:{one.port}/b")
        for uri in (f"http://127.0.0.1:{one.port}/away", f"http://127.0.0.1:{other.port}/direct"):
            with pytest.raises(RepositoryUnusable, match="status 401") as caught:
                fetcher.small(uri)
            assert "hunter2" not in str(caught.value) + str(caught.value.hint)
            assert "`credentials`" in str(caught.value.hint)
    assert one.seen["/a"] == one.seen["/b"] == WORD
    assert other.seen == {"/there": None, "/direct": None}


@pytest.mark.parametrize(
    ("machine", "yes", "no"),
    [
        ("a.example", "https://a.example/x", "http://a.example/x"),
        ("A.example:8443", "https://a.example:8443/x", "https://a.example/x"),
        ("a.example:443", "https://a.example/x", "https://a.example:8443/x"),
        ("a.example/deb", "https://a.example/debian/x", "https://a.example/x"),
        ("a.example/deb/", "https://a.example/deb/x", "https://a.example/deb/%2e%2e/x"),
        ("http://a.example", "http://a.example/x", "https://a.example/x"),
        ("a.example", "https://a.example/x", "https://a.example.evil/x"),
        ("[::1]", "https://[::1]/x", "https://[::2]/x"),
    ],
)
def test_which_addresses_a_machine_is(machine: str, yes: str, no: str, tmp_path: Path) -> None:
    logins = credentials.read(written(tmp_path, f"machine {machine} login someone password hunter2:x"))
    words = [next(logins.auth_flow(httpx.Request("GET", url))).headers.get("Authorization") for url in (yes, no)]
    assert words == [WORD, None]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hunter2", 1),
        ("machine a login hunter2", 1),
        ("machine a login b password c\nmachine a password hunter2 login b\n", 2),
        ("machine ftp://hunter2 login b password c\n", 1),
        ("\n-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n", 2),
    ],
)
def test_what_is_no_file_of_logins_is_not_quoted(text: str, line: int, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(FleetInvalid) as caught:
        credentials.read(path)
    assert caught.value.message.startswith(f"{path}:{line}: ")
    assert "hunter2" not in caught.value.message
    path.chmod(0o640)
    with pytest.raises(FleetInvalid, match="can be read by others") as caught:
        credentials.read(path)
    assert caught.value.hint == f"Run: chmod 0600 {path}"


def test_a_pipe_that_somebody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "logins.conf"
    os.mkfifo(path, 0o600)
    writer = os.open(path, os.O_RDWR)
    try:
        with pytest.raises(FleetInvalid, match="it isn't a regular file"):
            credentials.read(path)
    finally:
        os.close(writer)


def test_no_login_is_shown_by_accident(tmp_path: Path) -> None:
    (login,) = credentials.read(written(tmp_path, "machine a login someone password hunter2"))._logins
    assert "hunter2" not in repr(login)
