"""The gate on this machine: what it decides, what it writes, whom it tells; a host that it cannot judge is closed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import __main__ as program, checks
from gdsdeploy.host.cli import gate as cli_gate
from gdsdeploy.host.gate import gate
from gdsdeploy.host.io import prometheus
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, WAIVED, Finding

HOSTS = Path(__file__).parents[2] / "evidence" / "hosts"
EXPECTATION = HOSTS / "lab-vm.expectation.json"
#: With these this machine is as open as can be, whatever it is.
EVERYTHING = [{"check": check.id, "until": "9999-12-31", "reason": "a test"} for check in checks.listed()]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What systemd is asked for, a line each; this machine may have one that runs."""
    programs, asked = tmp_path / "bin", tmp_path / "asked"
    programs.mkdir()
    for name in ("systemctl", "systemd-run"):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{asked}\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    return asked


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], systemd: Path) -> Run:
    def invoke(verb: str, *argv: object) -> tuple[int, str, str]:
        places = ["--run-folder", tmp_path / "run"]
        places += ["--state-folder", tmp_path / "state"] if verb in ("run", "again", "show") else []
        code = program.main(["gate", verb, *map(str, [*places, *argv])])
        return (code, *capsys.readouterr())

    return invoke


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real host's evidence, recorded before it was provisioned, in place of this machine's, which takes a while."""
    evidence = json.loads((HOSTS / "lab-vm-bare.json").read_text())
    monkeypatch.setattr("gdsdeploy.host.evidence.collect", lambda *_, **__: evidence)


def settings(tmp_path: Path, **fields: Any) -> list[object]:
    value = {"version": 1, "file": str(tmp_path / "healthy"), "metrics": str(tmp_path / "metrics"), **fields}
    (tmp_path / "gate.json").write_text(json.dumps(value))
    return ["--expectation", EXPECTATION, "--settings", tmp_path / "gate.json"]


def finding(check: str, verdict: str) -> Finding:
    return Finding(check, verdict, "title", "this", "that")


@pytest.mark.parametrize(
    ("verdicts", "state", "reason"),
    [
        ([PASS, PASS], gate.OPEN, "2 checks passed"),
        ([PASS, WAIVED], gate.OPEN, "1 checks passed, 1 waived"),
        ([PASS, UNKNOWN], gate.CLOSED, "c1 could not be decided"),
        ([UNKNOWN, FAIL], gate.CLOSED, "c1 failed"),
        ([FAIL] * 5, gate.CLOSED, "c0, c1, c2 and 2 more failed"),
        ([], gate.CLOSED, "no check applies to this host"),
    ],
)
def test_only_what_is_known_to_be_good_opens(verdicts: list[str], state: str, reason: str) -> None:
    assert gate.decide([finding(f"c{n}", verdict) for n, verdict in enumerate(verdicts)]) == (state, reason)


def test_a_host_that_is_not_as_expected_is_closed(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("run", *settings(tmp_path), "--json")
    assert code == 30
    record = gate.record_from((tmp_path / "run" / "gate.json").read_text())
    assert json.loads(out)["findings"] == [finding.as_dict() for finding in record.findings]
    assert record == gate.last(str(tmp_path / "state"))
    assert (record.state, record.verdict, record.host) == (gate.CLOSED, FAIL, "gpu1")
    assert record.boot_id == Path(gate.BOOT_ID).read_text().strip()
    assert record.reason.endswith(" more failed")
    assert not (tmp_path / "healthy").exists()
    assert run("show")[:2] == (30, f"closed: {record.reason} ({record.seconds:.1f} s)\n")
    code, out, _ = run("npd")
    assert (code, out) == (1, record.reason[:80] + "\n")


def test_it_opens_and_closes_again(bare: None, run: Run, tmp_path: Path) -> None:
    code, out, _ = run("run", *settings(tmp_path, waivers=EVERYTHING))
    assert code == 0, out
    assert out.startswith("open: ")
    assert " waived" in out
    assert "checks passed" in (tmp_path / "healthy").read_text()
    assert run("npd")[0] == 0
    assert "gdsdeploy_gate_open 1\n" in (tmp_path / "metrics" / "gdsdeploy.prom").read_text()
    assert run("run", *settings(tmp_path))[0] == 30
    assert not (tmp_path / "healthy").exists()
    assert "gdsdeploy_gate_open 0\n" in (tmp_path / "metrics" / "gdsdeploy.prom").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "gate.json", "metrics", "run", "state"]


def test_once_is_for_a_boot_that_is_open_by_the_same_standard(bare: None, run: Run, tmp_path: Path) -> None:
    record = tmp_path / "run" / "gate.json"
    run("run", *settings(tmp_path, waivers=EVERYTHING))
    before = record.read_text()
    assert run("run", *settings(tmp_path, waivers=EVERYTHING), "--once")[0] == 0
    assert record.read_text() == before
    assert run("run", *settings(tmp_path, waivers=[]), "--once")[0] == 30
    assert record.read_text() != before
    earlier = replace(gate.record_from(before), boot_id="an earlier one")
    record.write_text(earlier.to_json())
    run("run", *settings(tmp_path, waivers=EVERYTHING), "--once")
    assert gate.record_from(record.read_text()).boot_id == gate.boot_id()


def test_once_waits_for_a_run_that_another_started(
    bare: None, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a reboot: the host answers ssh before the boot's own run has ended."""
    argv = settings(tmp_path, waivers=EVERYTHING)
    run("run", *argv)
    record = tmp_path / "run" / "gate.json"
    verdict = record.read_text()
    record.unlink()
    answers: list[tuple[int, str, str]] = []
    other = threading.Thread(target=lambda: answers.append(run("run", *argv, "--once")))
    with gate.turn(str(tmp_path / "run"), 0):
        other.start()
        other.join(0.5)
        assert other.is_alive()
        record.write_text(verdict)
    other.join(300)
    assert answers[0][0] == 0
    assert record.read_text() == verdict, "this host was judged twice"

    # If the other run never ends, the gate judges the host anyway.
    monkeypatch.setattr(cli_gate, "MARGIN", 0.1)
    record.unlink()
    argv = settings(tmp_path, waivers=EVERYTHING, seconds=0.1)
    with gate.turn(str(tmp_path / "run"), 0):
        assert run("run", *argv, "--once")[0] == 0
        assert run("run", *argv)[0] == 0
    assert run("run", *settings(tmp_path, seconds="half a minute"), "--once")[0] == 31


