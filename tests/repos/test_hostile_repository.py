"""A repository that a pinned key signs may be hostile, and so may be who wrote the fleet file that names it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import lzma
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gdsdeploy.errors import GdsError, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.lock import lockfile
from gdsdeploy.mirror import writing
from gdsdeploy.repo import fetch
from gdsdeploy.repo.fetch import Fetcher
from tests.commandline import run
from tests.repos.archive import Key, files
from tests.repos.conftest import Debian, Verb, lock
from tests.repos.stack import TRIXIE, suites

Stanzas = list[dict[str, str]]


def changed(package: str, fields: Mapping[str, str]) -> Stanzas:
    return [{**stanza, **fields} if stanza["Package"] == package else dict(stanza) for stanza in TRIXIE]


@pytest.fixture
def mirror(debian: Debian, other_key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Mirror the archive's lock to ``tmp_path/mirror``."""
    monkeypatch.setenv("GNUPGHOME", str(other_key.home))
    lock(debian.fleet)
    place = tmp_path / "mirror"
    keys = ["--keyring", debian.key.keyring, "--key", other_key.fingerprint]
    return lambda: run("mirror", lockfile.beside(debian.fleet), place, *keys)


@pytest.mark.parametrize(
    "name", ["x/../../../victim", "../../../victim", "/victim", "a/./b", "a//b", ".htaccess", "pool/\x1b[2J", "a /b"]
)
def test_a_file_name_that_leads_out_is_refused_by_lock_and_mirror(
    name: str, debian: Debian, mirror: Callable[[], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("keys\n")
    for suite in suites(
        changed("libcufile0", {"Filename": name.replace("/victim", str(victim)) if name[0] == "/" else name})
    ):
        debian.archive.publish(suite, debian.key)
    before = files(tmp_path)
    for attempt in (mirror, lambda: run("lock", debian.fleet)):
        assert attempt() == RepositoryUnusable.exit_code
        said = re.sub(r"\s+", " ", capsys.readouterr().err)
        assert re.search(r"Packages\.xz: stanza [0-9]+: libcufile0: not a path inside the repository", said), said
        assert "\x1b[2J" not in said
    after = files(tmp_path)
    assert victim.read_text() == "keys\n"
    assert {name for name in after.keys() - before.keys() if not name.startswith("cache/")} == set()


def test_a_version_that_is_none_is_one_error_of_lock(debian: Debian, verb: Verb) -> None:
    for suite in suites(changed("nvidia-fs-dkms", {"Version": "550.1 x$(id)"})):
        debian.archive.publish(suite, debian.key)
    said = verb("lock", debian.fleet, error=RepositoryUnusable).words
    assert re.search(r"stanza [0-9]+: nvidia-fs-dkms: not a version: '550\.1 x\$\(id\)'", said), said
    assert "Traceback" not in said


def test_a_list_of_six_gibibytes_ends_lock_in_little_memory(debian: Debian) -> None:
    """Signed, and declared as what it is or not at all."""
    bomb = lzma.compress(bytes(64 << 20)) * 96
    folder = debian.archive.root / "dists" / "trixie"
    text = (folder / "InRelease").read_bytes().split(b"\n\n", 1)[1].split(b"-----BEGIN PGP SIG")[0].decode()
    text = re.sub(r" \w{64} \d+ main/binary-amd64/Packages\n", "", text)
    line = f" {hashlib.sha256(bomb).hexdigest()} {len(bomb)} main/binary-amd64/Packages.xz"
    (folder / "main/binary-amd64/Packages.xz").write_bytes(bomb)
    for more in ("", f"\n {'0' * 64} {6 << 30} main/binary-amd64/Packages"):
        release = re.sub(r" \w{64} \d+ main/binary-amd64/Packages\.xz", line + more, text)
        release = release.replace("Acquire-By-Hash: yes\n", "")
        (folder / "InRelease").write_bytes(debian.key.clearsign(release.encode()))
        script = (
            "import re, resource, sys\nresource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
            "from gdsdeploy.cli import main\n"
            "try:\n    main(['lock', sys.argv[1]])\n"
            # ru_maxrss would be that of the process that started it, where that is more.
            "finally:\n    print('KiB', re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(debian.fleet)], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == RepositoryUntrusted.exit_code, done.stderr
        assert "Packages" in done.stderr
        memory = re.search(r"KiB (\d+)", done.stdout)
        assert memory
        assert int(memory[1]) < 300 << 10


# ── what is in the way in the mirror's folder ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", ["pool", "pool/debian", "dists", "dists/debian-13/stack", "dists/debian-13/InRelease",
                                   "gdsdeploy-mirror.gpg", "gdsdeploy-mirror.json"])  # fmt: skip
@pytest.mark.parametrize("what", ["link to a folder", "link to a file", "link to nothing", "pipe", "file or folder"])
def test_what_is_foreign_is_named_and_nothing_is_changed(
    place: str, what: str, mirror: Callable[[], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("{}")
    way = tmp_path / "mirror" / place
    way.parent.mkdir(parents=True)
    is_folder = "." not in place.rpartition("/")[2]
    if what == "pipe":
        os.mkfifo(way)
    elif what == "file or folder":
        way.write_text("foreign") if is_folder else way.mkdir()
    else:
        way.symlink_to({"folder": outside, "file": outside / "file", "nothing": outside / "new"}[what.split()[-1]])
    before = sorted(tmp_path.joinpath("mirror").rglob("*")), files(outside)
    assert mirror() == GdsError.exit_code
    said = re.sub(r"\s", "", capsys.readouterr().err)
    assert str(way) in said, said
    assert (sorted(tmp_path.joinpath("mirror").rglob("*")), files(outside)) == before


@pytest.mark.parametrize(
    "place", ["gdsdeploy-mirror.gpg", "dists/debian-13/Release", "dists/debian-13/InRelease", "pool"]
)
def test_a_foreign_file_is_not_replaced(
    place: str, mirror: Callable[[], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mirror() == 0
    root = tmp_path / "mirror"
    (root / writing.RECORD).unlink()
    chosen = next(root.glob("pool/debian/*.deb")) if place == "pool" else root / place
    chosen.write_text("foreign")
    before = files(root)
    assert mirror() == GdsError.exit_code
    assert str(chosen) in re.sub(r"\s", "", capsys.readouterr().err)
    assert files(root) == before


def test_a_mirror_knows_what_it_wrote(mirror: Callable[[], int], tmp_path: Path) -> None:
    assert mirror() == 0
    root = tmp_path / "mirror"
    assert {*json.loads((root / writing.RECORD).read_text())["files"], writing.RECORD} == set(files(root))
    (root / "notes.txt").write_text("foreign, and not in the way")
    assert mirror() == 0
    assert (root / "notes.txt").exists()


def test_one_run_at_a_time_writes_a_mirror(tmp_path: Path) -> None:
    with writing.opened(tmp_path) as folder:
        assert folder.work.is_dir()
        with pytest.raises(GdsError, match="another run writes this mirror"), writing.opened(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


# ── what servers and folders give ────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler, threading.Event], None]) -> Iterator[str]:
    stop = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                answer(self, stop)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/x"
    finally:
        stop.set()
        server.shutdown()
        server.server_close()


def drip(send: Callable[[bytes], object], stop: threading.Event) -> None:
    while not stop.wait(0.05):
        send(b"x")


def dripping_header(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    drip(handler.wfile.write, stop)


def dripping_body(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    drip(handler.wfile.write, stop)


@pytest.mark.parametrize("answer", [dripping_header, dripping_body])
def test_a_server_that_drips_ends_at_the_time_for_an_answer(
    answer: Callable[[BaseHTTPRequestHandler, threading.Event], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PATIENCE", 1.0)
    monkeypatch.setattr(fetch, "SLOWEST", 1 << 40)
    with serving(answer) as uri, Fetcher(tmp_path, apt={}) as fetcher:
        with pytest.raises(RepositoryUnusable, match="not here after 1 seconds"):
            fetcher.small(uri)
        if answer is dripping_header:
            with pytest.raises(RepositoryUnusable, match="not here after 1 seconds"):
                fetcher.file(uri, sha256="0" * 64, size=100)


def test_the_endless_body_of_a_redirect_is_not_read(tmp_path: Path) -> None:
    sent = [0]

    def redirect(handler: BaseHTTPRequestHandler, stop: threading.Event) -> None:
        if handler.path == "/end":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            return
        handler.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: /end\r\nConnection: close\r\n\r\n")
        while not stop.is_set():
            sent[0] += handler.wfile.write(bytes(1 << 20))

    def circle(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
        handler.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n")

    with serving(redirect) as uri, Fetcher(tmp_path, apt={}) as fetcher:
        assert fetcher.small(uri) == b"ok"
        assert sent[0] < 64 << 20
    with (
        serving(circle) as uri,
        Fetcher(tmp_path, apt={}) as fetcher,
        pytest.raises(RepositoryUnusable, match="more than 20 redirects"),
    ):
        fetcher.small(uri)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir])
def test_a_pipe_a_device_and_a_folder_as_an_index_are_one_error_of_lock(
    make: Callable[[Path], None], debian: Debian, verb: Verb
) -> None:
    debian.fleet.write_text(debian.fleet.read_text().replace(debian.server.uri, debian.archive.root.as_uri()))
    index = debian.archive.root / "dists/trixie/InRelease"
    index.unlink()
    make(index)
    said = verb("lock", debian.fleet, "--allow-file-repositories", error=RepositoryUnusable).err
    assert "InRelease" in said
    assert "not a regular file" in said or "Is a directory" in said


@pytest.mark.parametrize("path", ["%00", "a%00b"])
def test_an_address_that_is_no_path_is_one_error(path: str, tmp_path: Path) -> None:
    with Fetcher(tmp_path, apt={}) as fetcher, pytest.raises(RepositoryUnusable, match="null"):
        fetcher.small(f"file:///{path}")


def test_a_digest_that_is_a_path_reaches_no_file(tmp_path: Path) -> None:
    with Fetcher(tmp_path / "cache", apt={}) as fetcher, pytest.raises(ValueError, match="not a sha256"):
        fetcher.find_cached("../../x", 1)
