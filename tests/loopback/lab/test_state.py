"""A lab on disk, and the choice of its ports."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gdslab import state
from gdslab.errors import LabUnavailable
from gdslab.state import Lab


@pytest.fixture(autouse=True)
def own_home(home: Path) -> None:
    return


def make_lab(name: str, lights: int = 0, vms: int = 0) -> Lab:
    lab = Lab(name)
    lab.write({"release": "trixie", "hosts": []})
    lab.add_hosts("vm", vms, Path("/c/vm/disk.qcow2"))
    lab.add_hosts("light", lights, Path("/c/light/root"))
    return lab


def test_folders_follow_the_environment(home: Path) -> None:
    assert state.labs_directory() == home / "state/lab"
    assert state.cache_directory() == home / "cache/lab"
    assert Lab("dev").fleet_path == home / "state/lab/dev/fleet.yml"
    assert not (home / "state").exists(), "asking makes nothing"


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "Dev", "a b", "x" * 32])
def test_name_that_is_no_folder_is_refused(name: str) -> None:
    with pytest.raises(LabUnavailable, match="cannot name a lab"):
        Lab(name)


def test_no_two_hosts_of_any_lab_share_a_port() -> None:
    first, second = make_lab("one", 2, 2), make_lab("two", 2, 2)
    ports = [host.port for lab in (first, second) for host in lab.hosts()]
    assert len(set(ports)) == 8


def test_adding_again_keeps_hosts_and_ports() -> None:
    lab = make_lab("dev", 1, 1)
    before = {host.name: host.port for host in lab.hosts()}
    assert not lab.lacks("vm", 1)
    assert lab.lacks("vm", 2)
    lab.add_hosts("vm", 2, Path("/c/newer/disk.qcow2"))
    after = {host.name: host for host in lab.hosts()}
    assert {name: after[name].port for name in before} == before
    assert after["gpu1"].record.base == "/c/vm/disk.qcow2", "a host stays on the base it was made from"
    assert after["gpu2"].record.base == "/c/newer/disk.qcow2"


def test_port_that_somebody_listens_on_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert state.port_in_use(port)
        assert state.free_port(port, set()) != port if port < state.LAST_PORT else True
    assert not state.port_in_use(port)


def test_free_port_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "port_in_use", lambda port: port == 22002)
    assert state.free_port(22001, {22001}) == 22003
    monkeypatch.setattr(state, "port_in_use", lambda port: True)
    with pytest.raises(LabUnavailable, match="no free port"):
        state.free_port(22001, set())


def test_unknown_lab_and_host_are_clear_errors() -> None:
    with pytest.raises(LabUnavailable, match="there is no lab other") as caught:
        Lab("other").hosts()
    assert caught.value.hint == "gdsdeploy lab up --lab other"
    with pytest.raises(LabUnavailable, match="no host gpu7") as caught:
        make_lab("dev", 1, 1).host("gpu7")
    assert caught.value.hint == "It has: build1, gpu1"


def test_state_of_another_version_is_not_guessed_at() -> None:
    lab = make_lab("dev")
    (lab.directory / "lab.json").write_text('{"version": 2}')
    with pytest.raises(LabUnavailable, match="another version"):
        lab.hosts()


def test_access_files_hold_each_hosts_own_key() -> None:
    lab = make_lab("dev", 1, 1)
    lab.write_access()
    known_hosts = (lab.directory / "known_hosts").read_text().splitlines()
    assert len({line.split()[2] for line in known_hosts}) == 2
    assert {line.split()[0] for line in known_hosts} == {f"[127.0.0.1]:{host.port}" for host in lab.hosts()}
    before = known_hosts
    lab.write_access()
    assert (lab.directory / "known_hosts").read_text().splitlines() == before
    assert (lab.directory / "host_keys").stat().st_mode & 0o077 == 0
