"""How many hosts are talked to at the same time, and the option that says so."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from gdsdeploy.cli import group
from gdsdeploy.ssh import endpoint, transport
from gdsdeploy.ssh.endpoint import Answer, Endpoint


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    endpoint.limit_connections(endpoint.AT_ONCE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files[0], files[1]), files[1]))


def hosts(number: int) -> Sequence[Endpoint]:
    return [Endpoint(f"gpu{n}", "192.0.2.1", 22, "root", (), ()) for n in range(number)]


@pytest.mark.parametrize(("option", "most"), [(None, 128), (1, 1), (5, 5), (200, 150)])
def test_as_many_as_the_option_says(monkeypatch: pytest.MonkeyPatch, option: int | None, most: int) -> None:
    lock, full, now, counts = threading.Lock(), threading.Event(), 0, []

    def ask(host: Endpoint, *_: object) -> Answer:
        """Answer once as many hosts as there may be are asked, and a moment later, in which there may be more."""
        nonlocal now
        with lock:
            now += 1
            counts.append(now)
            if now >= most:
                full.set()
        assert full.wait(20)
        time.sleep(0.1)
        with lock:
            now -= 1
        return Answer(host.host, {}, None, 0.0)

    monkeypatch.setattr(transport, "_ask", ask)
    if option is not None:
        endpoint.limit_connections(option)
    number = min(150, most * 3)
    assert len(list(transport.fan_out(hosts(number), b"", [], timeout=30))) == number
    assert max(counts) == most


VERBS = {
    "validate": (),
    "plan": (),
    "provision": (),
    "topology": (),
    "support-bundle": ("--output", "x.tar.gz"),
    "rollout start": (),
}


@pytest.mark.parametrize(("verb", "more"), VERBS.items(), ids=VERBS)
def test_every_verb_that_asks_many_hosts_has_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, more: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, expected in (("--connections", "7"), 7), ((), 128):
        CliRunner().invoke(group, [*verb.split(), "fleet.yml", *more, *words])
        assert endpoint.hosts_at_once() == expected
    for number in ("0", "1025", "x"):
        assert CliRunner().invoke(group, [*verb.split(), "fleet.yml", *more, "--connections", number]).exit_code == 2
    assert "Hosts to talk to at the same time." in " ".join(
        CliRunner().invoke(group, [*verb.split(), "--help"]).output.split()
    )


def test_a_process_may_open_the_files_that_its_connections_need() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        assert hard >= 2048, "this machine allows too few open files for the test"
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    endpoint.allow_files(8)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, hard)
    endpoint.allow_files(128)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1280, hard)
    endpoint.allow_files(8)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1280, hard)
