"""The real apt's answers, which are stored: each of their inputs changes, and the answer follows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages import apt
from gdsdeploy.host.evidence import EvidenceRequest
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.io import cache
from gdsdeploy.host.subjects import packages
from tests.pins.aptmachine import AptMachine

STANZA = {"Package": "nvidia-driver", "Version": "550.1-1", "Architecture": "amd64"}


class Runs:
    """The programs that were started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        real = process.run

        def run(argv: list[str], *words: Any, **named: Any) -> process.Output:
            self.names.append(argv[0])
            return real(argv, *words, **named)

        monkeypatch.setattr(process, "run", run)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """What is started; entries are stored."""
    (tmp_path / "entries").mkdir(mode=0o700)
    monkeypatch.setattr(cache, "folder", lambda: str(tmp_path / "entries"))
    return Runs(monkeypatch)


def index(root: Path, version: str) -> None:
    """A repository's list, as apt has fetched it."""
    stanza = {**STANZA, "Version": version, "Filename": "x.deb", "Size": "1", "SHA256": "0" * 64}
    text = "".join(f"{key}: {value}\n" for key, value in stanza.items()) + "Description: imitated\n\n"
    name = "archive.example_debian_dists_trixie"
    (root / f"var/lib/apt/lists/{name}_main_binary-amd64_Packages").write_text(text)
    (root / f"var/lib/apt/lists/{name}_Release").write_text(
        "Suite: trixie\nCodename: trixie\nOrigin: imitated\nComponents: main\nArchitectures: amd64\n"
    )


def apt_machine(root: Path) -> AptMachine:
    machine = AptMachine.make(root, [STANZA])
    machine.source("archive", "deb [trusted=yes] http://archive.example/debian trixie main")
    index(root, "550.2-1")
    (root / "etc/dpkg").mkdir()
    return machine


PIN = "Package: nvidia-driver\nPin: version 550.1-1\nPin-Priority: 1001\n"
APT_CHANGES: dict[str, Callable[[AptMachine], object]] = {
    "a list": lambda machine: edit(next(machine.root.glob("var/lib/apt/lists/*_Packages")), "550.2-1", "550.3-1"),
    "no list": lambda machine: next(machine.root.glob("var/lib/apt/lists/*_Packages")).unlink(),
    "a pin": lambda machine: machine.preferences("pins", PIN),
    "the one file of pins": lambda machine: (machine.root / "etc/apt/preferences").write_text(PIN),
    "another source": lambda machine: machine.source("archive", "deb http://other.example/debian trixie main"),
    "no source": lambda machine: next(machine.root.glob("etc/apt/sources.list.d/*")).unlink(),
    "the one file of sources": lambda machine: (
        next(machine.root.glob("etc/apt/sources.list.d/*")).rename(machine.root / "etc/apt/sources.list"),
        (machine.root / "etc/apt/sources.list").write_text("deb http://other.example/debian trixie main\n"),
    ),
    "another version is installed": lambda machine: edit(machine.root / "var/lib/dpkg/status", "550.1-1", "550.0-1"),
    "the lists are elsewhere": lambda machine: (machine.root / "etc/apt/apt.conf.d/site").write_text(
        f'Dir::State::lists "{machine.root}/elsewhere";\n'
    ),
}


def edit(path: Path, before: str, after: str) -> None:
    """Equal size, and ten seconds later: apt's own store doesn't tell two changes of one second apart."""
    later = path.stat().st_mtime + 10
    path.write_text(path.read_text().replace(before, after))
    os.utime(path, (later, later))


@pytest.fixture
def ask_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    root = tmp_path / "root"
    monkeypatch.delenv("APT_CONFIG", raising=False)
    monkeypatch.setattr(packages, "ENVIRONMENT", {"APT_CONFIG": f"{root}/apt.conf"})
    monkeypatch.setattr(packages, "APT_CONFIGURATION", ("/apt.conf", *packages.APT_CONFIGURATION))

    def ask() -> str:
        recorder = Recorder(60, root=str(root))
        packages.collect_drift(recorder, EvidenceRequest(packages=("nvidia-driver",)))
        record = recorder.document["commands"]["apt-policy"]
        assert record["status"] == 0, record
        assert isinstance(record["stdout"], str)
        return record["stdout"]

    return ask


def stored(ask: Callable[[], Any], runs: Runs) -> Any:
    """The answer, of which a second question starts nothing."""
    answer = ask()
    runs.names.clear()
    assert ask() == answer
    assert runs.names == [], "nothing changed, so nothing was started"
    return answer


@pytest.mark.parametrize("name", APT_CHANGES)
def test_apts_policy_follows_every_change(tmp_path: Path, runs: Runs, ask_apt: Callable[[], str], name: str) -> None:
    machine = apt_machine(tmp_path / "root")
    before = stored(ask_apt, runs)
    assert "Candidate: 550.2-1" in before
    APT_CHANGES[name](machine)
    after = ask_apt()
    assert after != before
    assert after == machine.run("apt-cache", "policy", "nvidia-driver")


@pytest.mark.parametrize("name", APT_CHANGES)
def test_what_provision_asks_apt_follows_every_change(
    tmp_path: Path, runs: Runs, ask_apt: Callable[[], str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    machine, form = apt_machine(tmp_path / "root"), "$(SOURCESENTRY) $(REPO_URI) $(SUITE)"
    real = process.run

    def run(argv: list[str], *words: Any, env: Any = None, **named: Any) -> process.Output:
        return real(argv, *words, env={**packages.ENVIRONMENT, **(env or {})}, **named)

    monkeypatch.setattr(process, "run", run)

    def ask() -> tuple[str, str, list[str]]:
        host = ManagedHost(check=True, root=str(tmp_path / "root"))
        words = (["policy", "nvidia-driver"], ["show", "--", "nvidia-driver"])
        return (*(apt.ask(host, each, (0, 100)) for each in words), apt.targets(host, form))

    before = stored(ask, runs)
    APT_CHANGES[name](machine)
    after = ask()
    assert after != before
    assert after[0] == machine.run("apt-cache", "policy", "nvidia-driver")


def test_a_configuration_of_ones_own_is_not_stored(
    tmp_path: Path, runs: Runs, ask_apt: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    apt_machine(tmp_path / "root")
    monkeypatch.setenv("APT_CONFIG", f"{tmp_path}/root/apt.conf")
    assert ask_apt() == ask_apt()
    assert runs.names == ["apt-cache", "apt-cache"]


def test_logs_are_read_for_the_stack_alone(tmp_path: Path) -> None:
    (tmp_path / "var/log").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").touch()
    (tmp_path / "var/log/dpkg.log").write_text(
        "2026-11-21 03:59:00 upgrade libcuda1:amd64 1 2\n2026-11-21 03:59:00 upgrade libcuda11:amd64 1 2\n"
        "2026-11-21 03:59:00 status installed libcuda1:amd64 2\n"
    )
    recorder = Recorder(root=str(tmp_path))
    packages.collect_drift(recorder, EvidenceRequest(packages=("libcuda1",)))
    lines = recorder.document["excerpts"]["/var/log/dpkg.log"]["lines"]
    assert lines == ["2026-11-21 03:59:00 upgrade libcuda1:amd64 1 2"]


def test_a_failure_is_not_stored(tmp_path: Path, runs: Runs) -> None:
    recorder = Recorder(60)
    for _ in range(2):
        assert recorder.command("x", ["false"], inputs=cache.Inputs((str(tmp_path / "root"),))).status == 1
    assert runs.names == ["false", "false"]
