from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply import removal, services, unload
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.boot import needed
from gdsdeploy.host.errors import ApplyError
from gdsdeploy.host.process import Output
from tests.unit.host.apply.kernel_hosts import apply, check, short

RUNNING = os.uname().release
DESIRED = {
    "kernel_release": RUNNING,
    "loaded": ["nvidia", "nvidia-fs", "nvidia-peermem"],
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


@pytest.mark.parametrize("status", [0, 1])
def test_the_unit_that_failed_at_boot_starts_again_once_the_modules_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Whether it succeeds then is for the check boot.autoload to judge."""
    commands: list[list[str]] = []

    def run(argv: list[str], *_: object, **__: object) -> Output:
        if argv[1] == "show":
            return Output(0, "\n\n".join(["ActiveState=failed"] * len(argv[3:])), "")
        commands.append(argv)
        return Output(status if argv[0] == "systemctl" else 0, "", "")

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(services, "is_booted", lambda _: True)
    desired = {"kernel_release": RUNNING, "loaded": ["nvidia"]}
    unit = "systemd-modules-load.service"
    expected = [("load", "nvidia", "not-loaded"), ("start", unit, "failed-at-boot")]
    assert short(check(tmp_path, "loaded", desired).changes) == expected
    assert short(apply(tmp_path, "loaded", desired).changes) == expected
    assert commands == [["modprobe", "nvidia"], ["systemctl", "restart", unit]]
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    assert apply(tmp_path, "loaded", desired).changes == [], "a module of the site's own may be why it failed"


PERSISTENCED, IMEX = "nvidia-persistenced.service", "nvidia-imex.service"


class Systemd:
    """The host's systemd: what it runs, and the links that ``enable`` makes."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.active, self.commands = root, set[str](), list[list[str]]()
        monkeypatch.setattr(process, "run", self.run)
        monkeypatch.setattr(services, "is_booted", lambda _: True)
        self.unit(PERSISTENCED, "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n")
        (root / "sys/module/nvidia").mkdir(parents=True)
        self.function("0000:01:00.0", "0x10de", "0x030200")

    def function(self, address: str, vendor: str, kind: str) -> None:
        folder = self.root / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")

    def unit(self, name: str, text: str) -> None:
        file = self.root / "usr/lib/systemd/system" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def run(self, argv: list[str], *_: object, **__: object) -> Output:
        words = [word for word in argv if not word.startswith("--root")]
        if words[:2] == ["systemctl", "show"]:
            states = ["active" if unit in self.active else "inactive" for unit in words[3:]]
            return Output(0, "\n\n".join(f"ActiveState={state}\nNeedDaemonReload=no" for state in states), "")
        self.commands.append(words)
        if words[1] == "start":
            self.active.add(words[2])
        if words[1] == "enable":
            link = self.root / f"etc/systemd/system/multi-user.target.wants/{words[2]}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"/usr/lib/systemd/system/{words[2]}")
        return Output(0, "", "")


def test_the_services_of_the_driver_are_enabled_and_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A static unit has nothing to enable, a masked one stays masked, and a missing one is a check's to report."""
    systemd = Systemd(tmp_path, monkeypatch)
    systemd.unit(IMEX, "[Service]\nExecStart=/bin/true\n")
    fabric = tmp_path / "etc/systemd/system/nvidia-fabricmanager.service"
    fabric.parent.mkdir(parents=True)
    fabric.symlink_to("/dev/null")
    units = [PERSISTENCED, fabric.name, IMEX, "nvidia-missing.service"]
    desired = {"kernel_release": RUNNING, "loaded": ["nvidia"], "services": units}
    expected = [
        ("enable", PERSISTENCED, "not-enabled"),
        ("start", PERSISTENCED, "not-active"),
        ("start", IMEX, "not-active"),
    ]
    assert short(check(tmp_path, "loaded", desired).changes) == expected
    assert short(apply(tmp_path, "loaded", desired).changes) == expected
    assert systemd.commands == [
        ["systemctl", "enable", PERSISTENCED],
        ["systemctl", "start", PERSISTENCED],
        ["systemctl", "start", IMEX],
    ]
    assert short(apply(tmp_path, "loaded", desired).changes) == []
    removal.remove(ManagedHost(root=str(tmp_path)))
    assert not (tmp_path / f"etc/systemd/system/multi-user.target.wants/{PERSISTENCED}").is_symlink()


@pytest.mark.parametrize(("vendor", "kind"), [("0x10de", "0x068000"), ("0x1234", "0x030000")])
def test_a_service_without_a_gpu_to_serve_is_enabled_and_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, kind: str
) -> None:
    """nvidia-persistenced fails where there is none: with an NVSwitch alone, or with another vendor's adapter."""
    systemd = Systemd(tmp_path, monkeypatch)
    systemd.function("0000:01:00.0", vendor, kind)
    desired = {"kernel_release": RUNNING, "loaded": ["nvidia"], "services": [PERSISTENCED]}
    assert short(apply(tmp_path, "loaded", desired).changes) == [("enable", PERSISTENCED, "not-enabled")]
    assert systemd.commands == [["systemctl", "enable", PERSISTENCED]]
    assert short(check(tmp_path, "loaded", desired).changes) == []


def test_services_wait_for_the_reboot_into_the_locked_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Systemd(tmp_path, monkeypatch)
    desired = {"kernel_release": "9.9", "loaded": ["nvidia"], "services": [PERSISTENCED]}
    assert short(check(tmp_path, "loaded", desired).changes) == [("enable", PERSISTENCED, "not-enabled")]


def test_only_units_are_services(tmp_path: Path) -> None:
    desired = {"kernel_release": "9.9", "services": ["--now"]}
    assert [refusal.id for refusal in check(tmp_path, "loaded", desired).refusals] == ["unit-name"]


def test_what_was_unloaded_is_forgotten_once_it_is_loaded_again(tmp_path: Path) -> None:
    host, marker = ManagedHost(root=str(tmp_path)), tmp_path / unload.MARKER.lstrip("/")
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    unit = tmp_path / "etc/systemd/system/gds-peermem.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    marker.parent.mkdir(parents=True)
    marker.write_text("gds-peermem.service\nnvidia_fs\nnvidia_peermem\n")
    assert unload.recorded(host) == ["gds-peermem.service", "nvidia_fs", "nvidia_peermem"]
    unit.unlink()
    assert unload.recorded(host) == ["nvidia_fs"], "a host without the unit doesn't want the module either"
    desired = {"kernel_release": "9.9", "loaded": ["nvidia", "nvidia-fs"]}
    apply(tmp_path, "loaded", desired)
    assert marker.exists(), "the reboot or an exchange has to load it"
    (tmp_path / "sys/module/nvidia_fs").mkdir()
    apply(tmp_path, "loaded", desired)
    assert not marker.exists()
