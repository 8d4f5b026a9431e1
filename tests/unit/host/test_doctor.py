"""The first look at a host: what it says first, its verdict, and that all of it is data and narrow text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import __main__ as program, doctor
from gdsdeploy.host.cli import parsers
from gdsdeploy.host.explain import WIDTH
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.watch import document as watch
from tests.unit.host import hosts
from tests.unit.host.patches import patched

#: A host on which data takes nvidia-fs, and nothing is unknown.
FINE = "capable, with a GPU"
#: A row of watch: its process moves data through CPU memory.
ROW: dict[str, Any] = watch.explained(
    {
        "pid": 4711, "start": 5, "program": "python3", "owner": {"kind": "", "name": ""}, "path": "compat",
        "reason": "", "operations": {"compat": 9}, "bounce_rate": 3 << 30, "bounced_bytes": 9 << 30, "beside": "",
    }
)  # fmt: skip


def processes(*rows: dict[str, Any], incomplete: str | None = None) -> dict[str, Any]:
    return {"version": 1, "at": "", "incomplete": incomplete, "processes": list(rows)}


def diagnosed(name: str, patch: dict[str, Any] | None = None, **looked: Any) -> doctor.Diagnosis:
    document = hosts.named(name)
    return doctor.diagnose(facts_from(patched(document, patch) if patch else document), **looked)


def test_a_recorded_host() -> None:
    assert doctor.render(diagnosed("provisioned")).splitlines() == GOLDEN.splitlines()


GOLDEN = """\
gpu1: FAIL: this host has no GPU
  do first: list NVIDIA's devices with lspci -d 10de:, which in a virtual machine are
    those that its host passes through

  os          debian-13
  kernel      6.12.94+deb13-amd64
  driver      550.163.01 open
  nvidia-fs   2.19.7
  libcufile   1.9.1
  GDS         1.9
  OFED, DOCA  none
  GPUs        none

Which rules about versions speak
  warning: nvidia-fs before 2.26.6 moves no data on kernel 6.10 and newer: it compiles
    and loads, and each read and write ends with 0 bytes. Here: nvidia-fs 2.19.7, kernel
    6.12.94 (6.12.94+deb13-amd64). [nvidia-fs-no-io]
  warning: nvidia-fs before 2.26.6 marks its shadow mapping VM_IO; on newer kernels the
    module loads but transfers can fail with EFAULT, so prove a real transfer before
    trusting this pair. Here: nvidia-fs 2.19.7, kernel 6.12.94 (6.12.94+deb13-amd64).
    [nvidia-fs-vm-io]

Path of each mount
  /mnt/nvme (ext4)  COMPAT: the loaded nvme has no hooks for nvidia-fs [nvme.no-hooks]
  not judged, because they hold the system: /; see gdsdeploy explain MOUNT

Processes
  not looked at, because the evidence was saved
"""
NO_DRIVER = {"files": {"/proc/driver/nvidia/version": {"$set": {"error": "ENOENT"}}}}


@pytest.mark.parametrize(
    ("patch", "verdict", "first"),
    [
        (None, "pass", None),
        (NO_DRIVER, "fail", "nvidia.not-installed"),
        ({"files": {"/sys/module/nvidia_fs/version": "1.0.0\n"}}, "fail", "nvidia-fs.other-major"),
        ({"files": {"/proc/self/mountinfo": {"error": "EACCES"}}}, "unknown", None),
    ],
)
def test_the_verdict_and_the_cause_that_comes_first(patch: Any, verdict: str, first: str | None) -> None:
    diagnosis = diagnosed(FINE, patch)
    assert (diagnosis.verdict, diagnosis.first and diagnosis.first.id) == (verdict, first)


def test_what_is_broken_comes_before_what_is_slow() -> None:
    order = [cause.id for cause in diagnosed("bare, as recorded").weighed.causes]
    assert order[:2] == ["gpu.none", "nvidia.not-installed"]


def test_a_process_that_bounces_is_a_failure_and_one_that_is_not_looked_at_is_unknown() -> None:
    bounced = diagnosed(FINE, processes=processes(ROW))
    assert (bounced.verdict, bounced.first and bounced.first.id) == ("fail", "process.bounces")
    assert "process 4711 (python3) moves 3.0 GiB/s through CPU memory" in doctor.render(bounced)
    idle = processes({**ROW, "bounce_rate": 0})
    assert diagnosed(FINE, processes=idle).verdict == "pass"
    hidden = diagnosed(FINE, processes=processes(incomplete="7 processes could not be read: permission denied"))
    assert hidden.verdict == "unknown"
    assert "  - 7 processes could not be read" in doctor.render(hidden)


def test_a_plain_user_reads_what_could_not_be_read() -> None:
    assert "- the evidence was collected without root" in doctor.render(
        diagnosed("provisioned", {"host": {"uid": 1000}})
    )


@pytest.mark.parametrize("name", sorted(hosts.HOSTS))
def test_every_host_gets_an_answer_of_one_screen(name: str) -> None:
    diagnosis = diagnosed(name)
    text = doctor.render(diagnosis)
    assert [line for line in text.splitlines() if len(line) > WIDTH and " " in line.strip()] == []
    assert len(text.splitlines()) < 60
    assert not re.search(r"\bNone\b", text)
    report = doctor.as_document(diagnosis)
    assert json.loads(json.dumps(report)) == report


def test_as_data() -> None:
    report = doctor.as_document(diagnosed("provisioned"))
    documented = re.findall(
        r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", DOCS.read_text().split("## As data")[1], re.MULTILINE))
    )
    assert set(report) == set(documented)
    assert report["stack"][2] == {"part": "driver", "version": "550.163.01 open", "unknown": ""}
    assert [(rule["id"], rule["says"]) for rule in report["rules"]] == [
        ("nvidia-fs-no-io", "warning"), ("nvidia-fs-vm-io", "warning")
    ]  # fmt: skip
    assert [(mount["mount"], mount["path"]) for mount in report["mounts"]] == [("/mnt/nvme", "compat")]
    assert (report["not_judged"], report["processes"]) == (["/"], None)


DOCS = Path(__file__).parents[3] / "docs" / "doctor.md"


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        (None, parsers.OK),
        (NO_DRIVER, parsers.FAILED),
        ({"files": {"/proc/self/mountinfo": {"error": "EACCES"}}}, parsers.UNDECIDED),
    ],
)
def test_the_exit_status_is_the_verdict(
    patch: Any, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = hosts.named(FINE)
    (tmp_path / "x.json").write_text(json.dumps(patched(document, patch) if patch else document))
    assert program.main(["doctor", "--json", "--evidence", str(tmp_path / "x.json")]) == status
    assert json.loads(capsys.readouterr().out)["host"] == "gpu1"


def test_processes_count_while_the_evidence_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "INTERVAL", 0.0)
    facts, looked = doctor.examine(lambda: facts_from(hosts.named(FINE)))
    assert facts.name == "gpu1"
    assert set(looked) >= {"processes", "incomplete"}
