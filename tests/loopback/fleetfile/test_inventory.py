"""Hosts from an Ansible inventory: what the real ansible-inventory reads, checked before it counts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gdsdeploy.errors import FleetInvalid
from gdsdeploy.fleetfile import ansible_inventory
from gdsdeploy.fleetfile.load import TRUSTED, load_fleet
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.text import WORDS

INI = """[gpu]
gpu[1:2] ansible_user=root
gpu3 ansible_host=10.0.0.3 ansible_port=2222 ansible_ssh_private_key_file=~/.ssh/fleet
[login]
login1 ansible_connection=local
"""
YAML = """all:
  children:
    cluster:
      children:
        gpu: {hosts: {gpu1: {ansible_user: root}, gpu2: {ansible_user: root}}}
        more: {hosts: {gpu3: {ansible_host: 10.0.0.3, ansible_port: "2222"}}}
      vars: {ansible_ssh_private_key_file: ~/.ssh/fleet}
"""


def write(folder: Path, groups: str = "{gpu: gds}", *, file: str = "hosts", more: str = "") -> Path:
    path = folder / "fleet.yml"
    path.write_text(
        f"version: 1\nprofiles:\n  gds: {{os: debian-13}}\n  other: {{os: debian-12}}\n"
        f"inventory:\n  file: {file}\n  groups: {groups}\n{more}"
    )
    return path


def loaded(folder: Path, inventory: str, groups: str = "{gpu: gds}", *, more: str = "") -> Fleet:
    (folder / "hosts").write_text(inventory)
    return load_fleet(write(folder, groups, more=more), TRUSTED)


def problems(path: Path) -> list[str]:
    with pytest.raises(FleetInvalid) as error:
        load_fleet(path, TRUSTED)
    return error.value.message.replace(f"{path.parent}/", "").splitlines()


def test_an_ini_inventory(tmp_path: Path) -> None:
    fleet = loaded(tmp_path, INI)
    assert list(fleet.hosts) == ["gpu1", "gpu2", "gpu3"]
    assert (fleet.hosts["gpu1"].address, fleet.hosts["gpu1"].user) == (None, "root")
    third = fleet.hosts["gpu3"]
    assert (third.address, third.port, third.identity_file) == ("10.0.0.3", 2222, "~/.ssh/fleet")
    assert {host.profile for host in fleet.hosts.values()} == {"gds"}


def test_a_yaml_inventory_with_groups_in_groups(tmp_path: Path) -> None:
    fleet = loaded(tmp_path, YAML, "{cluster: gds}")
    assert list(fleet.hosts) == ["gpu1", "gpu2", "gpu3"]
    assert fleet.hosts["gpu3"].port == 2222
    assert fleet.hosts["gpu2"].identity_file == "~/.ssh/fleet"
    assert list(loaded(tmp_path, YAML, "{all: gds}").hosts) == ["gpu1", "gpu2", "gpu3"]


def test_a_folder_with_variables_of_groups(tmp_path: Path) -> None:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "a.ini").write_text("[gpu]\ngpu1\n")
    (tmp_path / "hosts" / "group_vars").mkdir()
    (tmp_path / "hosts" / "group_vars" / "gpu.yml").write_text("ansible_host: 10.0.0.7\n")
    assert load_fleet(write(tmp_path)).hosts["gpu1"].address == "10.0.0.7"


def program(folder: Path, text: str) -> Path:
    path = folder / "hosts"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return write(folder)


def test_a_dynamic_inventory(tmp_path: Path) -> None:
    value = {"gpu": {"hosts": ["gpu1"]}, "_meta": {"hostvars": {"gpu1": {"ansible_host": "10.0.0.1"}}}}
    path = program(tmp_path, f"echo '{json.dumps(value)}'")
    assert load_fleet(path, TRUSTED).hosts["gpu1"].address == "10.0.0.1"


def test_a_dynamic_inventory_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, with what it started: its own child would otherwise stay."""
    # Enough for ansible-inventory to start the program, on a busy machine too.
    monkeypatch.setattr(ansible_inventory, "SECONDS", 10)
    path = program(tmp_path, f"sleep 300 &\necho $$ $! > {tmp_path}/pids\nwait")
    begin = time.monotonic()
    assert problems(path) == ["hosts: ansible-inventory had not ended after 10 s"]
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 2
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() - begin < 60, "the program, or what it started, is still there"
        time.sleep(0.1)


