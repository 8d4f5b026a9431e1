"""Playbooks on pages, played as shown on a light host: it then needs no change, and the role gds_remove undoes them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from docs.gen.collection import ROLES
from gdsdeploy import resources
from gdslab import LabHost
from tests.lab.empty_packages import offer
from tests.lab.roleplay import connections, lights
from tests.roles import shown
from tests.roles.shown import Playbook

pytestmark = pytest.mark.lab

PLAYBOOKS = {playbook.place: playbook for playbook in shown.playbooks()}
#: What the playbook of a role's README needs that a light host doesn't have.
NOT_PLAYED = {
    "gds_boot": "a boot loader",
    "gds_driver": "the driver",
    "gds_kernel": "a kernel",
    "gds_modules": "a kernel and the driver",
    "gds_reboot": "the locked kernel",
    "gds_repo": "a mirror",
    "gds_restore": "a rollout's snapshot",
    "gds_secureboot": "a key",
}
#: Packages by name and version that playbooks install; made here, without content.
PACKAGES = [("libcufile0", "1.9.1.3~12.4.1-2", ""), ("gds-tools", "1.9.1.3~12.4.1-2", "")]


def role_of(place: str) -> str:
    """The role whose example this is; empty on other pages."""
    return PLAYBOOKS[place].roles[-1].rpartition(".")[2] if place.startswith("docs/roles.md:") else ""


#: Without the role that undoes the others.
PLAYED = [place for place in PLAYBOOKS if role_of(place) not in {*NOT_PLAYED, "gds_remove"}]
#: A command that succeeds while the role's work is there; preflight only looks.
WORK = {
    "gds_cufile": "apt-mark showhold | grep -qx libcufile0 && grep -q ERROR /etc/cufile.json && [ -d /var/log/cufile ]",
    "gds_gate": "systemctl is-enabled --quiet gds-gate.service",
    "gds_host": "python3 -I -S /usr/lib/gdsdeploy/gdsdeploy-host.pyz --version",
    "gds_packages": "apt-mark showhold | grep -qx libcufile0",
    "gds_peermem": "test -f /etc/systemd/system/gds-peermem.service",
    "gds_watch": "systemctl is-enabled --quiet gds-watch.service",
}


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    """A light host whose apt knows the packages."""
    with lights("playbooks") as lab:
        light = lab.host("build1")
        offer(light, PACKAGES)
        yield light


def play(host: LabHost, folder: Path, playbook: Playbook, *flags: str) -> int:
    """Play it as the guide does; the number of changes."""
    variables = {"ansible_ssh_common_args": f"-F {host.ssh_config}"}
    (folder / "inventory.yml").write_text(yaml.safe_dump({"gpus": {"hosts": {host.name: variables}}}))
    (folder / "site.yml").write_text(playbook.text)
    (folder / "cufile.json").write_text('{"logging": {"level": "ERROR"}}\n')
    (folder / "expectation.json").write_text("{}\n")
    env = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(resources.collections()),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
    }
    argv = [Path(sys.executable).parent / "ansible-playbook", "-i", "inventory.yml", "site.yml", *flags]
    with connections() as own:
        done = subprocess.run(argv, cwd=folder, env={**env, **own}, capture_output=True, text=True, check=False)
    recap = re.search(r"ok=(\d+) +changed=(\d+) +unreachable=0 +failed=0", done.stdout)
    assert recap, done.stdout + done.stderr
    assert int(recap[1]) > 0
    return int(recap[2])


def test_every_role_is_played_or_needs_something() -> None:
    played = {role_of(place) for place in PLAYED} | {"gds_remove"}
    assert played - {""} == {role.name for role in ROLES} - NOT_PLAYED.keys()


def works(host: LabHost, playbook: Playbook) -> set[bool]:
    """Whether the work of each of its roles is there; one of tasks does that of gds_packages."""
    roles = [role.rpartition(".")[2] for role in playbook.roles] or ["gds_packages"]
    commands = [WORK[role] for role in roles if role != "gds_preflight"]
    answers = [host.ssh(["sudo", "sh", "-c", f"if {command}; then echo yes; else echo no; fi"]) for command in commands]
    return {answer.stdout.split()[-1] == "yes" for answer in answers}


@pytest.mark.parametrize("place", PLAYED)
def test_a_playbook_is_played_and_undone(host: LabHost, tmp_path: Path, place: str) -> None:
    playbook = PLAYBOOKS[place]
    looks_only = role_of(place) == "gds_preflight"
    (remove,) = (book for book in PLAYBOOKS.values() if role_of(book.place) == "gds_remove")
    assert works(host, playbook) <= {False}
    if not role_of(place):
        assert play(host, tmp_path, playbook, "--check", "--diff") > 0
        assert works(host, playbook) == {False}
    assert (play(host, tmp_path, playbook) > 0) != looks_only
    assert works(host, playbook) <= {True}
    assert play(host, tmp_path, playbook) == 0
    assert (play(host, tmp_path, remove) > 0) != looks_only
    assert works(host, playbook) <= {False}
