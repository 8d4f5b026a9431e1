"""The first fleet file of a lab."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gdsdeploy.fleetfile.load import load_fleet
from gdslab import fleet
from gdslab.archive import Archive
from gdslab.state import Lab


@pytest.fixture
def lab(home: Path) -> Lab:
    dev = Lab("dev")
    dev.write({"release": "trixie", "hosts": []})
    dev.add_hosts("light", 1, Path("/c/light/root"))
    dev.add_hosts("vm", 1, Path("/c/vm/disk.qcow2"))
    return dev


def test_nodes_are_hosts_of_a_profile_without_a_kernel_of_its_own(lab: Lab, mirror: Archive) -> None:
    lab.add_hosts("node", 3, Path("/c/light/root"))
    fleet.write(lab, mirror)
    intent = load_fleet(lab.fleet_path)
    assert set(intent.hosts) == {"gpu1", "node1", "node2", "node3"}
    assert set(intent.builders) == {"build1"}
    assert [host.labels for name, host in intent.hosts.items() if name != "gpu1"] == [
        {"rack": "r1"},
        {"rack": "r1"},
        {"rack": "r2"},
    ]
    assert intent.profiles[intent.hosts["node1"].profile].own_kernel is False
    assert intent.profiles["gds"].own_kernel is True


def test_new_host_joins_a_file_that_nobody_edited(lab: Lab, mirror: Archive) -> None:
    fleet.write(lab, mirror)
    lab.add_hosts("vm", 2, Path("/c/vm/disk.qcow2"))
    fleet.write(lab, mirror)
    assert set(yaml.safe_load(lab.fleet_path.read_text())["hosts"]) == {"gpu1", "gpu2"}


def test_edited_file_is_left_alone_and_what_it_lacks_is_said(
    lab: Lab, mirror: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.write(lab, mirror)
    edited = lab.fleet_path.read_text() + "# mine\n"
    lab.fleet_path.write_text(edited)
    fleet.write(lab, mirror)
    assert capsys.readouterr().err == ""
    lab.add_hosts("vm", 2, Path("/c/vm/disk.qcow2"))
    fleet.write(lab, mirror)
    assert lab.fleet_path.read_text() == edited
    assert f"lacks gpu2, port {lab.host('gpu2').port}" in capsys.readouterr().err
