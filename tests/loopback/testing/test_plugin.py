"""The fixtures in a site's own suite: its own pytest, over real OpenSSH, against this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.loopback.loopback_fleet import RUNNING, LoopbackFleet
from tests.loopback.loopback_sshd import Sshd

SUITE = """
def test_one(gds):
    assert gds("gpu1").check("kernel.running").verdict == "pass"
    assert gds("gpu1").mount("/mnt/nvme").path in ("compat", "none", "")

def test_each(gds_host):
    assert gds_host.check("kernel.running").verdict == "pass", gds_host.words

def test_all(gds_report):
    assert [host.host for host in gds_report.hosts] == ["gpu1", "gpu2"]

def test_typing_errors(gds):
    gds("gpu1").check("kernel.runing")
"""
BY_TESTINFRA = """
def test_it(host, gds):
    assert gds(host).check("kernel.running").verdict == "pass", gds(host).words
    assert gds(host) is gds(host)
"""


@pytest.fixture
def fleet(sshd: Callable[..., Sshd], tmp_path: Path) -> LoopbackFleet:
    server = sshd()
    (tmp_path / "ssh_config").write_text(
        "Host *\n  HostName 127.0.0.1\n  IdentitiesOnly yes\n  BatchMode yes\n  ControlMaster no\n"
        f"  Port {server.port}\n  IdentityFile {server.identity}\n  User root\n"
        f"  UserKnownHostsFile {server.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
    )
    return LoopbackFleet(tmp_path, server, {"gpu1": {"profile": "right"}, "gpu2": {"profile": "wrong"}})


def suite(folder: Path, text: str, *argv: object) -> str:
    (folder / "suite").mkdir()
    (folder / "suite" / "test_site.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "gdsdeploy.testing.plugin", "-p", "no:cacheprovider"]
    command += ["-rA", "--rootdir", folder, folder / "suite", *map(str, argv)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    return done.stdout + done.stderr


def test_hosts_checks_and_mounts_of_the_fleet(fleet: LoopbackFleet, tmp_path: Path) -> None:
    out = suite(tmp_path, SUITE, "--gds-fleet", fleet.path)
    assert "PASSED suite/test_site.py::test_each[gpu1]" in out, out
    assert "FAILED suite/test_site.py::test_each[gpu2]" in out
    assert f"gpu2: kernel.running: FAIL: {RUNNING}; expected: 0.0.0-none." in out
    assert "PASSED suite/test_site.py::test_all" in out
    assert "gpu1 has no finding 'kernel.runing'; did you mean 'kernel.running'?" in out
    assert fleet.sessions() == 2, "each host is asked once for all tests"


def test_without_the_fleet_file_it_says_so(tmp_path: Path) -> None:
    out = suite(tmp_path, SUITE, "--gds-fleet", tmp_path / "none.yml")
    assert "none.yml" in out
    assert "Traceback" not in out
    assert "passed" not in out


def test_hosts_of_testinfra(fleet: LoopbackFleet, tmp_path: Path) -> None:
    config = f"--ssh-config={tmp_path / 'ssh_config'}"
    out = suite(tmp_path, BY_TESTINFRA, "--hosts=ssh://gpu1,ssh://gpu2", config, "--gds-fleet", fleet.path)
    assert "PASSED suite/test_site.py::test_it[ssh://gpu1]" in out, out
    assert "FAILED suite/test_site.py::test_it[ssh://gpu2]" in out
    assert "expected: 0.0.0-none" in out
