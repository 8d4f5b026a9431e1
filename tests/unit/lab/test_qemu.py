"""VM hosts: whom they answer, and how it is decided what runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gdslab import process, qemu, records
from gdslab.errors import LabUnavailable
from gdslab.host import HostRecord


def vm(folder: Path) -> qemu.VmHost:
    return qemu.VmHost(HostRecord("gpu1", "vm", 22011, "/c/trixie/disk.qcow2"), folder, folder / "ssh_config", "tcg")


def test_machine_reboots_and_listens_on_loopback_only() -> None:
    argv = qemu.qemu_argv(vm(Path("/l")), "kvm")
    assert "-no-reboot" not in argv
    assert argv[argv.index("-accel") : argv.index("-accel") + 4] == ["-accel", "kvm", "-cpu", "host"]
    assert next(word for word in argv if "hostfwd" in word).count("tcp:127.0.0.1:") == 1


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """KVM that opens; ``firmware`` and ``kernel`` say how the trials end, ``tried`` which were made."""
    outcomes: dict[str, Any] = {"firmware": True, "kernel": True, "tried": []}

    def trial(name: str) -> bool:
        outcomes["tried"].append(name)
        return bool(outcomes[name])

    monkeypatch.delenv("GDSDEPLOY_LAB_ACCEL", raising=False)
    monkeypatch.setattr(qemu.os, "access", lambda path, mode: True)
    monkeypatch.setattr(qemu, "_firmware_trial", lambda: trial("firmware"))
    monkeypatch.setattr(qemu, "_kernel_trial", lambda kernel: trial("kernel"))
    return outcomes


def test_kvm_that_works_is_used_and_tried_once_per_boot(tmp_path: Path, trials: dict[str, Any]) -> None:
    assert qemu.accelerator(tmp_path, None) is None, "the firmware alone proves nothing"
    assert qemu.accelerator(tmp_path, tmp_path / "vmlinuz") == "kvm"
    assert qemu.accelerator(tmp_path, tmp_path / "vmlinuz") == "kvm"
    assert trials["tried"] == ["firmware", "kernel"]


def test_kvm_that_hangs_the_firmware_is_settled_without_a_kernel(tmp_path: Path, trials: dict[str, Any]) -> None:
    trials["firmware"] = False
    assert qemu.accelerator(tmp_path, None) == "tcg"
    assert qemu.accelerator(tmp_path, tmp_path / "vmlinuz") == "tcg"
    assert trials["tried"] == ["firmware"]


def test_kvm_that_hangs_the_kernel_is_not_used(tmp_path: Path, trials: dict[str, Any]) -> None:
    trials["kernel"] = False
    assert qemu.accelerator(tmp_path, tmp_path / "vmlinuz") == "tcg"


def test_verdict_of_another_boot_does_not_count(tmp_path: Path, trials: dict[str, Any]) -> None:
    records.write_json(tmp_path / "accelerator.json", {"boot": "another", "accelerator": "tcg"})
    assert qemu.accelerator(tmp_path, tmp_path / "vmlinuz") == "kvm"
    assert records.read_json(tmp_path / "accelerator.json") == {"boot": process.boot_id(), "accelerator": "kvm"}


def test_no_kvm_needs_no_trial(tmp_path: Path, trials: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu.os, "access", lambda path, mode: False)
    assert qemu.accelerator(tmp_path, None) == "tcg"
    assert trials["tried"] == []


def test_the_user_decides_where_he_says_so(
    tmp_path: Path, trials: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDSDEPLOY_LAB_ACCEL", "tcg")
    assert qemu.accelerator(tmp_path, None) == "tcg"
    monkeypatch.setenv("GDSDEPLOY_LAB_ACCEL", "warp")
    with pytest.raises(LabUnavailable, match="'warp'"):
        qemu.accelerator(tmp_path, None)
    assert trials["tried"] == []


def test_creation_keeps_what_is_whole_and_makes_anew_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[str] = []

    def make(path: Path) -> None:
        assert not path.exists(), "a half-made file was written over"
        parts.append(path.name)
        path.write_text("whole")

    host = vm(tmp_path / "gpu1")
    monkeypatch.setattr(qemu.VmHost, "_make_overlay", lambda self, path: make(path))
    monkeypatch.setattr(qemu, "_make_nvme", make)
    host.create(b"seed")
    (host.directory / "nvme.raw").unlink()
    (host.directory / ".nvme.raw.part").write_text("half")
    (host.directory / "disk.qcow2").write_text("used by the guest")
    host.create(b"another seed")
    assert parts == [".disk.qcow2.part", ".nvme.raw.part", ".nvme.raw.part"]
    assert (host.directory / "disk.qcow2").read_text() == "used by the guest"
    assert (host.directory / "seed.tar").read_text() == "seed"
    assert sorted(path.name for path in host.directory.iterdir()) == ["disk.qcow2", "nvme.raw", "seed.tar"]
