"""What the lab installs on the controller: said beforehand, asked for, or refused with one error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.run import Completed
from gdslab import requirements
from gdslab.errors import LabUnavailable


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A machine that has apt-get and nothing else; returns what was run on it."""
    ran: list[list[str]] = []

    def run(argv: list[str], **_: Any) -> Completed:
        ran.append(list(argv))
        return Completed(tuple(argv), 0, "", "")

    monkeypatch.setattr(requirements.run, "run", run)
    monkeypatch.setattr(requirements, "_is_present", lambda program: False)
    monkeypatch.setattr(requirements.shutil, "which", lambda program: "/usr/bin/apt-get")
    monkeypatch.setattr(requirements.os, "geteuid", lambda: 0)
    monkeypatch.setattr(requirements, "APT_LISTS", tmp_path)
    return ran


def yes(question: str) -> bool:
    return True


def test_packages_are_listed_beforehand_and_installed(
    bare: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    questions: list[str] = []
    confirm: Callable[[str], bool] = lambda question: not questions.append(question)  # type: ignore[func-returns-value]  # noqa: E731
    requirements.ensure(vms=True, lights=False, confirm=confirm)
    assert "qemu-system-x86: runs the VM hosts" in capsys.readouterr().err
    assert len(questions) == 1
    packages = ["debian-archive-keyring", "e2fsprogs", "mmdebstrap", "openssh-client", "qemu-system-x86", "qemu-utils"]
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    assert bare == [
        [*apt, "update"],
        [*apt, "install", "-y", "--no-install-recommends", *packages, "util-linux"],
    ]


def test_no_means_nothing_is_installed(bare: list[list[str]]) -> None:
    with pytest.raises(LabUnavailable, match="were not installed") as caught:
        requirements.ensure(vms=True, lights=True, confirm=lambda question: False)
    assert bare == []
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("apt-get install ")


def test_machine_without_apt_gets_the_list(bare: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.shutil, "which", lambda program: None)
    with pytest.raises(LabUnavailable) as caught:
        requirements.ensure(vms=True, lights=True, confirm=yes)
    for package in ("qemu-system-x86", "mmdebstrap", "systemd-container"):
        assert f"  {package}: " in caught.value.message
    assert bare == []


def test_sudo_is_asked_once_before_steps_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch, bare: list[list[str]]
) -> None:
    monkeypatch.setattr(requirements, "_is_present", lambda program: True)
    monkeypatch.setattr(requirements.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(requirements.run, "which", lambda program: "/usr/bin/sudo")
    requirements.ensure(vms=True, lights=True, confirm=yes)
    assert bare == [["sudo", "-v"]]
