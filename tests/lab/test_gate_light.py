"""The boot gate on a host that boots: real systemd and journal, services behind it; no GPU, so that it is closed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.gate.gate import Settings
from gdsdeploy.zipapp import hostapp
from gdslab.host import LabHost
from tests.lab.roleplay import lights, play, put, restart

pytestmark = pytest.mark.lab

EXPECTATION = Path(__file__).parents[1] / "evidence" / "hosts" / "lab-vm.expectation.json"
RECORD = "/run/gdsdeploy/gate.json"
UNIT = "/etc/systemd/system/gds-gate.service"
#: What starts after the gate whatever it finds, and what does not start while it is closed.
AFTER, BEHIND = "after.service", "behind.service"
WATCH = "gds-watch.service"
SERVICE = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
METRICS = "/var/lib/metrics"


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    """A light host with the host program, an expectation that it cannot meet, and two services."""
    with lights("gate") as lab:
        light = lab.host("build1")
        put(light, "/usr/lib/gdsdeploy/gdsdeploy-host.pyz", hostapp.build())
        put(light, "/etc/gdsdeploy/expectation.json", EXPECTATION.read_bytes())
        for unit in (AFTER, BEHIND):
            put(light, f"/etc/systemd/system/{unit}", SERVICE.encode())
        light.ssh(["sudo", "systemctl", "enable", AFTER, BEHIND])
        yield light


def expectation(**settings: Any) -> dict[str, Any]:
    """The role's variables, with these settings."""
    return {
        "gds_gate_settings": Settings(metrics=METRICS, **settings).to_json(),
        "gds_gate_before": [AFTER],
        "gds_gate_required_by": [BEHIND],
        "gds_gate_seconds": 30,
        "gds_gate_files": [f"{METRICS}/gdsdeploy.prom", "/run/gdsdeploy/healthy"],
    }


def show(host: LabHost, unit: str, *names: str) -> dict[str, str]:
    words = [f"--property={name}" for name in names]
    lines = host.ssh(["systemctl", "show", *words, unit]).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)


def reboot(host: LabHost) -> dict[str, Any]:
    """Reboot and wait for the end of the boot; return the gate's record."""
    restart(host)
    record: dict[str, Any] = json.loads(host.ssh(["cat", RECORD]).stdout)
    return record


def test_the_role_puts_the_gate_there_once(host: LabHost, tmp_path: Path) -> None:
    assert play(host, tmp_path, "gds_gate", **expectation())
    assert play(host, tmp_path, "gds_gate", **expectation()) == []
    assert host.ssh(["systemctl", "is-enabled", "gds-gate.service"]).stdout.strip() == "enabled"
    assert host.ssh(["sudo", "systemd-analyze", "verify", UNIT]).stderr == ""
    assert host.ssh(["test", "-e", RECORD], ok=(1,)).status == 1, "the boot that ran was not judged"


