from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.boot import needed
from gdsdeploy.host.errors import ApplyError
from gdsdeploy.host.process import Output
from tests.unit.host.apply.kernel_hosts import apply, check, short

RUNNING = os.uname().release
DESIRED = {
    "kernel_release": RUNNING,
    "modules": ["nvidia", "nvidia-fs", "nvidia-peermem"],
    "units": {"nvidia-peermem": "gds-peermem.service"},
}


def test_what_is_not_loaded_is_loaded_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    commands: list[list[str]] = []

    def run(argv: list[str], *_: object, **__: object) -> Output:
        commands.append(argv)
        return Output(0, "", "")

    monkeypatch.setattr(process, "run", run)
    expected = [("load", "nvidia-fs", "not-loaded"), ("load", "nvidia-peermem", "not-loaded")]
    changes = check(tmp_path, "loaded", DESIRED).changes
    assert short(changes) == expected
    assert {change.disruption for change in changes} == {"module reload"}
    assert commands == []
    assert short(apply(tmp_path, "loaded", DESIRED).changes) == expected
    assert commands == [["modprobe", "nvidia-fs"], ["systemctl", "start", "gds-peermem.service"]]
    (tmp_path / "sys/module/nvidia_fs").mkdir()
    (tmp_path / "sys/module/nvidia_peermem").mkdir()
    assert apply(tmp_path, "loaded", DESIRED).changes == []


def test_nothing_is_loaded_into_another_kernel(tmp_path: Path) -> None:
    assert check(tmp_path, "loaded", {**DESIRED, "kernel_release": "9.9"}).changes == []


def test_nothing_is_loaded_beside_a_driver_that_is_no_longer_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-fs of the new driver on the old one is a kernel BUG: the reboot comes first."""
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    assert short(check(tmp_path, "loaded", DESIRED).changes) != []
    monkeypatch.setattr(needed, "_module", lambda name: needed.Cause(needed.MODULE, name, "another file"))
    assert check(tmp_path, "loaded", DESIRED).changes == []


def test_a_module_that_cannot_be_loaded_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "run", lambda *_, **__: Output(1, "", "modprobe: ERROR: Key was rejected"))
    with pytest.raises(ApplyError, match="Key was rejected"):
        apply(tmp_path, "loaded", DESIRED)
