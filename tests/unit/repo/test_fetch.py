"""Fetching: bounded, retried, never trusting what a server says about itself."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
import pytest

from gdsdeploy.errors import RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.repo import fetch
from gdsdeploy.repo.fetch import Fetcher, MissingFile

DATA = b"what was signed"
SHA = hashlib.sha256(DATA).hexdigest()


class Server:
    """Answers from a list; the last answer is repeated."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.slept: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def fetcher(self, cache: Path) -> Fetcher:
        return Fetcher(cache, apt={}, transport=httpx.MockTransport(self), sleep=self.slept.append)


def answer(status: int = 200, data: bytes = DATA) -> httpx.Response:
    return httpx.Response(status, stream=httpx.ByteStream(data))


@pytest.mark.parametrize(
    "trouble", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), answer(503), answer(429)]
)
def test_passing_trouble_is_tried_again(trouble: httpx.Response | Exception, tmp_path: Path) -> None:
    server = Server(trouble, answer())
    assert server.fetcher(tmp_path).small("https://mirror.example/x") == DATA
    assert server.slept == [0.5]


@pytest.mark.parametrize(
    ("trouble", "words", "tries"),
    [
        (httpx.ConnectError("refused"), r"https://mirror\.example/x: refused \(3 tries\)", 3),
        (answer(401), "status 401", 1),
        (answer(403), "status 403", 1),
    ],
)
def test_trouble_that_stays_is_tried_three_times_and_a_refusal_once(
    trouble: httpx.Response | Exception, words: str, tries: int, tmp_path: Path
) -> None:
    server = Server(trouble)
    with pytest.raises(RepositoryUnusable, match=words):
        server.fetcher(tmp_path).small("https://mirror.example/x")
    assert len(server.requests) == tries


def test_a_file_that_is_not_there_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        Server(answer(404)).fetcher(tmp_path).small("https://mirror.example/x")
    for status in (400, 403):
        with pytest.raises(MissingFile):
            Server(answer(status)).fetcher(tmp_path).file("https://mirror.example/x", sha256=SHA, size=1, optional=True)
    with pytest.raises(RepositoryUnusable, match="status 401"):
        Server(answer(401)).fetcher(tmp_path).file("https://mirror.example/x", sha256=SHA, size=1, optional=True)
    with pytest.raises(MissingFile):
        Fetcher(tmp_path, apt={}).small((tmp_path / "none").as_uri())


def test_a_cached_file_is_found_by_its_content(tmp_path: Path) -> None:
    server = Server(answer())
    fetcher = server.fetcher(tmp_path)
    first = fetcher.file("https://mirror.example/a", sha256=SHA, size=len(DATA))
    assert fetcher.file("https://other.example/b", sha256=SHA, size=len(DATA)) == first
    assert first.read_bytes() == DATA
    assert len(server.requests) == 1


@pytest.mark.parametrize("data", [b"what was signeD", b"what was", DATA + b"!"])
def test_other_content_is_refused_and_not_kept(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(RepositoryUntrusted, match=r"https://mirror\.example/a"):
        Server(answer(data=data)).fetcher(tmp_path).file("https://mirror.example/a", sha256=SHA, size=len(DATA))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_endless_answer_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(RepositoryUntrusted, match="longer than the 100 bytes"):
        Server(answer(data=b"x" * 1000)).fetcher(tmp_path).small("https://mirror.example/x", limit=100)


@pytest.mark.parametrize(("name", "age"), [("InRelease", "max-age=0"), ("Packages.xz", "max-age=0"), ("a.deb", None)])
def test_servers_are_asked_for_the_file_as_it_is_and_for_indices_as_they_are_now(
    name: str, age: str | None, tmp_path: Path
) -> None:
    server = Server(answer())
    server.fetcher(tmp_path).small(f"https://mirror.example/{name}")
    headers = server.requests[0].headers
    assert (headers["accept-encoding"], headers.get("cache-control")) == ("identity", age)


@pytest.mark.parametrize("uri", ["ftp://mirror.example/x", "cdrom:[Debian]/x"])
def test_other_schemes_are_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(RepositoryUnusable, match="cannot fetch"):
        Fetcher(tmp_path, apt={}).small(uri)


def test_the_cache_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path))
    assert Fetcher(apt={}).cache == tmp_path / "repo"
    monkeypatch.delenv("GDSDEPLOY_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Fetcher(apt={}).cache == tmp_path / "xdg" / "gdsdeploy" / "repo"


def test_what_nobody_used_for_long_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "aa" / "old"
    old.parent.mkdir()
    old.write_bytes(b"x")
    monkeypatch.setattr(fetch, "KEEP_DAYS", -1)
    Server(answer()).fetcher(tmp_path).file("https://mirror.example/a", sha256=SHA, size=len(DATA))
    assert not old.exists()


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("Acquire::https::CAInfo", __file__, r"test_fetch\.py: not a file of certificate authorities"),
        ("Acquire::http::Proxy", "gopher://proxy.example", "proxy settings cannot be used: .*gopher"),
    ],
)
def test_a_setting_of_apt_that_cannot_be_used_is_named(setting: str, value: str, words: str, tmp_path: Path) -> None:
    with Fetcher(tmp_path, apt={setting: value}) as fetcher, pytest.raises(RepositoryUnusable, match=words):
        fetcher.small("https://mirror.example/x")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    server = Server(answer())
    with pytest.raises(RepositoryUnusable, match=r"file/.*: cannot be written") as error:
        server.fetcher(tmp_path / "file").file("https://mirror.example/a", sha256=SHA, size=len(DATA))
    assert "GDSDEPLOY_CACHE_DIR" in (error.value.hint or "")
