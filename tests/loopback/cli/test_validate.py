"""The verb against real SSH servers on loopback that all lead to this machine, with a fleet and a lock made for it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from gdsdeploy.errors import HostKeyMismatch, HostUnfit, HostUnreachable
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from gdsdeploy.lock import lockfile
from gdsdeploy.report.model import HostReport, Report, trouble_from
from gdsdeploy.validate.fleet_validation import outcome
from tests import commandline
from tests.loopback.loopback_fleet import RUNNING, LoopbackFleet
from tests.loopback.loopback_sshd import PLAIN, free_port, keygen

#: One check whose answer is known on any machine: the running kernel is the locked one, or it is not.
KERNEL = ("--check", "kernel.running")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    return lambda *argv: (commandline.run("validate", *argv), *capsys.readouterr())


Run = Callable[..., tuple[int, str, str]]
Make = Callable[..., LoopbackFleet]
RIGHT, WRONG = {"profile": "right"}, {"profile": "wrong"}


def test_every_check_passes(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=RIGHT)
    code, out, err = run(fleet.path, *KERNEL)
    assert code == 0, err
    assert out.count("gpu[1-2] (2)  ✓ pass") == 1
    assert RUNNING in out
    assert "2 of 2 hosts pass" in out
    assert "Validating gpu[1-2]" in err
    assert fleet.sessions() == 2


def test_a_failed_check_with_everything_written(make_fleet: Make, run: Run, tmp_path: Path) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=WRONG)
    page, xml = tmp_path / "report.html", tmp_path / "junit.xml"
    code, out, err = run(fleet.path, *KERNEL, "--html", page, "--junit", xml)
    assert code == 30
    assert "✗ kernel.running (FAIL) on gpu2" in out
    assert f"found:      {RUNNING}" in out
    assert "expected:   0.0.0-none" in out
    assert "error: checks failed on gpu2 (1 check)" in err
    assert "0.0.0-none" in page.read_text()
    assert ET.parse(xml).getroot().get("failures") == "1"
    assert list(tmp_path.glob(".*.part")) == []


def test_json_is_all_that_is_on_standard_output(make_fleet: Make, run: Run) -> None:
    code, out, _ = run(make_fleet(gpu1=RIGHT).path, *KERNEL, "--json")
    assert code == 0
    host = json.loads(out)["hosts"]["gpu1"]
    assert host["verdict"] == "pass"
    assert host["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert host["stack"]["kernel"] == RUNNING
    assert [finding["check"] for finding in host["findings"]] == ["kernel.running"]


def test_all_checks_run_without_a_selection(make_fleet: Make, run: Run) -> None:
    from gdsdeploy.host import checks

    fleet = make_fleet(gpu1=WRONG).path
    _, out, _ = run(fleet, "--json")
    findings = json.loads(out)["hosts"]["gpu1"]["findings"]
    names = {finding["check"].partition(":")[0] for finding in findings}
    assert "kernel.running" in names
    assert len(names) > 10
    assert names <= {check.id for check in checks.listed()}
    hints = " ".join(finding["hint"] for finding in findings)
    assert "FLEET" not in hints
    assert str(fleet) in hints


# --- hosts without evidence ------------------------------------------------------------------------------------------


def test_a_failed_check_wins_over_a_host_that_is_gone(make_fleet: Make, run: Run) -> None:
    code, out, err = run(make_fleet(gone={**RIGHT, "port": free_port()}, gpu2=WRONG, gpu3=RIGHT).path, *KERNEL)
    assert code == 30
    assert "! HostUnreachable on gone" in out
    assert "1 of 3 hosts pass, 1 FAIL, 1 UNREACHABLE" in out
    assert "error: checks failed on gpu2" in err


@pytest.mark.parametrize("fault", ["closed", "key", "sudo"])
def test_a_host_without_evidence_has_its_own_exit_code(make_fleet: Make, run: Run, tmp_path: Path, fault: str) -> None:
    known_hosts = tmp_path / "other_known_hosts"
    bad = {
        "closed": {"port": free_port()},
        "key": {"known_hosts": str(known_hosts)},
        "sudo": {"user": PLAIN},
    }[fault]
    expected = {"closed": HostUnreachable, "key": HostKeyMismatch, "sudo": HostUnfit}[fault]
    fleet = make_fleet(gpu1=RIGHT, bad={**RIGHT, **bad})
    kind, blob = keygen(tmp_path / "other").with_suffix(".pub").read_text().split()[:2]
    known_hosts.write_text(f"[127.0.0.1]:{fleet.server.port} {kind} {blob}\n")
    code, out, err = run(fleet.path, *KERNEL)
    assert code == expected.exit_code
    assert f"! {expected.__name__} on bad" in out
    assert "✓ pass" in out
    assert "error: no evidence from bad" in err


def test_a_host_that_hangs_costs_its_time_and_nobody_elses(make_fleet: Make, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        code, out, _ = run(make_fleet(stuck={**RIGHT, "port": port}, gpu1=RIGHT).path, *KERNEL, "--timeout", "5")
    assert code == HostUnreachable.exit_code
    assert "! HostUnreachable on stuck" in out
    assert "1 of 2 hosts pass" in out


# --- what the user gave ----------------------------------------------------------------------------------------------


def test_builders_are_not_asked(make_fleet: Make, run: Run) -> None:
    code, out, _ = run(make_fleet(gpu1=RIGHT).path, *KERNEL)
    assert code == 0
    assert "build1" not in out


def test_limit(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=WRONG)
    code, out, _ = run(fleet.path, *KERNEL, "--limit", "gpu1")
    assert code == 0
    assert "gpu2" not in out
    code, _, err = run(fleet.path, *KERNEL, "--limit", "gpu7")
    assert code == 2
    assert "has no host 'gpu7'" in err
    assert "It has: gpu[1-2]" in err
    assert fleet.sessions() == 1


def test_a_check_that_does_not_exist(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    code, _, err = run(fleet.path, "--check", "kernel.runing")
    assert code == 2
    assert "there is no check 'kernel.runing'; did you mean 'kernel.running'?" in err
    assert fleet.sessions() == 0


def test_a_report_that_cannot_be_written_is_said_before_hosts_are_asked(
    make_fleet: Make, run: Run, tmp_path: Path
) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    code, _, err = run(fleet.path, "--html", tmp_path / "none" / "report.html")
    assert code == 1
    assert f"the folder {tmp_path / 'none'} does not exist" in err
    assert fleet.sessions() == 0


def test_a_fleet_without_a_lock_and_with_one_that_does_not_fit(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    fleet.path.write_text(fleet.path.read_text().replace("os: debian-13", "os: debian-12", 1))
    code, _, err = run(fleet.path)
    assert code == 12
    assert "operating system" in err
    lockfile.beside(fleet.path).unlink()
    code, _, err = run(fleet.path)
    assert code == 11
    assert "gdsdeploy lock" in err
    code, _, err = run(fleet.path.with_name("none.yml"))
    assert code == 10
    assert fleet.sessions() == 0


def test_interrupted(make_fleet: Make, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = make_fleet(gpu1=RIGHT)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gdsdeploy.validate.fleet_validation.host_report", interrupted)
    code, _, err = run(fleet.path, *KERNEL)
    assert code == 130
    assert "interrupted" in err


# --- the outcome -----------------------------------------------------------------------------------------------------


def host(name: str, *verdicts: str) -> HostReport:
    findings = tuple(
        Finding(f"check.{n}", verdict, "title", "this", "that", "do") for n, verdict in enumerate(verdicts)
    )
    return HostReport(name, "gds", findings)


LOST = HostReport("lost", "gds", trouble=trouble_from(HostKeyMismatch("lost: changed")))


@pytest.mark.parametrize(
    ("hosts", "code", "words"),
    [
        ((host("a", PASS),), 0, ""),
        ((host("a", PASS), host("b", PASS, UNKNOWN, UNKNOWN)), 31, "could not tell on b (2 checks)"),
        ((host("b", UNKNOWN), LOST), 21, "no evidence from lost"),
        ((host("b", UNKNOWN), LOST, host("c", FAIL, UNKNOWN)), 30, "checks failed on c (1 check)"),
        ((host("empty"),), 31, "could not tell on empty (nothing was examined)"),
        ((), 31, "could not tell on any host"),
    ],
)
def test_the_worst_decides(hosts: tuple[HostReport, ...], code: int, words: str) -> None:
    error = outcome(Report("fleet.yml", "sha256:0", "now", hosts))
    assert (error.exit_code if error else 0) == code
    assert words in (error.message if error else "")
