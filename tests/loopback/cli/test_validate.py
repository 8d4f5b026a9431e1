"""The verb against real SSH servers on loopback that all lead to this machine, with a fleet and a lock made for it."""

from __future__ import annotations

import importlib.resources
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import paramiko
import pytest
import yaml

from gdsdeploy import console, paths
from gdsdeploy.errors import HostKeyMismatch, HostUnfit, HostUnreachable
from gdsdeploy.host.gate import gate
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from gdsdeploy.lock import lockfile
from gdsdeploy.report.model import HostReport, Report, trouble_from
from gdsdeploy.validate.fleet_validation import outcome
from gdsdeploy.zipapp import hostapp
from tests.commandline import Run
from tests.loopback.loopback_fleet import RUNNING, LoopbackFleet
from tests.loopback.loopback_sshd import PLAIN, free_port, keygen
from tests.unit.files.test_secretwords import PROBES

#: One check whose answer is known on any machine: the running kernel is the locked one, or it is not.
KERNEL = ("--check", "kernel.running")


Make = Callable[..., LoopbackFleet]
RIGHT, WRONG = {"profile": "right"}, {"profile": "wrong"}


def test_every_check_passes(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=RIGHT)
    code, out, err = run("validate", fleet.path, *KERNEL)
    assert code == 0, err
    assert out.count("gpu[1-2] (2)  ✓ pass") == 1
    assert RUNNING in out
    assert "2 of 2 hosts pass" in out
    assert "Validating gpu[1-2]" in err
    assert "cloned" not in err
    assert "build1" not in out, "builders are not asked"
    assert fleet.sessions() == 2


def test_a_failed_check_with_everything_written(make_fleet: Make, run: Run, tmp_path: Path) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=WRONG)
    page, xml = tmp_path / "report.html", tmp_path / "junit.xml"
    code, out, err = run("validate", fleet.path, *KERNEL, "--html", page, "--junit", xml)
    assert code == 30
    assert "✗ kernel.running (FAIL) on gpu2" in out
    assert f"found:      {RUNNING}" in out
    assert "expected:   0.0.0-none" in out
    assert "error: checks failed on gpu2 (1 check)" in err
    assert "0.0.0-none" in page.read_text()
    assert ET.parse(xml).getroot().get("failures") == "1"
    assert list(tmp_path.glob(".*.part")) == []