def test_at_boot_it_closes_before_anything_gets_work(host: LabHost) -> None:
    record = reboot(host)
    assert record["state"] == "closed"
    assert record["boot_id"] == host.ssh(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()
    assert host.ssh(["sudo", "cat", "/var/lib/gdsdeploy/gate.json"]).stdout == host.ssh(["cat", RECORD]).stdout
    gate = show(host, "gds-gate", "Result", "ExecMainStatus", "ExecMainExitTimestampMonotonic")
    assert (gate["Result"], gate["ExecMainStatus"]) == ("exit-code", "30")
    after = show(host, AFTER, "ActiveState", "ActiveEnterTimestampMonotonic")
    assert after["ActiveState"] == "active"
    assert int(after["ActiveEnterTimestampMonotonic"]) > int(gate["ExecMainExitTimestampMonotonic"])
    assert show(host, BEHIND, "ActiveState")["ActiveState"] == "inactive"
    errors = host.ssh(["sudo", "journalctl", "--quiet", "--unit=gds-gate", "--priority=err", "--output=cat"]).stdout
    assert f"closed: {record['reason']}" in errors
    assert "kernel.running: " in errors
    assert "gdsdeploy_gate_open 0" in host.ssh(["cat", f"{METRICS}/gdsdeploy.prom"]).stdout
    assert host.ssh(["test", "-e", "/run/gdsdeploy/healthy"], ok=(1,)).status == 1


def test_it_adds_less_than_two_seconds_to_a_boot(host: LabHost) -> None:
    """Its own time, which is what waits for it; the best of three, and longer where this machine is busy otherwise."""
    names = ("ExecMainStartTimestampMonotonic", "ExecMainExitTimestampMonotonic", "CPUUsageNSec")
    seconds = []
    for _ in range(3):
        host.ssh(["sudo", "systemctl", "start", "gds-gate"], ok=(1,), timeout=60)
        begin, end, busy = (int(value) for value in show(host, "gds-gate", *names).values())
        seconds.append((end - begin) / 1e6)
        assert busy / 1e9 < 2
        if seconds[-1] < 2:
            break
    assert min(seconds) < 2 * max(1, os.getloadavg()[0] / len(os.sched_getaffinity(0))), seconds


def test_an_open_gate_lets_everything_start(host: LabHost, tmp_path: Path) -> None:
    waivers = [{"check": check.id, "until": "9999-12-31", "reason": "a test"} for check in checks.listed()]
    assert len(play(host, tmp_path, "gds_gate", **expectation(waivers=waivers))) == 1
    assert host.ssh(["sudo", "systemctl", "start", BEHIND], timeout=60).status == 0, "it has the gate judge again"
    assert json.loads(host.ssh(["cat", RECORD]).stdout)["state"] == "open"
    assert "checks passed" in host.ssh(["cat", "/run/gdsdeploy/healthy"]).stdout
    assert show(host, BEHIND, "ActiveState")["ActiveState"] == "active"


def test_provision_has_the_boot_judged(host: LabHost, tmp_path: Path) -> None:
    host.ssh(["sudo", "rm", RECORD])
    assert play(host, tmp_path, "gds_gate", gds_gate_step="run") == []
    assert json.loads(host.ssh(["cat", RECORD]).stdout)["state"] == "open"


def test_a_fleet_without_a_gate_takes_it_away(host: LabHost, tmp_path: Path) -> None:
    assert play(host, tmp_path, "gds_gate", **expectation(), gds_gate_enabled=False)
    files_left = host.ssh(
        ["find", "/etc/systemd/system", "/etc/gdsdeploy", "/run/gdsdeploy", METRICS], ok=(0, 1)
    ).stdout
    assert "gate" not in files_left
    assert "gdsdeploy.prom" not in files_left


def test_the_service_that_counts_runs_and_goes(host: LabHost, tmp_path: Path) -> None:
    """gds-watch.service under the real systemd: small, back after it was killed, and without a trace when dismissed."""
    settings = {"gds_watch_metrics": METRICS, "gds_watch_every": 1}
    assert play(host, tmp_path, "gds_watch", **settings)
    assert play(host, tmp_path, "gds_watch", **settings) == []
    assert host.ssh(["sudo", "systemd-analyze", "verify", f"/etc/systemd/system/{WATCH}"]).stderr == ""
    assert counted_once(host)
    first = show(host, WATCH, "ActiveState", "MainPID")
    assert first["ActiveState"] == "active"
    peak = int(host.ssh(["awk", "/VmHWM/ {print $2}", f"/proc/{first['MainPID']}/status"]).stdout)
    assert peak < 40 << 10, "KiB"
    host.ssh(["sudo", "kill", "-KILL", first["MainPID"]])
    pid = f"$(systemctl show --property=MainPID --value {WATCH})"
    another = f'while [ "{pid}" = 0 ] || [ "{pid}" = {first["MainPID"]} ]; do sleep 0.2; done'
    host.ssh(["sh", "-c", another], timeout=60)
    assert counted_once(host)
    assert play(host, tmp_path, "gds_watch", gds_watch_enabled=False)
    places = ["/etc/systemd/system", "/run/gdsdeploy", METRICS]
    assert "watch" not in host.ssh(["find", *places], ok=(0, 1)).stdout.replace("watch.json", "")
    assert show(host, WATCH, "ActiveState")["ActiveState"] == "inactive"


def counted_once(host: LabHost) -> bool:
    """Whether the service has written its metrics."""
    wait = f"until grep -q ^gdsdeploy_cufile_timestamp {METRICS}/gdsdeploy-watch.prom 2>/dev/null; do sleep 0.2; done"
    return host.ssh(["sh", "-c", wait], timeout=60).status == 0
