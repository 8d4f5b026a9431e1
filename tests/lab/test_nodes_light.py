"""Light hosts that are hosts of a fleet, and more hosts like one that is there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gdslab as labs
from gdsdeploy.fleetfile.load import load_fleet
from gdslab.errors import LabUnavailable
from gdslab.state import Lab
from tests.naming import unique

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    rehearsal = Lab(unique("nodes"))
    try:
        yield labs.up(rehearsal.name, vms=0, lights=0, nodes=1)
    finally:
        labs.down(rehearsal)


def test_a_lab_of_nodes_alone_has_a_fleet(lab: Lab) -> None:
    intent = load_fleet(lab.fleet_path)
    assert list(intent.hosts) == ["node1"]
    assert intent.profiles[intent.hosts["node1"].profile].own_kernel is False


def test_clones_are_hosts_of_their_own_with_all_that_the_first_had(lab: Lab) -> None:
    first = lab.host("node1")
    first.ssh(["sudo", "sh", "-c", "echo done > /etc/done; rm /etc/debian_version"])
    before = first.ssh(["cat", "/etc/machine-id"]).stdout
    clones = labs.clone(lab, first, 3)
    assert [host.name for host in clones] == ["node2", "node3"]
    everyone = lab.group("node")
    assert [host.ssh(["hostname"]).stdout.strip() for host in everyone] == ["node1", "node2", "node3"]
    assert {host.ssh(["cat", "/etc/done"]).stdout for host in everyone} == {"done\n"}
    assert all(host.ssh(["ls", "/etc/debian_version"], ok=(2,)).stdout == "" for host in everyone)
    ids = {host.ssh(["cat", "/etc/machine-id"]).stdout for host in everyone}
    assert len(ids) == 3
    assert before not in ids
    assert len({host.port for host in everyone}) == 3
    keys = {host.ssh(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout.split()[1] for host in everyone}
    assert len(keys) == 3, "connections check them, so each has its own"
    clones[0].ssh(["sudo", "touch", "/etc/own"])
    assert first.ssh(["ls", "/etc/own"], ok=(2,)).stdout == ""


def test_nothing_begins_as_a_host_that_does_not_run(lab: Lab) -> None:
    first = lab.host("node1")
    first.stop()
    with pytest.raises(LabUnavailable, match="node1 isn't running"):
        labs.clone(lab, first, 4)
