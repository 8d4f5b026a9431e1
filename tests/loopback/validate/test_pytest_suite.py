"""The testinfra suite, and a site's own with our fixtures: in their own pytest, over real OpenSSH, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.loopback.loopback_fleet import RUNNING, LoopbackFleet
from tests.loopback.loopback_sshd import PLAIN, SUDOER, Sshd, free_port
from tests.patience import wait_for

SUITE = Path(__file__).parents[2] / "host"


def programs() -> set[Path]:
    """Host programs that somebody has put onto this machine and not taken away yet."""
    return set(Path(tempfile.gettempdir()).glob("tmp.*/gdsdeploy-host.pyz"))


def require_gone(left: set[Path]) -> None:
    gone = wait_for(lambda: not any(path.exists() for path in left))
    assert gone, f"{left}: those of other runs on this machine would be gone by now"


def suite(*argv: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", SUITE, *map(str, argv)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return result.returncode, result.stdout + result.stderr


@pytest.fixture
def fleet(sshd: Callable[..., Sshd], tmp_path: Path) -> LoopbackFleet:
    server = sshd()
    fleet = LoopbackFleet(tmp_path, server, {"gpu1": {"profile": "right"}, "gpu2": {"profile": "wrong"}})
    text = (
        "Host *\n  HostName 127.0.0.1\n  IdentitiesOnly yes\n  BatchMode yes\n  ControlMaster no\n"
        f"  Port {server.port}\n  IdentityFile {server.identity}\n"
        f"  UserKnownHostsFile {server.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
    )
    (tmp_path / "ssh_config").write_text(text + "  User root\n")
    (tmp_path / "ssh_config_sudo").write_text(text + f"  User {SUDOER}\n")
    (tmp_path / "ssh_config_plain").write_text(text + f"  User {PLAIN}\n")
    (tmp_path / "ssh_config_closed").write_text(f"Host *\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    return fleet


def test_without_hosts_it_does_not_run_and_says_how() -> None:
    code, out = suite()
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "pytest tests/host --hosts=ssh://HOST" in out


@pytest.mark.parametrize("config", ["ssh_config", "ssh_config_sudo"])
def test_one_test_per_check_and_host_with_the_findings_own_words(
    fleet: LoopbackFleet, tmp_path: Path, config: str
) -> None:
    before = programs()
    xml = tmp_path / "junit.xml"
    code, out = suite(
        "--hosts=ssh://gpu1,ssh://gpu2",
        f"--ssh-config={tmp_path / config}",
        f"--fleet={fleet.path}",
        f"--junitxml={xml}",
    )
    assert code == pytest.ExitCode.TESTS_FAILED, out
    cases = {case.get("name"): case for case in ET.parse(xml).getroot().iter("testcase")}
    assert cases["test_check[ssh://gpu1-kernel.running]"].find("failure") is None
    failure = cases["test_check[ssh://gpu2-kernel.running]"].find("failure")
    assert failure is not None
    text = failure.text or ""
    for words in ("kernel.running failed", "expected:   0.0.0-none", f"found:      {RUNNING}", "what to do: "):
        assert words in text
    assert "Traceback" not in out
    assert len(cases) > 20
    require_gone(programs() - before)


def test_a_host_that_cannot_be_asked_is_a_failed_test(fleet: LoopbackFleet, tmp_path: Path) -> None:
    code, out = suite("--hosts=ssh://gpu1", f"--ssh-config={tmp_path / 'ssh_config_closed'}", f"--fleet={fleet.path}")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "this host could not be asked" in out
    assert "Connection refused" in out


def test_a_name_that_is_not_in_the_fleet(fleet: LoopbackFleet, tmp_path: Path) -> None:
    code, out = suite("--hosts=ssh://gpu9", f"--ssh-config={tmp_path / 'ssh_config'}", f"--fleet={fleet.path}")
    assert code != pytest.ExitCode.OK
    assert "has no host 'gpu9'" in out
    assert "it has gpu1, gpu2" in out


def test_a_lock_that_does_not_fit(fleet: LoopbackFleet, tmp_path: Path) -> None:
    fleet.path.write_text(fleet.path.read_text().replace("os: debian-13", "os: debian-12", 1))
    code, out = suite("--hosts=ssh://gpu1", f"--ssh-config={tmp_path / 'ssh_config'}", f"--fleet={fleet.path}")
    assert code != pytest.ExitCode.OK
    assert "the lock does not fit the fleet file" in out


# --- the fixtures in a site's own suite ------------------------------------------------------------------------------

SITE = """
import pytest

