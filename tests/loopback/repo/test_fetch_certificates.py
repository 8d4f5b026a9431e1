"""Client certificates as apt's own configuration names them, against a real HTTPS server that insists on one."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.repo.fetch import Fetcher
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
