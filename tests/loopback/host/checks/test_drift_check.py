"""What the check of drift says of a real host that is as it was left, and of one where somebody moved packages."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.evidence import packages as collector
from gdsdeploy.host.evidence.recorder import EvidenceRequest, Recorder
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding

HOSTS = Path(__file__).parents[3] / "evidence" / "hosts"
PINNED = json.loads((HOSTS / "light-pinned.json").read_text())
MOVED = json.loads((HOSTS / "light-moved.json").read_text())
EXPECTATION = from_json((HOSTS / "lab-vm.expectation.json").read_text())
Document = dict[str, Any]


def drift(document: Document) -> Finding:
    return next(row for row in checks.run(facts_from(document), EXPECTATION) if row.check == "packages.drift")


def changed(document: Document, change: Callable[[Document], object]) -> Document:
    copied = copy.deepcopy(document)
    change(copied)
    return copied


def test_a_pinned_host_passes() -> None:
    finding = drift(PINNED)
    assert (finding.verdict, finding.found) == (PASS, f"nothing would move {len(EXPECTATION.packages)} packages")


def test_what_moved_is_told_with_when_and_by_whom() -> None:
    finding = drift(MOVED)
    assert finding.verdict == FAIL
    assert finding.evidence == [
        (
            "gds-tools moved from 1.9.1.3~12.4.1-2 to nothing on 2026-11-21 03:59:03 by "
            "'apt-get remove -y -q --allow-change-held-packages gds-tools' (admin (1000))"
        ),
        (
            "nvidia-modprobe moved from 570.133.07-1 to 580.159.04-1 on 2026-11-21 03:59:00 by "
            "'apt-get install -y -q --allow-change-held-packages /tmp/nvidia-modprobe.deb' (admin (1000))"
        ),
    ]
    assert "Provision the host again" in finding.hint


def test_a_change_by_dpkg_alone_has_no_command() -> None:
    bare = changed(MOVED, lambda d: d["excerpts"].pop("/var/log/apt/history.log"))
    assert "by dpkg alone, or by a command that no log has" in drift(bare).found


def test_rotated_logs_count() -> None:
    def rotate(document: Document) -> None:
        for path in ("/var/log/dpkg.log", "/var/log/apt/history.log"):
            document["excerpts"][path + ".2.gz"] = document["excerpts"][path]
            document["excerpts"][path] = {"pattern": "", "lines": []}

    assert drift(changed(MOVED, rotate)) == drift(MOVED)


def test_a_move_without_logs_is_still_a_move() -> None:
    assert drift(changed(MOVED, lambda d: d.pop("excerpts"))).found.endswith(
        "nvidia-modprobe moved from 570.133.07-1 to 580.159.04-1; no log of the package manager was looked at"
    )


def test_a_host_whose_pins_are_gone_is_told_what_would_happen() -> None:
    """The same host, put back by hand to the locked versions, without pins."""
    text = PINNED["commands"]["apt-policy"]["stdout"]
    newer = text.replace(
        "libcuda1:\n  Installed: 550.163.01-2\n  Candidate: 550.163.01-2\n  Version table:\n",
        "libcuda1:\n  Installed: 550.163.01-2\n  Candidate: 580.1-1\n  Version table:\n     580.1-1 600\n"
        "        600 http://mirror.example/cuda  Packages\n",
    )
    assert newer != text
    finding = drift(changed(PINNED, lambda d: d["commands"]["apt-policy"].update(stdout=newer)))
    assert finding.verdict == FAIL
    assert finding.found == "libcuda1 would become 580.1-1 from http://mirror.example/cuda  Packages"


def test_a_package_that_is_not_held_is_named() -> None:
    def loosen(document: Document) -> None:
        shown = document["commands"]["dpkg-query"]
        shown["stdout"] = shown["stdout"].replace(
            "libcuda1\t550.163.01-2\tamd64\thi ", "libcuda1\t550.163.01-2\tamd64\tii "
        )

    assert drift(changed(PINNED, loosen)).found == "libcuda1 is not held"


@pytest.mark.parametrize("missing", ["apt-policy", "dpkg-query"])
def test_what_was_not_looked_at_is_not_guessed(missing: str) -> None:
    assert drift(changed(PINNED, lambda d: d["commands"].pop(missing))).verdict == UNKNOWN


def test_logs_are_read_for_the_stack_alone(tmp_path: Path) -> None:
    (tmp_path / "var/log/apt").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").touch()
    (tmp_path / "var/log/dpkg.log").write_text(
        "2026-11-21 03:59:00 upgrade libcuda1:amd64 1 2\n2026-11-21 03:59:00 upgrade libcuda11:amd64 1 2\n"
        "2026-11-21 03:59:00 status installed libcuda1:amd64 2\n"
    )
    recorder = Recorder(root=str(tmp_path))
    collector.collect_drift(recorder, EvidenceRequest(packages=("libcuda1",)))
    lines = recorder.document["excerpts"]["/var/log/dpkg.log"]["lines"]
    assert lines == ["2026-11-21 03:59:00 upgrade libcuda1:amd64 1 2"]
    assert collector.collect_drift(recorder, replace(EvidenceRequest(), packages=())) is None


RPM = {
    "commands": {"rpm": {"status": 0, "stdout": "libcufile\t1.15.1-1\tx86_64\tii\n", "stderr": ""}},
    "files": {"/etc/dnf/plugins/versionlock.list": "libcufile-0:1.15.1-1.*\n"},
    "excerpts": {
        "/var/log/dnf.rpm.log": {"lines": [
            "2026-11-20T10:00:00+0000 SUBDEBUG Installed: libcufile-1.14.0-1.x86_64",
            "2026-11-21T10:00:05+0000 SUBDEBUG Upgrade: libcufile-1.15.1-1.x86_64",
            "2026-11-21T10:00:06+0000 SUBDEBUG Upgraded: libcufile-1.14.0-1.x86_64",
        ]},
        "/var/log/dnf.log": {"lines": [
            "2026-11-20T09:59:00+0000 DDEBUG Command: dnf install nvidia-gds",
            "2026-11-21T10:00:00+0000 DDEBUG Command: dnf upgrade -y",
        ]},
    },
}  # fmt: skip


def test_what_dnf_moved_is_told_by_its_logs() -> None:
    expectation = replace(EXPECTATION, packages={"libcufile": "1.15.1-1"})
    assert next(i for i in checks.run(facts_from(RPM), expectation) if i.check == "packages.drift").verdict == PASS
    expectation = replace(EXPECTATION, packages={"libcufile": "1.14.0-1"})
    finding = next(i for i in checks.run(facts_from(RPM), expectation) if i.check == "packages.drift")
    assert finding.found == "libcufile moved from 1.14.0-1 to 1.15.1-1 on 2026-11-21 10:00:05 by 'dnf upgrade -y'"


def test_a_package_that_dnf_may_move_is_named() -> None:
    document = {**RPM, "files": {"/etc/dnf/plugins/versionlock.list": ""}}
    expectation = replace(EXPECTATION, packages={"libcufile": "1.15.1-1"})
    finding = next(i for i in checks.run(facts_from(document), expectation) if i.check == "packages.drift")
    assert finding.found == "libcufile is not locked"
