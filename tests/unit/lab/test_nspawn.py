"""Light hosts: what is refused, and what takes the place of systemd-nspawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gdslab import nspawn
from gdslab.errors import LabUnavailable
from gdslab.host import HostRecord, LabHost


def light(folder: Path) -> nspawn.LightHost:
    return nspawn.LightHost(HostRecord("build1", "light", 22001, "/c/root"), folder, folder / "ssh_config")


@pytest.mark.parametrize("name", ["a:b", "a,b", "a\\b"])
def test_path_that_overlayfs_cannot_take_is_one_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(LabUnavailable, match="overlayfs cannot take"):
        light(tmp_path / name).create(b"")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[nspawn.LightHost, list[str]]:
    """A light host that nspawn cannot run, and what was done with it."""
    done: list[str] = []
    host = light(tmp_path / "build1")
    host.directory.mkdir()

    def wait(self: LabHost, timeout: float = 0) -> None:
        done.append(f"wait {self.runtime}")
        if self.runtime == "systemd-nspawn":
            raise LabUnavailable("build1 ended while starting")

    def start(self: Any, argv: list[str]) -> None:
        done.append(f"start {argv[0]}")

    monkeypatch.delenv("GDSDEPLOY_LAB_LIGHT", raising=False)
    monkeypatch.setattr(LabHost, "wait_ssh", wait)
    monkeypatch.setattr(nspawn.LightHost, "_start", start)
    monkeypatch.setattr(nspawn.LightHost, "stop", lambda self: done.append("stop"))
    return host, done


def test_plain_namespace_takes_over_and_stays(
    silent: tuple[nspawn.LightHost, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    host, done = silent
    host.start()
    host.wait_ssh()
    assert done == ["start systemd-nspawn", "wait systemd-nspawn", "stop", "start unshare", "wait namespace"]
    assert host.runtime == "namespace"
    assert "without systemd" in capsys.readouterr().err
    done.clear()
    host.start()
    host.wait_ssh()
    assert done == ["start unshare", "wait namespace"], "the trial is not made again"


def test_nspawn_that_once_worked_is_not_given_up(
    silent: tuple[nspawn.LightHost, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, done = silent
    with monkeypatch.context() as working:
        working.setattr(LabHost, "wait_ssh", lambda self, timeout=0: None)
        host.wait_ssh()
    with pytest.raises(LabUnavailable):
        host.wait_ssh()
    assert done == ["wait systemd-nspawn"]
