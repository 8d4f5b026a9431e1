"""Services beside the driver that don't go with the locked one: a host is refused before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply import preflight
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages.managers import Installed

DRIVER = "580.95.05"
LOCKED = {"nvidia-utils-580": "580.95.05-0ubuntu1"}
FABRIC, IMEX = {"nvidia-fabricmanager-580": "580.95.05-1"}, {"nvidia-imex-580": "580.95.05-1"}
GPU = ("0000:01:00.0", ("0x10de", "0x030200"))
SWITCH, BRIDGE = ("0x10de", "0x068000"), ("0x15b3", "0x020700")


def function(root: Path, address: str, kind: tuple[str, str], vpd: bytes | None = None) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, value in (*zip(("vendor", "class"), kind, strict=True), ("device", "0x2901")):
        (folder / name).write_text(f"{value}\n")
    if vpd is not None:
        (folder / "vpd").write_bytes(vpd)


def enabled(root: Path, unit: str) -> None:
    link = root / f"etc/systemd/system/multi-user.target.wants/{unit}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(f"/usr/lib/systemd/system/{unit}")


def refused(root: Path, locked: dict[str, str], installed: Mapping[str, str] = {}, nodes: Any = ()) -> dict[str, str]:
    """Id of each refusal → its text and hint."""
    packages = {name: Installed((version,)) for name, version in installed.items()}
    look = preflight.companions(ManagedHost(check=True, root=str(root)), packages)
    answers = preflight.companion_refusals(look, DRIVER, {**LOCKED, **locked}, list(nodes))
    return {refusal.id: f"{refusal.message}; {refusal.hint}" for refusal in answers}


def test_a_host_without_any_of_it_is_let_in(tmp_path: Path) -> None:
    function(tmp_path, *GPU)
    function(tmp_path, "0000:02:00.0", BRIDGE)
    function(tmp_path, "0000:03:00.0", BRIDGE, b"\x82\x08\x00ConnectX")
    assert refused(tmp_path, {}) == {}


def test_nvswitches_need_a_fabric_manager_of_the_locked_driver(tmp_path: Path) -> None:
    function(tmp_path, "0000:c1:00.0", SWITCH)
    assert refused(tmp_path, {}) == {}, "there is no GPU"
    function(tmp_path, *GPU)
    words = refused(tmp_path, {})["fabric-manager"]
    assert "has NVSwitches (0000:c1:00.0)" in words
    assert "add fabricmanager to the profile's companions" in words
    assert refused(tmp_path, FABRIC) == {}
    assert refused(tmp_path, {}, {"nvidia-fabricmanager": "580.95.05-1"}) == {}, "the host has it already"
    assert set(refused(tmp_path, {}, {"nvidia-fabricmanager": "580.95.05.1-1"})) == {"fabric-manager"}


def test_fourth_generation_nvswitches_need_nvlsm_too(tmp_path: Path) -> None:
    """They are no PCI functions: a ConnectX-7's VPD says that it leads to one."""
    function(tmp_path, *GPU)
    function(tmp_path, "0000:05:00.0", BRIDGE, b"\x82\x04\x00NVSW\x90\x20\x00V3\x0bSMDL=SW_MNG\x78")
    assert "add nvlink5 to the profile's companions" in refused(tmp_path, {})["fabric-manager"]
    assert set(refused(tmp_path, FABRIC)) == {"nvlsm"}
    assert refused(tmp_path, {**FABRIC, "nvlsm": "2025.06.10-1"}) == {}
    (tmp_path / "run").mkdir()
    (tmp_path / "run/gdsdeploy-image").touch()
    assert refused(tmp_path, {}) == {}, "an image has the hardware of the machine that makes it"


@pytest.mark.parametrize(
    ("package", "unit"),
    [
        ("nvidia-fabricmanager-580", "nvidia-fabricmanager.service"),
        ("nvidia-fabric-manager", "nvidia-fabricmanager.service"),
        ("nvidia-imex-580", "nvidia-imex.service"),
    ],
)
def test_what_starts_at_boot_beside_the_lock_has_the_drivers_version(tmp_path: Path, package: str, unit: str) -> None:
    older = {package: "580.82.07-1"}
    assert refused(tmp_path, {}, older) == {}, "it doesn't start"
    enabled(tmp_path, unit)
    assert f"{package} 580.82.07-1 starts at boot here" in refused(tmp_path, {}, older)["companion-version"]
    assert refused(tmp_path, {}, {package: "3:580.95.05-1.el9"}) == {}
    assert refused(tmp_path, {package: "580.95.05-1"}, older, ["10.0.0.1"]) == {}, "the lock brings the right one"


def test_a_masked_service_that_is_needed_is_refused(tmp_path: Path) -> None:
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    for name in ("fabricmanager", "imex"):
        (units / f"nvidia-{name}.service").symlink_to("/dev/null")
    locked = {**FABRIC, **IMEX}
    assert set(refused(tmp_path, locked)) == {"imex-nodes"}, "nothing here needs them"
    assert "systemctl unmask nvidia-imex.service" in refused(tmp_path, locked, nodes=["10.0.0.1"])["masked"]
    function(tmp_path, *GPU)
    function(tmp_path, "0000:c1:00.0", SWITCH)
    assert "systemctl unmask nvidia-fabricmanager.service" in refused(tmp_path, FABRIC)["masked"]


def test_persistenced_of_the_distribution_may_have_another_version(tmp_path: Path) -> None:
    enabled(tmp_path, "nvidia-persistenced.service")
    assert refused(tmp_path, {}, {"nvidia-persistenced": "535.171.04-1"}) == {}


def test_imex_needs_nodes_of_the_fleet_file_or_of_the_host(tmp_path: Path) -> None:
    assert "imex: NAME" in refused(tmp_path, IMEX)["imex-nodes"]
    assert refused(tmp_path, IMEX, nodes=["10.0.0.1"]) == {}
    file = tmp_path / "etc/nvidia-imex/nodes_config.cfg"
    file.parent.mkdir(parents=True)
    file.write_text("\n")
    assert set(refused(tmp_path, IMEX)) == {"imex-nodes"}
    file.write_text("192.0.2.1\n")
    assert refused(tmp_path, IMEX) == {}