def test_one(gds):
    assert gds("gpu1").check("kernel.running").verdict == "pass"
    assert gds("gpu1").mount("/mnt/nvme").path in ("compat", "none", "")

def test_each(gds_host):
    assert gds_host.check("kernel.running").verdict == "pass", gds_host.words

def test_all(gds_report):
    assert [host.host for host in gds_report.hosts] == ["gpu1", "gpu2"]

def test_typing_errors(gds):
    gds("gpu1").check("kernel.runing")

@pytest.mark.parametrize(("gds_host", "verdict"), [("gpu2", "fail"), ("gpu9", "pass")], indirect=["gds_host"])
def test_named(gds_host, verdict):
    assert gds_host.check("kernel.running").verdict == verdict

def test_of_another_kind():
    pass
"""
BY_TESTINFRA = """
def test_it(host, gds):
    assert gds(host).check("kernel.running").verdict == "pass", gds(host).words
    assert gds(host) is gds(host)
"""


def site_suite(folder: Path, text: str, *argv: object) -> str:
    (folder / "suite").mkdir()
    (folder / "suite" / "test_site.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "gdsdeploy.testing.plugin", "-p", "no:cacheprovider"]
    command += ["-rA", "--rootdir", folder, folder / "suite", *map(str, argv)]
    # Where CI is set, pytest prints the lines of its summary whole, and elsewhere as wide as the terminal.
    env = {**os.environ, "CI": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)
    return done.stdout + done.stderr


def test_hosts_checks_and_mounts_of_the_fleet(fleet: LoopbackFleet, tmp_path: Path) -> None:
    out = site_suite(tmp_path, SITE, "--gds-fleet", fleet.path)
    assert "PASSED suite/test_site.py::test_each[gpu1]" in out, out
    assert "FAILED suite/test_site.py::test_each[gpu2]" in out
    assert f"gpu2: kernel.running: FAIL: {RUNNING}; expected: 0.0.0-none." in out
    assert "PASSED suite/test_site.py::test_all" in out
    assert "gpu1 has no finding 'kernel.runing'; did you mean 'kernel.running'?" in out
    assert "PASSED suite/test_site.py::test_named[gpu2-fail]" in out
    assert "it has gpu1, gpu2\n" in out
    assert fleet.sessions() == 2, "each host is asked once for all tests"


def test_without_the_fleet_file_it_says_so(tmp_path: Path) -> None:
    out = site_suite(tmp_path, SITE, "--gds-fleet", tmp_path / "none.yml")
    assert out.count(f"{tmp_path}/none.yml: no such file") == 2 * 6, "each of them, and in the summary"
    assert "Traceback" not in out
    assert "_intent" not in out, "nothing of gdsdeploy's own code"
    assert "PASSED suite/test_site.py::test_of_another_kind" in out
    assert "1 passed" in out


def test_hosts_of_testinfra(fleet: LoopbackFleet, tmp_path: Path) -> None:
    config = f"--ssh-config={tmp_path / 'ssh_config'}"
    out = site_suite(tmp_path, BY_TESTINFRA, "--hosts=ssh://gpu1,ssh://gpu2", config, "--gds-fleet", fleet.path)
    assert "PASSED suite/test_site.py::test_it[ssh://gpu1]" in out, out
    assert "FAILED suite/test_site.py::test_it[ssh://gpu2]" in out
    assert "expected: 0.0.0-none" in out


def test_a_host_without_the_right_to_become_root_keeps_nothing(fleet: LoopbackFleet, tmp_path: Path) -> None:
    def carried() -> set[Path]:
        find = f"find {tempfile.gettempdir()} -ignore_readdir_race -maxdepth 1 -name 'tmp.*' -user {PLAIN}"
        return set(map(Path, fleet.server.run(find).split()))

    before = carried()
    config = f"--ssh-config={tmp_path / 'ssh_config_plain'}"
    out = site_suite(tmp_path, BY_TESTINFRA, "--hosts=ssh://gpu1", config, "--gds-fleet", fleet.path)
    assert "FAILED suite/test_site.py::test_it[ssh://gpu1]" in out, out
    assert "sudo: " in out
    require_gone(carried() - before)
