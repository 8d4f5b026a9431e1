"""Logins for repositories: from a private file, to the machines that it names, and into no message."""

from __future__ import annotations

import base64
import http.server
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from gdsdeploy.errors import FleetInvalid, RepositoryUnusable
from gdsdeploy.repo import credentials
from gdsdeploy.repo.fetch import Fetcher

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