@pytest.mark.parametrize("text", ["[gpu\nx\n", "exit 3", "echo '[1, 2]'", "echo not json"])
def test_what_ansible_inventory_does_not_take(text: str, tmp_path: Path) -> None:
    if text.startswith("["):
        (tmp_path / "hosts").write_text(text)
        path = write(tmp_path)
    else:
        path = program(tmp_path, text)
    lines = problems(path)
    assert lines[0] == "hosts: ansible-inventory cannot read it"
    assert any("  | " in line for line in lines)


def test_a_file_that_is_not_there_or_would_be_a_list(tmp_path: Path) -> None:
    assert problems(write(tmp_path)) == ["hosts: there is no such inventory"]
    assert "without commas" in problems(write(tmp_path, file='"a,b"'))[0]


def test_every_problem_names_group_and_host(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(
        '[gpu]\ngpu1 ansible_host=\'{{ lookup("pipe", "touch CANARY") }}\'\ngpu2 ansible_user=Root\n'
        "gpu3 ansible_port=77777\ngpu4 ansible_connection=local\ngpu5 ansible_ssh_private_key_file=keys/a\n-x\n"
        "[more]\ngpu6\n[other]\ngpu6\n"
    )
    lines = problems(write(tmp_path, "{gpu: gds, more: gds, other: other, gpus: gds}"))
    assert [line.removeprefix("hosts: group ").partition(" write ")[0] for line in lines] == [
        'gpu, host gpu1: ansible_host (\'{{ lookup("pipe", "touch CANARY") }}\'):',
        "gpu, host gpu2: ansible_user ('Root'):",
        "gpu, host gpu3: ansible_port (77777): Input should be less than or equal to 65535",
        "gpu, host gpu4: ansible_connection is 'local', and gdsdeploy reaches hosts over SSH only",
        "gpu, host gpu5: ansible_ssh_private_key_file is 'keys/a':",
        f"gpu, host -x: its name: {WORDS[r'^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$']}",
        "other, host gpu6: its profile is other here and gds in group more",
        "hosts: there is no group 'gpus' with hosts; did you mean 'gpu'?",
    ]
    assert not Path("CANARY").exists()
    assert not (tmp_path / "CANARY").exists()


def test_groups_without_hosts_and_profiles_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("[gpu]\n[login]\nlogin1\n")
    assert problems(write(tmp_path)) == ["hosts: there is no group 'gpu' with hosts"]
    (tmp_path / "hosts").write_text("[gpu]\n")
    assert problems(write(tmp_path, "{all: gds}")) == ["hosts: no host is in all"]
    (tmp_path / "hosts").write_text(INI)
    lines = problems(write(tmp_path, "{gpu: none}"))
    assert "fleet.yml:7:17: inventory.groups.gpu: there is no profile 'none'" in lines


def test_a_hosts_own_entry_counts_before_the_inventory(tmp_path: Path) -> None:
    """Also where the inventory's is one that a fleet file can't have."""
    own = "hosts:\n  login1: {profile: other, address: 10.0.0.9}\n  gpu1: {profile: other, labels: {rack: r1}}\n"
    fleet = loaded(tmp_path, INI, "{gpu: gds, login: gds}", more=own)
    assert fleet.hosts["login1"].address == "10.0.0.9"
    assert (fleet.hosts["gpu1"].profile, fleet.hosts["gpu1"].user) == ("other", None)
    assert fleet.hosts["gpu2"].profile == "gds"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hosts.ini", "inventory: a mapping is needed here"),
        ("{file: hosts.ini}", "inventory.groups: this key is required"),
        ("{file: hosts.ini, groups: {}}", "inventory.groups: dictionary should have at least 1 item"),
        ("{file: hosts.ini, groups: {gpu: 1}}", "inventory.groups.gpu: text is needed here"),
        ("{file: hosts.ini, groups: {gpu: gds}, limit: x}", "inventory.limit: unknown key"),
    ],
)
def test_the_key_itself_is_checked_first(source: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yml"
    path.write_text(f"version: 1\nprofiles: {{gds: {{os: debian-13}}}}\ninventory: {source}\nhosts: {{a: gds}}\n")
    assert any(words in line and line.startswith("fleet.yml:3:") for line in problems(path))


def test_ansible_settings_of_the_folder_and_the_shell_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ansible.cfg").write_text("[inventory]\nenable_plugins = nothing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANSIBLE_INVENTORY_ENABLED", "nothing")
    assert list(loaded(tmp_path, INI).hosts) == ["gpu1", "gpu2", "gpu3"]