def test_every_report_that_can_be_written_is_and_the_verdict_stays(
    make_fleet: Make, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing can be printed."""
    fleet = make_fleet(gpu1=RIGHT, gpu2=WRONG)
    page, numbers, full = tmp_path / "report.html", tmp_path / "metrics.prom", Path("/dev/full")
    words = (*KERNEL, "--junit", full, "--html", page, "--metrics", numbers)
    code, out, err = run("validate", fleet.path, *words)
    assert (code, "✗ kernel.running (FAIL) on gpu2" in out) == (30, True)
    assert err.index("error: /dev/full: cannot be written: No space left") < err.index("error: checks failed on gpu2")
    assert "0.0.0-none" in page.read_text()
    assert "gdsdeploy_" in numbers.read_text()
    code, _, err = run("validate", fleet.path, *words, "--limit", "gpu1")
    assert (code, err.count("No space left")) == (1, 1), "a pass that nobody can read"
    page.write_text("earlier")
    command = [Path(sys.executable).parent / "gdsdeploy", "validate", fleet.path, *KERNEL, "--html", page]
    with full.open("w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "checks failed on gpu2" in done.stderr, page.read_text()[:5]) == (30, True, "<!DOC")
    page.unlink()
    monkeypatch.setattr(console, "data", lambda _: page.stat())
    assert run("validate", fleet.path, *KERNEL, "--html", page)[0] == 30, "it is there before the first word"


def test_json_is_all_that_is_on_standard_output(make_fleet: Make, run: Run) -> None:
    code, out, _ = run("validate", make_fleet(gpu1=RIGHT).path, *KERNEL, "--json")
    assert code == 0
    host = json.loads(out)["hosts"]["gpu1"]
    assert host["verdict"] == "pass"
    assert host["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert host["stack"]["kernel"] == RUNNING
    assert [finding["check"] for finding in host["findings"]] == ["kernel.running"]


def test_all_checks_run_without_a_selection(make_fleet: Make, run: Run) -> None:
    from gdsdeploy.host import checks

    fleet = make_fleet(gpu1=WRONG).path
    _, out, _ = run("validate", fleet, "--json")
    findings = json.loads(out)["hosts"]["gpu1"]["findings"]
    names = {finding["check"].partition(":")[0] for finding in findings}
    assert "kernel.running" in names
    assert len(names) > 10
    assert names <= {check.id for check in checks.listed()}
    hints = " ".join(finding["hint"] for finding in findings)
    assert "FLEET" not in hints
    assert str(fleet) in hints


# --- hosts without evidence ------------------------------------------------------------------------------------------


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
    code, out, err = run("validate", fleet.path, *KERNEL)
    assert code == expected.exit_code
    assert f"! {expected.__name__} on bad" in out
    assert "✓ pass" in out
    assert "error: no evidence from bad" in err


def test_a_host_that_hangs_costs_its_time_and_nobody_elses(make_fleet: Make, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        code, out, _ = run(
            "validate", make_fleet(stuck={**RIGHT, "port": port}, gpu1=RIGHT).path, *KERNEL, "--timeout", "5"
        )
    assert code == HostUnreachable.exit_code
    assert "! HostUnreachable on stuck" in out
    assert "1 of 2 hosts pass" in out


# --- what the user gave ----------------------------------------------------------------------------------------------


def test_limit(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=WRONG)
    code, out, _ = run("validate", fleet.path, *KERNEL, "--limit", "gpu1")
    assert code == 0
    assert "gpu2" not in out
    code, _, err = run("validate", fleet.path, *KERNEL, "--limit", "gpu7")
    assert code == 2
    assert "has no host 'gpu7'" in err
    assert "It has: gpu[1-2]" in err
    assert fleet.sessions() == 1


def test_a_check_that_does_not_exist(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    code, _, err = run("validate", fleet.path, "--check", "kernel.runing")
    assert code == 2
    assert "there is no check 'kernel.runing'; did you mean 'kernel.running'?" in err
    assert fleet.sessions() == 0


def test_a_report_that_cannot_be_written_is_said_before_hosts_are_asked(
    make_fleet: Make, run: Run, tmp_path: Path
) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    code, _, err = run("validate", fleet.path, "--html", tmp_path / "none" / "report.html")
    assert code == 1
    assert f"the folder {tmp_path / 'none'} does not exist" in err
    assert fleet.sessions() == 0


def test_a_fleet_without_a_lock_and_with_one_that_does_not_fit(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    fleet.path.write_text(fleet.path.read_text().replace("os: debian-13", "os: debian-12", 1))
    code, _, err = run("validate", fleet.path)
    assert code == 12
    assert "operating system" in err
    lockfile.beside(fleet.path).unlink()
    code, _, err = run("validate", fleet.path)
    assert code == 11
    assert "gdsdeploy lock" in err
    code, _, err = run("validate", fleet.path.with_name("none.yml"))
    assert code == 10
    assert fleet.sessions() == 0


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


# -- The other ways to validate: waivers, what the gate found since boot, support bundles judged offline, pytest.


SCHEMA = json.loads(importlib.resources.files("gdsdeploy.report").joinpath("report.schema.json").read_text())


def with_waivers(fleet: LoopbackFleet, *waivers: dict[str, Any]) -> None:
    value = yaml.safe_load(fleet.path.read_text())
    fleet.path.write_text(yaml.safe_dump({**value, "waivers": list(waivers)}))


def with_storage(fleet: LoopbackFleet, *mounts: dict[str, Any]) -> LoopbackFleet:
    """The fleet, whose profile ``right`` has these mounts."""
    value = yaml.safe_load(fleet.path.read_text())
    value["profiles"]["right"] |= {"storage": list(mounts)}
    fleet.path.write_text(yaml.safe_dump(value))
    return fleet


# --- waivers ---------------------------------------------------------------------------------------------------------


def test_a_waived_failure_is_no_failure_and_no_pass(make_fleet: Make, run: Run, tmp_path: Path) -> None:
    fleet, xml, page = make_fleet(gpu1=RIGHT, gpu2=WRONG), tmp_path / "junit.xml", tmp_path / "report.html"
    waive = ("--waive", "kernel.running", "--until", "9999-12-31", "--reason", "CHG-4711")
    code, out, err = run("validate", fleet.path, *KERNEL, *waive, "--json", "--junit", xml, "--html", page)
    assert code == 0, err
    report = json.loads(out)
    jsonschema.validate(report, SCHEMA)
    assert report["verdict"] == "waived"
    assert report["counts"] == {"pass": 1, "waived": 1, "unknown": 0, "unreachable": 0, "fail": 0}
    waiver = {"check": "kernel.running", "until": "9999-12-31", "reason": "CHG-4711", "expired": False}
    assert report["waivers"] == [{**waiver, "hosts": ["gpu2"]}]
    (finding,) = report["hosts"]["gpu2"]["findings"]
    assert finding["waiver"] == {"until": "9999-12-31", "reason": "CHG-4711", "was": "fail"}
    suites = ET.parse(xml).getroot()
    assert (suites.get("failures"), suites.get("errors"), suites.get("skipped")) == ("0", "0", "1")
    assert "waived until 9999-12-31: CHG-4711" in str(next(suites.iter("skipped")).get("message"))
    code, out, _ = run("validate", fleet.path, *KERNEL, *waive)
    assert code == 0
    assert "~ kernel.running (waived until 9999-12-31: CHG-4711) on gpu2" in out
    assert "1 of 2 hosts pass, 1 waived" in out


def test_the_fleet_files_waivers_hold_until_their_day_and_for_their_hosts(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=WRONG, gpu2=WRONG, gpu3=WRONG)
    with_waivers(
        fleet,
        {"check": "kernel.running", "until": "2020-01-31", "reason": "week 5", "hosts": ["gpu1"]},
        {"check": "kernel.running", "until": "9999-12-31", "reason": "later", "hosts": ["gpu2*"]},
    )
    code, out, err = run("validate", fleet.path, *KERNEL)
    assert code == 30
    assert "checks failed on gpu[1,3] (1 check each)" in err
    assert "its waiver ended on 2020-01-31 (week 5)" in out
    assert "the waiver of kernel.running ended on 2020-01-31: week 5" in out
    assert "~ kernel.running (waived until 9999-12-31: later) on gpu2" in out


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("--waive", "kernel.running"), 2, "--waive needs --until and --reason"),
        (("--waive", "kernel.running", "--until", "2026-12-31", "--reason", " "), 2, "--waive needs --until"),
        (("--waive", "kernel.running", "--until", "soon", "--reason", "x"), 10, "--until: 'soon' isn't a date"),
        (("--waive", "os.relase", "--until", "2026-12-31", "--reason", "x"), 2, "there is no check 'os.relase'"),
        (("--", "-k", "x"), 2, "arguments for pytest need --pytest"),
        (("--from", "x.tar.gz"), 2, "name a fleet file, or a support bundle"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(run: Run, tmp_path: Path, argv: tuple[str, ...], code: int, words: str) -> None:
    ended, _, err = run("validate", tmp_path / "fleet.yml", *argv)
    assert ended == code, err
    assert words in err


def test_waivers_of_what_is_not_there(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    with_waivers(
        fleet,
        {"check": "kernel.runing", "until": "2026-12-31", "reason": "x"},
        {"check": "kernel.running", "until": "2026-12-32", "reason": "x", "hosts": ["gpu1"]},
    )
    code, _, err = run("validate", fleet.path)
    assert code == 10
    assert "waivers.1.until" in err
    fleet.path.write_text(fleet.path.read_text().replace("2026-12-32", "2026-12-31").replace("- gpu1", "- gpu7"))
    code, _, err = run("validate", fleet.path)
    assert code == 10
    assert "waivers.0.check: there is no check 'kernel.runing'; did you mean 'kernel.running'?" in err
    assert "waivers.1.hosts: no host is called 'gpu7'" in err
    assert fleet.sessions() == 0


# --- since boot ------------------------------------------------------------------------------------------------------


@pytest.fixture
def record(tmp_path: Path, make_fleet: Make) -> Callable[..., LoopbackFleet]:
    """A fleet of one host whose gate has left this record: every host is this machine, seen by its server."""

    def make(**changed: Any) -> LoopbackFleet:
        fleet = make_fleet(gpu1=RIGHT)
        digest = lockfile.read(lockfile.beside(fleet.path)).digest
        findings = [
            Finding("kernel.running", PASS, "title", RUNNING, RUNNING).as_dict(),
            Finding("boot.autoload", FAIL, "title", "this", "that", "do").as_dict(),
        ]
        fields = {"state": gate.CLOSED, "reason": "boot.autoload failed", "verdict": FAIL, "boot_id": gate.boot_id(),
                 "when": "2026-11-21T08:00:00Z", "seconds": 1.0, "host": "gpu1", "profile": "right",
                 "lock_digest": digest, "stack": [["kernel", RUNNING]], "findings": findings}  # fmt: skip
        fleet.server.place("/run/gdsdeploy/gate.json", gate.Record(**{**fields, **changed}).to_json())
        return fleet

    return make


def test_what_the_gate_found_in_this_boot(record: Callable[..., LoopbackFleet], run: Run) -> None:
    fleet = record()
    code, out, err = run("validate", fleet.path, "--since-boot", "--json")
    assert code == 30, err
    value = json.loads(out)
    jsonschema.validate(value, SCHEMA)
    host = value["hosts"]["gpu1"]
    verdicts = {finding["check"]: finding["verdict"] for finding in host["findings"]}
    assert verdicts == {"gate.this-boot": "pass", "kernel.running": "pass", "boot.autoload": "fail"}
    assert host["boot_id"] == gate.boot_id()
    assert host["stack"] == {"kernel": RUNNING}
    assert fleet.sessions() == 1
    code, _, err = run("validate", fleet.path, "--since-boot", *KERNEL)
    assert code == 0, err


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"boot_id": "an-earlier-one"}, "is of an earlier one"),
        ({"lock_digest": "sha256:other"}, "its expectation is of another lock"),
    ],
)
def test_a_verdict_of_another_boot_or_lock_fails(
    record: Callable[..., LoopbackFleet], run: Run, changed: dict[str, str], words: str
) -> None:
    code, out, _ = run("validate", record(**changed).path, "--since-boot", *KERNEL)
    assert code == 30
    assert "✗ gate.this-boot (FAIL) on gpu1" in out
    assert words in out


def test_the_record_of_the_last_boot_tells_when_that_was(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    last = gate.Record(gate.OPEN, "fine", "pass", "an-earlier-one", "2026-11-20T08:00:00Z", 1.0)
    fleet.server.place("/var/lib/gdsdeploy/gate.json", last.to_json())
    code, out, err = run("validate", fleet.path, "--since-boot")
    assert code == 30, err
    assert "its last verdict, open of 2026-11-20T08:00:00Z, is of an earlier one" in out


def test_a_kept_record_of_this_boot_is_no_verdict(make_fleet: Make, run: Run) -> None:
    """The gate has closed since, and could write nothing."""
    fleet = make_fleet(gpu1=RIGHT)
    kept = gate.Record(gate.OPEN, "fine", "pass", gate.boot_id(), "2026-11-20T08:00:00Z", 1.0)
    fleet.server.place("/var/lib/gdsdeploy/gate.json", kept.to_json())
    code, out, err = run("validate", fleet.path, "--since-boot")
    assert code == 30, err
    assert "the gate's verdict on this boot, open of 2026-11-20T08:00:00Z, is no longer in /run/gdsdeploy" in out


def test_one_cat_reads_the_record_and_no_python_starts(
    record: Callable[..., LoopbackFleet], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    start = paramiko.Channel.exec_command

    def exec_command(channel: paramiko.Channel, command: str) -> None:
        commands.append(command)
        start(channel, command)

    def build(path: object = None) -> bytes:
        raise AssertionError("the program was packed")

    monkeypatch.setattr(paramiko.Channel, "exec_command", exec_command)
    monkeypatch.setattr(hostapp, "build", build)
    code, _, err = run("validate", record().path, "--since-boot", *KERNEL)
    assert code == 0, err
    boot = "/proc/sys/kernel/random/boot_id"
    assert commands == [f"cat - {boot} /run/gdsdeploy/gate.json {boot} /var/lib/gdsdeploy/gate.json"]


def test_a_record_that_was_damaged_is_that_hosts_own_trouble(make_fleet: Make, run: Run) -> None:
    fleet = make_fleet(gpu1=RIGHT)
    fleet.server.place("/run/gdsdeploy/gate.json", '{"version": 1,')
    code, out, err = run("validate", fleet.path, "--since-boot")
    assert code == 22, err
    assert "its answer to cat gate.json is malformed: not JSON" in out + err


def test_a_host_whose_gate_never_ran_fails(make_fleet: Make, run: Run) -> None:
    code, out, _ = run("validate", make_fleet(gpu1=RIGHT).path, "--since-boot")
    assert code == 30
    assert "the gate has not judged this host yet" in out
    assert "systemctl start gds-gate" in out


# --- support bundles -------------------------------------------------------------------------------------------------


def test_a_bundle_gives_the_same_verdicts_offline(
    make_fleet: Make, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    fleet, file = make_fleet(gpu1=RIGHT, gpu2=WRONG, gone={**RIGHT, "port": free_port()}), tmp_path / "case.tar.gz"
    with_waivers(fleet, {"check": "boot.autoload", "until": "9999-12-31", "reason": "week 50"})
    secret = "https://hooks.slack.com/services/T0AAAA/B0BBBB/XXSECRETXX"
    with fleet.path.open("a") as text:
        text.write(f"rollout: {{notify: {{webhook: {secret}, token_file: chat-token}}}}  # {secret}\n")
    probes = "\n\n".join(probe for probe in PROBES.values() if isinstance(probe, str))
    logs = {
        "provision-1.log": f"{probes}\nmount nas7.corp.internal:/data for jane@corp.internal\n",
        "provision-2.log": "old",
    }
    for folder in (paths.runs(fleet.path), paths.runs(tmp_path / "other.yml")):
        folder.mkdir(parents=True)
        for age, (name, text) in enumerate(logs.items()):
            (folder / name).write_text(text if folder == paths.runs(fleet.path) else "dgx07.secret-customer.example")
            os.utime(folder / name, (1e9 - age, 1e9 - age))
    _, before, _ = run("validate", fleet.path, "--json")
    code, out, err = run("support-bundle", fleet.path, "-o", file)
    assert code == 0, err
    assert out.strip() == str(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert re.search(r"^Replaced: .*\d+ secret", err, re.MULTILINE)
    fleet.server.stop()
    code, after, _ = run("validate", "--evidence", file, "--json")
    assert code == 30
    old, new = json.loads(before), json.loads(after)
    jsonschema.validate(new, SCHEMA)
    for name, host in old["hosts"].items():
        assert {f["check"]: f["verdict"] for f in new["hosts"][name]["findings"]} == {
            f["check"]: f["verdict"] for f in host["findings"]
        }
        assert (host["error"] or {}).get("kind") == (new["hosts"][name]["error"] or {}).get("kind")
    assert new["waivers"] == old["waivers"]
    assert new["lock"] == old["lock"]
    with tarfile.open(file) as archive:
        names = archive.getnames()
        texts = {name: archive.extractfile(name).read().decode() for name in names}  # type: ignore[union-attr]
    assert "gdsdeploy-support/hosts/gpu2/evidence.json" in names
    assert str(fleet.server.identity) in fleet.path.read_text()
    assert str(fleet.server.identity) not in "".join(texts.values())
    assert "XXSECRETXX" not in "".join(texts.values())
    assert len(texts["gdsdeploy-support/logs/provision-1.log"]) > 1000
    for word in ("hunter2", "secret-customer", "nas7", "jane"):
        assert word not in "".join(texts.values()).lower()
    assert "gdsdeploy-support/logs/provision-2.log" not in texts
    assert yaml.safe_load(texts["gdsdeploy-support/fleet.yml"])["rollout"]["notify"]["webhook"] == "[redacted]"
    replayed = json.loads(texts["gdsdeploy-support/report.json"])
    assert replayed["verdict"] == "fail"
    assert "gdsdeploy validate --evidence" in texts["gdsdeploy-support/README.txt"]


# --- pytest ----------------------------------------------------------------------------------------------------------


def test_pytest_runs_the_checks_with_the_fleets_own_connections(make_fleet: Make, run: Run, tmp_path: Path) -> None:
    fleet, xml = make_fleet(gpu1=RIGHT, gpu2=WRONG), tmp_path / "junit.xml"
    with_waivers(fleet, {"check": "os.release", "until": "9999-12-31", "reason": "CHG-4711", "hosts": ["gpu1"]})
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --nonsense\n")
    code, out, err = run(
        "validate", fleet.path, "--pytest", "--", f"--junitxml={xml}", "-q", "-k", "kernel.running or os.release"
    )
    assert code == 30, out + err
    cases = {case.get("name"): case for case in ET.parse(xml).getroot().iter("testcase")}
    checks = ("kernel.running", "os.release")
    assert set(cases) == {f"test_check[ssh://{name}-{check}]" for name in ("gpu1", "gpu2") for check in checks}
    skipped = cases["test_check[ssh://gpu1-os.release]"].find("skipped")
    assert skipped is None or "waived until 9999-12-31: CHG-4711" in str(skipped.get("message"))
    assert cases["test_check[ssh://gpu1-kernel.running]"].find("failure") is None
    assert cases["test_check[ssh://gpu2-kernel.running]"].find("failure") is not None
    assert "tests failed" in err
    code, _, err = run("validate", fleet.path, "--limit", "gpu1", "--pytest", "--", "--no-such-flag")
    assert code == 3
    assert "pytest ended with status 4" in err


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_pytest_has_the_results_of_one_login_to_each_host(
    make_fleet: Make, run: Run, tmp_path: Path, workers: tuple[str, ...]
) -> None:
    fleet = make_fleet(gpu1=RIGHT, gpu2=WRONG, gpu3={**RIGHT, "port": free_port()})
    with_waivers(fleet, {"check": "os.release", "until": "9999-12-31", "reason": "CHG-4711"})
    xml = tmp_path / "junit.xml"

    def logins() -> int:
        return (fleet.server.folder / "log").read_text().count("Accepted publickey")

    code, out, err = run("validate", fleet.path, "--pytest", "--timeout", "60", "--", f"--junitxml={xml}", *workers)
    assert code == 30, out + err
    assert (logins(), fleet.sessions()) == (2, 2)
    shown = {}
    for case in ET.parse(xml).getroot().iter("testcase"):
        assert len(case) <= 1
        shown[case.get("name")] = ("passed", "") if not len(case) else (case[0].tag, case[0].get("message", ""))
    _, out, _ = run("validate", fleet.path, "--json")
    hosts = json.loads(out)["hosts"]
    words = {"pass": "passed", "waived": "skipped", "not-applicable": "skipped"}
    expected = {
        f"test_check[ssh://{name}-{finding['check']}]": (words.get(finding["verdict"], "failure"), finding)
        for name, host in hosts.items()
        for finding in host["findings"]
    }
    assert {finding["verdict"] for _, finding in expected.values()} >= {"pass", "fail", "unknown", "not-applicable"}
    kind, message = shown.pop("test_check[ssh://gpu3-reachable]")
    assert (kind, hosts["gpu3"]["error"]["message"] in message) == ("failure", True)
    assert shown.keys() == expected.keys()
    for name, (kind, finding) in expected.items():
        assert shown[name][0] == kind, name
        assert kind == "passed" or finding["found"] in shown[name][1]


# --- under load ------------------------------------------------------------------------------------------------------


def test_under_load_only_when_asked_and_only_with_a_threshold(make_fleet: Make, run: Run) -> None:
    """In memory, which has no rate of its own: it is said so, and nothing is left in it."""
    limited = {"mount": "/dev/shm", "path": "compat", "load": {"read": "5 GB/s", "seconds": 1}}
    fleet = with_storage(make_fleet(gpu1=RIGHT), limited, {"mount": "/", "path": "compat"})
    _, out, _ = run("validate", fleet.path, "--check", "storage.load", "--json")
    assert [finding["found"] for finding in json.loads(out)["hosts"]["gpu1"]["findings"]] == [
        "no reading under load was requested (--load)",
        "the fleet sets no rate for this mount",
    ]
    code, out, err = run("validate", fleet.path, "--check", "storage.load", "--load", "--json")
    finding, _without_rate = json.loads(out)["hosts"]["gpu1"]["findings"]
    assert (code, finding["check"], finding["expected"]) == (31, "storage.load:/dev/shm", "at least 5 GB/s read"), err
    assert "what is written there stays in memory, which would be measured" in finding["found"]
    assert not list(Path("/dev/shm").glob(".gdsdeploy*"))


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        ({"load": {"read": "5"}}, 'a rate is text such as "5 GB/s"'),
        ({"load": {"read": "5 GB/s", "seconds": 61}}, "less than or equal to 60"),
        ({"load": {"seconds": 5}}, "read"),
        ({"load": {"read": "0 GB/s"}}, "greater than 0"),
        ({"load": {"read": "1 GB/s"}, "scratch": False}, "load reads from a scratch file"),
    ],
)
def test_thresholds_that_make_no_sense(make_fleet: Make, run: Run, mount: dict[str, Any], message: str) -> None:
    code, _, err = run("validate", with_storage(make_fleet(gpu1=RIGHT), {"mount": "/mnt", **mount}).path, "--load")
    assert (code, message in err) == (10, True), err
