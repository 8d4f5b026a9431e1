"""What a host answers to a rollout, with the real systemd and the real dpkg: one reboot, and none at a wrong time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gdsdeploy.zipapp import hostapp
from gdslab import LabHost
from tests.lab.roleplay import lights, put

pytestmark = pytest.mark.lab

PROGRAM = "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"
#: A package whose installation waits until /tmp/go is there.
SLOW = """
set -eu
rm -rf /tmp/slow /tmp/go; mkdir -p /tmp/slow/DEBIAN; cd /tmp/slow
printf 'Package: slow\\nVersion: 1\\nArchitecture: all\\nMaintainer: nobody <nobody@archive.example>\\n' >DEBIAN/control
printf 'Description: imitated\\n' >>DEBIAN/control
printf '#!/bin/sh\\nwhile [ ! -e /tmp/go ]; do sleep 0.1; done\\n' >DEBIAN/postinst
chmod 0755 DEBIAN/postinst
dpkg-deb --build --root-owner-group . /tmp/slow.deb >/dev/null
systemd-run --quiet --collect --unit=install-slow dpkg --install /tmp/slow.deb
until [ -n "$(dpkg-query -W -f '${db:Status-Status}' slow 2>/dev/null | grep half-configured)" ]; do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    with lights("rollout-host") as lab:
        light = lab.host("build1")
        put(light, PROGRAM, hostapp.build())
        yield light


def rollout(host: LabHost, *words: str, ok: tuple[int, ...] = (0,)) -> dict[str, Any]:
    done = host.ssh(["sudo", "python3", PROGRAM, "rollout", *words, "--json"], ok=ok, timeout=120)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def another_boot(host: LabHost, previous: str) -> str:
    """The host's next boot: its machine ends when it reboots, and is started again."""
    deadline = time.monotonic() + 60
    while host.running():
        assert time.monotonic() < deadline, f"{host.name} is still in boot {previous}"
        time.sleep(0.2)
    host.start()
    host.wait_ssh(60)
    return host.ssh(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()


def test_no_reboot_while_dpkg_works_or_after_it_was_killed(host: LabHost) -> None:
    before = rollout(host, "status")
    assert before["packages"] == {"manager": "dpkg", "broken": [], "interrupted": False, "locks": []}
    host.ssh(["sudo", "sh", "-c", SLOW], timeout=60)
    pid = int(host.ssh(["systemctl", "show", "--property=MainPID", "--value", "install-slow"]).stdout)
    status = rollout(host, "status")
    assert {(entry["pid"], entry["program"]) for entry in status["packages"]["locks"]} == {(pid, "dpkg")}
    assert any(f"dpkg (process {pid}) holds" in entry for entry in status["reboot"]["blocked"])
    refused = rollout(host, "reboot", "--boot-id", before["boot_id"], ok=(30,))["error"]
    assert refused["kind"] == "packages-busy"

    host.ssh(["sudo", "systemctl", "kill", "--signal=KILL", "install-slow"])
    host.ssh(["sh", "-c", "while systemctl --quiet is-active install-slow; do sleep 0.1; done"], timeout=30)
    status = rollout(host, "status")["packages"]
    assert status["locks"] == []
    assert status["broken"] == [{"package": "slow", "state": "iF"}]
    refused = rollout(host, "reboot", "--boot-id", before["boot_id"], ok=(30,))["error"]
    assert (refused["kind"], "slow (iF)" in refused["message"]) == ("packages-broken", True)
    assert not rollout(host, "status")["reboot"]["ordered"]

    host.ssh(["sudo", "sh", "-c", "touch /tmp/go; dpkg --configure -a >/dev/null"])
    assert rollout(host, "status")["reboot"]["blocked"] == []


def test_two_orders_at_once_are_one_reboot(host: LabHost) -> None:
    first = rollout(host, "status")["boot_id"]
    order = f"sudo python3 {PROGRAM} rollout reboot --boot-id {first} --rollout plan-1 --json"
    answers = host.ssh(["sh", "-c", f"{order} & {order}; wait"], timeout=60).stdout.splitlines()
    assert sorted(json.loads(line)["did"] for line in answers) == ["already ordered", "ordered"]
    second = another_boot(host, first)
    assert second != first
    assert rollout(host, "reboot", "--boot-id", first)["did"] == "already rebooted"
    status = rollout(host, "status")
    assert (status["boot_id"], status["reboot"]["ordered"]) == (second, False)
    noted = host.ssh(["sudo", "journalctl", "--quiet", "--identifier=gdsdeploy-rollout", "--output=cat"]).stdout
    assert noted.splitlines() == [f"rollout plan-1 has this host rebooted in 2 s (boot {first})"]


def test_a_host_where_grub_cannot_forget_an_entry_is_told_so(host: LabHost) -> None:
    """Its files are on an overlay, and a boot loader has no business there."""
    once = rollout(host, "status")["once"]
    assert (once["state"], once["possible"]) == ("none", False)
    refused = rollout(host, "once", "--kernel", "6.1.0-1-amd64", ok=(30,))["error"]
    assert refused["kind"] == "no-one-shot"