def test_a_verdict_of_another_boot_opens_nothing(bare: None, run: Run, tmp_path: Path) -> None:
    """As after a reboot: /run is empty, and what is kept in /var/lib is of an earlier boot."""
    run("run", *settings(tmp_path, waivers=EVERYTHING))
    (tmp_path / "run" / "gate.json").unlink()
    state = tmp_path / "state" / "gate.json"
    state.write_text(replace(gate.record_from(state.read_text()), boot_id="earlier").to_json())
    code, out, _ = run("show", "--json")
    assert code == 31
    record = json.loads(out)
    assert record["record"] is None
    assert record["boot_id"] == gate.boot_id()
    assert "has not judged this boot; its last verdict, open of " in record["reason"]
    code, out, _ = run("npd")
    assert (code, out) == (2, "the gate has not judged this host yet\n")
    state.write_text("{}")
    assert "has not judged this host yet" in run("show")[1]


@pytest.mark.parametrize("fault", ["no expectation", "broken settings", "a bug"])
def test_what_goes_wrong_closes(
    bare: None, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    # Without settings, metrics go where this machine's exporter reads them.
    monkeypatch.setattr(prometheus, "FOLDERS", ())
    options = settings(tmp_path, waivers=EVERYTHING)
    run("run", *options)
    assert (tmp_path / "healthy").exists()
    if fault == "no expectation":
        options[1] = tmp_path / "nothing.json"
    elif fault == "broken settings":
        options = settings(tmp_path, waivers=[{"check": "kernel.running"}])
    else:
        monkeypatch.setattr(checks, "run", lambda *_: 1 / 0)
    code, out, _ = run("run", *options)
    assert code == 31
    assert out.startswith("closed: the gate itself failed: ")
    # Broken settings don't say where it is; the earlier record does.
    assert not (tmp_path / "healthy").exists()
    assert run("show")[0] == 31


def test_what_cannot_be_written_does_not_keep_the_rest_from_being_told(bare: None, run: Run, tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    options = settings(tmp_path, metrics=str(tmp_path / "blocked"), waivers=EVERYTHING)
    code, out, _ = run("run", *options)
    assert code == 0
    assert "gdsdeploy.prom cannot be written" in out
    assert (tmp_path / "healthy").exists()


def test_what_an_earlier_verdict_has_opened_elsewhere_is_closed(bare: None, run: Run, tmp_path: Path) -> None:
    for state in (EVERYTHING, []):
        run("run", *settings(tmp_path, waivers=EVERYTHING))
        run("run", *settings(tmp_path, waivers=state, file=str(tmp_path / "other"), metrics=str(tmp_path / "more")))
        assert not (tmp_path / "healthy").exists()
        assert not (tmp_path / "metrics" / "gdsdeploy.prom").exists()
        assert (tmp_path / "other").exists() == bool(state)


#: In a mount namespace: the gate opens, then its places are full or can't be changed, and it closes or opens again.
DENIED = """\
import re, resource, subprocess, sys
from pathlib import Path
from gdsdeploy.host import __main__ as program
from gdsdeploy.host.gate import gate
place, denied, state = Path(sys.argv[1]), sys.argv[2].split(), sys.argv[3]
for name in ("run", "state", "out", "metrics"):
    (place / name).mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place / name], check=True)
settings = gate.Settings(file=f"{place}/out/healthy", metrics=f"{place}/metrics")
folders = (f"{place}/run", f"{place}/state")
record = gate.Record(gate.OPEN, "24 checks passed", "pass", gate.boot_id(), "2026-11-21T08:00:00Z", 1.0)
assert gate.publish(record, settings, *folders)[1] == []
for name in denied:
    name, _, how = name.partition(":")
    if name == "any":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    elif how == "full":
        try:
            with open(place / name / "ballast", "wb", buffering=0) as ballast:
                while True:
                    ballast.write(bytes(4096))
        except OSError:
            pass
    else:
        subprocess.run(["mount", "-o", "remount,ro", place / name], check=True)
if state == gate.CLOSED:
    record = gate.Record(gate.CLOSED, "c1 failed", "fail", gate.boot_id(), "2026-11-21T09:00:00Z", 1.0)
record, problems = gate.publish(record, settings, *folders)
print(record.state, len(problems))
current, _ = gate.current(*folders)
print("record", current.state if current else "none")
for verb in ("npd", "show"):
    more = ["--state-folder", folders[1]] if verb == "show" else []
    print(verb, program.main(["gate", verb, "--run-folder", folders[0], *more]))
print("file", (place / "out" / "healthy").exists())
metrics = place / "metrics" / gate.FILE
print("metric", *re.findall("(?m)^gdsdeploy_gate_open (.)", metrics.read_text() if metrics.exists() else ""))
"""


@pytest.mark.parametrize(
    ("denied", "state", "expected"),
    [
        ("any:write", gate.CLOSED, "closed 3|record none|npd 2|show 31|file False|metric"),
        # What is removed makes room for what is written.
        ("run:full out:full metrics:full", gate.CLOSED, "closed 0|record closed|npd 1|show 30|file False|metric 0"),
        ("out:ro", gate.CLOSED, "closed 1|record closed|npd 1|show 30|file True|metric 0"),
        ("state:ro metrics:ro", gate.CLOSED, "closed 3|record closed|npd 1|show 30|file False|metric 1"),
        # What nobody can read afterwards is no open gate.
        ("run:full", gate.OPEN, "closed 0|record closed|npd 2|show 31|file False|metric 0"),
        ("state:full metrics:full", gate.OPEN, "open 2|record open|npd 0|show 0|file True|metric 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_or_removed_leaves_nothing_else_open(
    denied: str, state: str, expected: str, tmp_path: Path
) -> None:
    argv = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        sys.executable,
        "-c",
        DENIED,
        str(tmp_path),
        denied,
        state,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = [
        line for line in done.stdout.splitlines() if re.match(r"(open|closed) \d|(record|npd|show|file|metric)\b", line)
    ]
    assert "|".join(lines) == expected, done.stdout + done.stderr


def test_only_the_record_in_run_is_a_verdict(bare: None, run: Run, tmp_path: Path) -> None:
    """That of the same boot in /var/lib may be what could not be replaced."""
    run("run", *settings(tmp_path, waivers=EVERYTHING))
    (tmp_path / "run" / "gate.json").unlink()
    code, out, _ = run("show")
    assert (code, "is no longer in" in out) == (31, True)
    assert run("npd")[0] == 2


def test_the_end_of_a_waiver_closes_every_output(bare: None, run: Run, tmp_path: Path, systemd: Path) -> None:
    """systemd publishes the verdict again at that moment; readers that ask for it find it closed without that."""
    now = time.time()
    until = time.strftime("%Y-%m-%d", time.gmtime(now + 5 * 86400))
    after = time.strftime("%Y-%m-%d 00:00:00 UTC", time.gmtime(now + 6 * 86400))
    metrics, waivers = tmp_path / "metrics" / "gdsdeploy.prom", [{**waiver, "until": until} for waiver in EVERYTHING]
    options = settings(tmp_path, waivers=waivers)
    assert run("run", *options)[0] == 0
    stop, start = systemd.read_text().splitlines()
    assert stop == "systemctl stop gds-gate-again.timer"
    assert f"--on-calendar={after} " in start
    assert start.endswith(" gate again")
    subprocess.run(["systemd-analyze", "calendar", after], check=True, capture_output=True)
    value = re.search(r"^gdsdeploy_gate_open_until_seconds (\d+)$", metrics.read_text(), re.MULTILINE)
    assert value is not None
    assert time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(int(value[1]))) == after
    assert run("again", *options[2:])[0] == 0
    assert (tmp_path / "healthy").exists()

    record = tmp_path / "run" / "gate.json"
    record.write_text(record.read_text().replace(until, "2026-11-01"))
    assert [run(verb)[0] for verb in ("show", "npd")] == [30, 1]
    assert run("again", *options[2:])[0] == 0
    assert not (tmp_path / "healthy").exists()
    assert "gdsdeploy_gate_open 0\n" in metrics.read_text()
    assert "gdsdeploy_gate_open_until_seconds 0\n" in metrics.read_text()
    assert gate.record_from(record.read_text()).state == gate.CLOSED
    record.unlink()
    assert run("again", *options[2:])[0] == 0
    assert not record.exists(), "there is no verdict that counts today"


def test_slurm_that_is_not_there_is_said(bare: None, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("gdsdeploy.host.process.EXTRA_PATH", str(tmp_path))
    assert "slurm was not told: scontrol show ended with status 127" in run(
        "run", *settings(tmp_path, slurm=True, waivers=EVERYTHING)
    )[1]  # fmt: skip
    code, _, err = run("slurm-health")
    assert code == 1
    assert "slurm was not told" in err


def test_its_time_is_bounded(tmp_path: Path) -> None:
    settings_text = gate.Settings(seconds=0.0, file="").to_json()
    record = gate.judge(EXPECTATION.read_text(), settings_text)
    assert record.state == gate.CLOSED
    assert any("no time left" in gap for gap in record.gaps)
    assert record.seconds < 1


#: name, labels and value as the text format has them
SAMPLE = re.compile(r'^([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (-?[0-9.]+|\+Inf)$')


def test_metrics_are_in_the_text_format() -> None:
    evil = 'a"b\\c\nd'
    findings = [finding("kernel.running", PASS), finding(f"storage.path:/mnt/{evil}", FAIL)]
    record = gate.Record(gate.CLOSED, evil, FAIL, "boot", "2026-11-21T08:00:00Z", 1.5, profile=evil,
                         stack=[["nvidia-fs", "2.19.7"]], findings=[entry.as_dict() for entry in findings])  # fmt: skip
    text = gate.render(record)
    values: dict[str, str] = {}
    declared = set()
    for line in text.splitlines():
        if line.startswith("#"):
            declared.add(line.split()[2])
            continue
        match = SAMPLE.match(line)
        assert match, line
        assert match.group(1) in declared
        values[f"{match.group(1)}{{{match.group(2) or ''}}}"] = match.group(3)
    assert values["gdsdeploy_gate_open{}"] == "0"
    assert values["gdsdeploy_gate_timestamp_seconds{}"] == "1795248000"
    assert values['gdsdeploy_gate_checks{verdict="fail"}'] == "1"
    assert values['gdsdeploy_check_verdict{check="kernel.running",subject=""}'] == "0"
    assert values['gdsdeploy_check_verdict{check="storage.path",subject="/mnt/a\\"b\\\\c d"}'] == "3"
    assert text.endswith("\n")


def test_settings_say_what_is_wrong_with_them() -> None:
    for text, words in (
        ("[]", "a JSON object of version 1"),
        ('{"version": 2}', "version 1"),
        ('{"version": 1, "slrum": true}', "settings.slrum: unknown key"),
        ('{"version": 1, "waivers": [{"check": "a", "until": "", "reason": "b"}]}', "are texts"),
    ):
        with pytest.raises(ValueError, match=words):
            gate.settings_from(text)
    assert gate.settings_from(gate.Settings(seconds=3.0).to_json()) == gate.Settings(seconds=3.0)
