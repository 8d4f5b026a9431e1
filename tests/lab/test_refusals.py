"""Hosts that cannot take the lock: each ends in one clear error that names the host, and is left as it was.

A light host is the victim: it is a real machine with systemd, sshd, sudo and apt, and each fault is really made on it.
Connections, host keys, Python and sudo are in tests/loopback/ssh.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.lock import lockfile
from gdslab.host import LabHost
from gdslab.state import Lab
from tests.lab.roleplay import lights

pytestmark = pytest.mark.lab

GDSDEPLOY = Path(sys.executable).parent / "gdsdeploy"
#: What provision writes first and last on a host.
TRACES = ["/usr/lib/gdsdeploy", "/etc/gdsdeploy", "/etc/apt/preferences.d/00-gdsdeploy.pref", "/etc/cufile.json"]


@pytest.fixture(scope="module")
def small() -> Iterator[Lab]:
    """A lab of one light host."""
    with lights("refusals") as lab:
        yield lab


@pytest.fixture(scope="module")
def victim(small: Lab) -> LabHost:
    """A light host that nothing was installed on."""
    return small.host("build1")


@pytest.fixture
def fleet(small: Lab, victim: LabHost, tmp_path: Path) -> Callable[..., Path]:
    """Writes a fleet of the victim alone, with changes, and a real lock for it; returns the fleet file."""

    def write(change: Callable[[dict[str, Any]], None] = lambda _: None) -> Path:
        value = yaml.safe_load(small.fleet_path.read_text())
        value["ssh"] = {
            "user": "admin",
            "identity_file": str(small.directory / "id_ed25519"),
            "known_hosts": str(small.directory / "known_hosts"),
        }
        value["profiles"]["gds"].pop("builder", None)
        value.pop("builders", None)
        value["hosts"] = {"victim": {"profile": "gds", "address": "127.0.0.1", "port": victim.port}}
        change(value)
        path = tmp_path / "fleet.yml"
        path.write_text(yaml.safe_dump(value))
        done = subprocess.run([GDSDEPLOY, "lock", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return path

    return write


@pytest.fixture(autouse=True)
def untouched(victim: LabHost) -> Iterator[None]:
    """After each refusal, no file of gdsdeploy is on the host."""
    yield
    assert victim.ssh(["sudo", "sh", "-c", f"ls -d {' '.join(TRACES)} 2>/dev/null"], ok=(2,)).stdout == ""


def expect_refusal(fleet: Path, *, status: int) -> str:
    """Provision, expect the exit code, and return the message."""
    argv = [GDSDEPLOY, "provision", fleet]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600, stdin=subprocess.DEVNULL)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == status, done.stdout + done.stderr
    assert "hint:" in done.stderr
    return done.stderr


@pytest.fixture
def fault(victim: LabHost) -> Iterator[Callable[[str, str], None]]:
    """Makes a fault by one root shell command on the victim and mends it by another."""
    mends: list[str] = []

    def make(command: str, mend: str) -> None:
        mends.append(mend)
        victim.ssh(["sudo", "sh", "-c", command])

    yield make
    for mend in mends:
        victim.ssh(["sudo", "sh", "-c", mend])


def test_check_mode_changes_nothing_on_a_bare_host(fleet: Callable[..., Path]) -> None:
    argv = [GDSDEPLOY, "provision", fleet(), "--check", "--diff", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=900, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    changed = json.loads(done.stdout)["hosts"]["victim"]["changed"]
    assert {entry.partition(":")[0] for entry in changed} >= {"gds_repo", "gds_host", "gds_driver"}, "all of it is said"


def test_a_full_disk(fleet: Callable[..., Path], fault: Callable[[str, str], None]) -> None:
    fault("mount -t tmpfs -o size=8m tmpfs /boot", "umount /boot")
    message = expect_refusal(fleet(), status=22)
    assert "victim: there is no room for the installation: /boot has 8 MiB free, 200 are needed" in message


def test_a_package_that_only_a_person_can_repair(fleet: Callable[..., Path], fault: Callable[[str, str], None]) -> None:
    fault(
        "sed -i '/^Package: sudo$/,/^$/s/^Status: .*/Status: install reinstreq half-installed/' /var/lib/dpkg/status",
        "sed -i '/^Package: sudo$/,/^$/s/^Status: .*/Status: install ok installed/' /var/lib/dpkg/status",
    )
    message = expect_refusal(fleet(), status=22)
    assert "victim: packages on this host are half-installed" in message
    assert "sudo" in message


def relock(fleet: Path, package: str, **change: str) -> None:
    """Change one package of the fleet's lock, with a digest that fits."""
    lock = lockfile.beside(fleet)
    target = lockfile.read(lock).targets["gds"]
    packages = tuple(p.model_copy(update=change) if p.package == package else p for p in target.packages)
    lockfile.write(lock, lockfile.build({"gds": target.model_copy(update={"packages": packages})}))


def test_a_package_with_another_content_under_the_same_version(fleet: Callable[..., Path]) -> None:
    path = fleet()
    relock(path, "nvidia-modprobe", sha256="0" * 64)
    message = expect_refusal(path, status=23)
    assert "victim: gds_repo" in message
    assert "apt on this host does not offer the locked files of: nvidia-modprobe=" in message
