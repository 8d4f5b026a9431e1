"""A server that is wrong, slow, hostile or wants a login: one error that names it, the query and the next step."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from gdsdeploy.errors import PrometheusUnusable
from gdsdeploy.validate import prometheus_server
from gdsdeploy.validate.prometheus_server import Sample, Server
from tests import commandline
from tests.loopback.loopback_fleet import LoopbackFleet

SECRET = "s3cr3t-t0ken"
SAMPLE = {"metric": {"instance": "gpu1:9100"}, "value": [1795334400, "1"]}


def vector(*samples: Any, **more: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": samples}, **more}).encode()


class Web(ThreadingHTTPServer):
    """Answers every request in the same way."""

    daemon_threads = True

    def __init__(self, body: bytes, status: int = 200, pause: float = 0.0, head: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.body, self.status, self.pause, self.head = body, status, pause, head
        self.requests: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []


class _Request(BaseHTTPRequestHandler):
    server: Web

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.requests.append((self.path, dict(self.headers), form))
        if self.server.head:
            self.wfile.write(b"HTTP/1.0 200 OK\r\nX: ")
        else:
            self.send_response(self.server.status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
        pieces = [self.server.body] if not self.server.pause else [bytes([byte]) for byte in self.server.body]
        try:
            for piece in pieces:
                self.wfile.write(piece)
                time.sleep(self.server.pause)
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[Callable[..., Web]]:
    servers: list[Web] = []

    def start(*arguments: Any, **options: Any) -> Web:
        servers.append(Web(*arguments, **options))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(server: Web, settings: Path | None = None, scheme: str = "http", **options: Any) -> list[Sample]:
    url = f"{scheme}://localhost:{server.server_port}/prometheus/"
    with Server(url, settings, **{"warn": pytest.fail, **options}) as client:
        return client.query("up", 1795334400.0)


def config(folder: Path, text: str) -> Path:
    file = folder / "http.yml"
    file.write_text(text)
    return file


def secret(folder: Path, mode: int = 0o600) -> Path:
    file = folder / "secret"
    file.write_text(SECRET + "\n")
    file.chmod(mode)
    return file


def test_a_query_is_of_one_moment_and_shows_no_secret(web: Callable[..., Web]) -> None:
    server = web(vector(SAMPLE))
    assert ask(server) == [Sample({"instance": "gpu1:9100"}, 1.0)]
    ((path, headers, form),) = server.requests
    assert path == "/prometheus/api/v1/query"
    assert form == {"query": ["up"], "time": ["1795334400.000"], "timeout": ["60s"]}
    assert "Authorization" not in headers


def test_what_a_server_says_beside_its_answer_is_a_warning(web: Callable[..., Web]) -> None:
    words: list[str] = []
    ask(web(vector(warnings=["a store is down\n\x1b[31m"])), warn=words.append)
    assert words[0].endswith("/prometheus: a store is down\\n\\x1b[31m")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>login</html>", b"[]", b"{}", b"null", b'{"status": "success"}', b'"' + b"[" * 100_000,
        vector()[:-2], vector() + b"x", vector(status="error"), vector(1), vector({}), vector({**SAMPLE, "metric": []}),
        vector({**SAMPLE, "metric": {"a": 1}}), vector({**SAMPLE, "value": ["1"]}), vector({**SAMPLE, "value": [1, 1]}),
        vector({**SAMPLE, "value": [1, "1 host"]}), vector({**SAMPLE, "value": [1, "1" * 50]}), vector(warnings=[1]),
        vector(SAMPLE).replace(b'"vector"', b'"matrix"'), vector(SAMPLE).replace(b"1795334400", b"9" * 30),
        vector(SAMPLE).replace(b'"metric"', b'"value": [1, "1"], "metric"'), b"\xff\xfe" + vector(SAMPLE),
    ],
    ids=range(23),
)  # fmt: skip
def test_what_is_no_answer_is_one_error(web: Callable[..., Web], body: bytes) -> None:
    with pytest.raises(PrometheusUnusable) as caught:
        ask(web(body))
    message = caught.value.message
    assert "its answer is malformed" in message
    assert "\n  query: up" in message
    assert message.isascii()
    assert len(message) < 600
    assert "curl -sS --data-urlencode query=up http://localhost:" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (302, b"", "status 302"),
        (401, b"no", "status 401"),
        (404, b"<html>", "status 404"),
        (422, b'{"status": "error", "error": "query processing would load too many samples"}', "422: query processing"),
        (503, b'{"error": "x\\u001b[31m\\n"}', "status 503: x\\x1b[31m\\n"),
        (500, b'{"error": {}}', "status 500"),
    ],
)
def test_a_refusal_is_quoted_and_no_redirection_is_followed(
    web: Callable[..., Web], status: int, body: bytes, words: str
) -> None:
    server = web(body, status)
    with pytest.raises(PrometheusUnusable) as caught:
        ask(server)
    assert words in caught.value.message
    assert len(server.requests) == 1


@pytest.mark.parametrize("head", [False, True])
def test_an_answer_that_drips_is_cut_off(web: Callable[..., Web], head: bool) -> None:
    begin = time.monotonic()
    with pytest.raises(PrometheusUnusable, match=r"no whole answer within 0\.5 s"):
        ask(web(vector(*[SAMPLE] * 50), pause=0.05, head=head), whole=0.5)
    assert time.monotonic() - begin < 5


def test_an_answer_without_an_end_is_cut_off(web: Callable[..., Web], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_server, "LIMIT", 1 << 20)
    with pytest.raises(PrometheusUnusable, match="more than 1 MiB"):
        ask(web(b" " * (3 << 20)))


def test_nobody_listens() -> None:
    with Server("http://127.0.0.1:1", warn=pytest.fail) as client, pytest.raises(PrometheusUnusable, match="reached"):
        client.query("up", 0.0)


def test_logins_come_from_files(web: Callable[..., Web], tmp_path: Path) -> None:
    secret(tmp_path)
    server = web(vector())
    ask(server, config(tmp_path, "authorization: {credentials_file: secret}"))
    ask(server, config(tmp_path, "basic_auth: {username: me, password_file: secret}"))
    basic = base64.b64encode(f"me:{SECRET}".encode()).decode()
    sent = [headers["Authorization"] for _, headers, _ in server.requests]
    assert sent == [f"Bearer {SECRET}", f"Basic {basic}"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"basic_auth: {{username: me, password: {SECRET}}}", "basic_auth.password"),
        ("authorization: {credentials_file: nothing}", "No such file"),
        ("authorization: {credentials_file: secret}\nbasic_auth: {username: u, password_file: secret}", "exclude"),
        ("tls_config: {ca_file: nothing}", "No such file"),
        ("tls_config: {insecure_skip_verify: true}", "insecure_skip_verify"),
        ("[]", "http.yml"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    secret(tmp_path)
    with pytest.raises(PrometheusUnusable) as caught:
        Server("https://localhost", config(tmp_path, text), warn=pytest.fail)
    assert words in caught.value.message
    assert SECRET not in caught.value.message


def test_a_login_is_neither_readable_nor_sent_in_clear(tmp_path: Path) -> None:
    settings = config(tmp_path, "authorization: {credentials_file: secret}")
    secret(tmp_path, 0o644)
    with pytest.raises(PrometheusUnusable, match="can be read by others"):
        Server("https://prometheus.example", settings, warn=pytest.fail)
    secret(tmp_path)
    with pytest.raises(PrometheusUnusable, match="not sent over http"):
        Server("http://prometheus.example", settings, warn=pytest.fail)
    Server("http://127.0.0.1:9090", settings, warn=pytest.fail).__exit__()


@pytest.mark.parametrize(
    "url",
    [
        f"https://me:{SECRET}@prometheus", f"https://{SECRET}@prometheus", f"http://prometheus/?token={SECRET}",
        "prometheus:9090", "metrics.prom", "file:///etc/passwd", "http://", "http://x:y", "http://[::1", "http://ü",
        "http://x\n",
    ],
)  # fmt: skip
def test_addresses_that_cannot_be_used(url: str) -> None:
    with pytest.raises(PrometheusUnusable, match="--prometheus: ") as caught:
        Server(url, warn=pytest.fail)
    assert SECRET not in f"{caught.value.message} {caught.value.hint}"


def test_a_certificate_of_an_unknown_authority_is_refused(web: Callable[..., Web], tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    server = web(vector(SAMPLE))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with pytest.raises(PrometheusUnusable, match="CERTIFICATE_VERIFY_FAILED"):
        ask(server, scheme="https")
    secret(tmp_path)
    text = "tls_config: {ca_file: cert.pem}\nauthorization: {credentials_file: secret}"
    assert len(ask(server, config(tmp_path, text), scheme="https")) == 1


@pytest.mark.parametrize("argv", [("--load",), ("--check", "kernel.running"), ("--pytest",)])
def test_options_that_need_the_hosts_are_refused(
    make_fleet: Callable[..., LoopbackFleet], capfd: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    fleet = make_fleet(gpu1={"profile": "right"})
    assert commandline.run("validate", fleet.path, "--prometheus", "http://127.0.0.1:1", *argv) == 2
    assert "--prometheus" in capfd.readouterr().err


def test_a_server_that_does_not_answer_ends_the_run(
    make_fleet: Callable[..., LoopbackFleet], capfd: pytest.CaptureFixture[str]
) -> None:
    fleet = make_fleet(gpu1={"profile": "right"})
    assert commandline.run("validate", fleet.path, "--prometheus", "http://127.0.0.1:1") == 34
    assert fleet.sessions() == 0
    assert commandline.run("validate", fleet.path, "--prometheus-label", "host") == 2
    capfd.readouterr()
