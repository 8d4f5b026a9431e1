"""Checks on hosts as a whole: every check runs, every one is seen failing, and every failure says what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN
from tests.unit.host.checks.changes import BARE, EXPECTATION, GOOD, HOSTS, findings, verdicts
from tests.unit.host.checks.faults import FAULTS
from tests.unit.host.patches import patched


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_comes_with_words(fault: str) -> None:
    """Which checks fail is the case's to say."""
    for finding in findings(FAULTS[fault].document()).values():
        if finding.verdict not in (PASS, NOT_APPLICABLE):
            assert all((finding.hint, finding.expected, finding.found)), finding


@pytest.mark.parametrize(("release", "logged_values"), [("1.15.1", 33), ("1.20.0", 63)])
def test_values_of_hosts_with_a_gpu_are_the_intended_ones(release: str, logged_values: int) -> None:
    document = json.loads((HOSTS / f"h100-libcufile-{release}.json").read_text())
    config = {"properties": {"allow_compat_mode": True, "io_batchsize": 128, "posix_pool_slab_count": [128, 64, 64]}}
    document["files"]["/etc/cufile.json"] = json.dumps(config)
    expectation = replace(EXPECTATION, libcufile_version=release)
    text = findings(document, expectation)["cufile.effective"].found
    assert text == f"3 values as intended, of {logged_values} that libcufile logs"


def test_every_check_is_seen_failing() -> None:
    names = {name.partition(":")[0] for case in FAULTS.values() for name in case.steps[0]["failing"]}
    names |= {name.partition(":")[0] for name, verdict in verdicts(BARE).items() if verdict == FAIL}
    # By cases of their own: they depend on what the fleet asks for, or need a host with a GPU.
    elsewhere = {"odirect.bypass", "odirect.conditions", "driver.services", "gpu.present"}
    elsewhere |= {check.id for check in checks.listed() if check.id.startswith(("peermem.", "rdma.", "topology."))}
    assert {check.id for check in checks.listed()} - names == elsewhere


GDSCHECK = HOSTS.parent / "gdscheck"
LIVE = HOSTS.parent / "gdscheck-live"
FORCED = LIVE / "gdscheck-p.libcufile-1.9.1.3.forced-compat.txt"
HOOKLESS = LIVE / "gdscheck-p.libcufile-1.9.1.3.no-sections.txt"


def recorded(name: str) -> Path:
    return GDSCHECK / f"gdscheck-p.libcufile-{name}.txt"


@pytest.mark.parametrize(
    ("recording", "status", "verdict", "words"),
    [
        (recorded("1.9.1.ngpu0.no-nvidia-fs.noconfig"), None, PASS, "for a reason found here too"),
        (
            recorded("1.15.1.json-badtype"), None, FAIL,
            "which nothing found here explains: json type mismatch",
        ),
        (recorded("1.9.1.no-nvfs.compat-false"), None, FAIL, "nvidia-fs driver is not loaded"),
        (recorded("1.9.1.nvfs-version-2.3"), None, FAIL, "it sees nvidia-fs 2.3; loaded here is"),
        (
            recorded("1.9.1.ngpu1.nvfs-2.28.proprietary-driver"), None, FAIL,
            "it sees the proprietary driver; found here: open",
        ),
        (
            recorded("1.9.1.ngpu1.no-nvidia-fs.noconfig"), None, FAIL,
            "it does not see nvidia-fs, which is loaded here",
        ),
        (recorded("1.20.0.ngpu1.nvfs-2.28.open-driver"), None, FAIL, "the nvme driver has no hooks for nvidia-fs"),
        (FORCED, 0, PASS, "compat: the same driver, nvidia-fs and storage"),
        (HOOKLESS, 0, PASS, "compat: the same driver, nvidia-fs and storage"),
        (HOOKLESS, 134, UNKNOWN, "gdscheck ended with status 134 after a whole report"),
        (
            recorded("1.9.1.nvfs-version-2.3"), 0, FAIL,
            "an impossible direct path: the loaded nvidia-fs 2.3 is older than the minimum 2.12",
        ),
    ],
)  # fmt: skip
def test_gdscheck_is_held_against_the_other_findings(
    recording: Path, status: int | None, verdict: str, words: str
) -> None:
    text, _, ended = recording.read_text().rstrip().rpartition("\nrc=")
    if recording in (FORCED, HOOKLESS):
        # Recorded with nvidia-fs 2.28, where the host runs 2.19.7.
        text = text.replace("nvidia_fs version:  2.28 ", "nvidia_fs version:  2.19 ")
    run = {"stdout": text, "stderr": "", "status": int(ended) if status is None else status}
    finding = findings({**GOOD, "commands": {**GOOD["commands"], "gdscheck": {**GOOD["commands"]["gdscheck"], **run}}})
    assert (finding["gdscheck.agrees"].verdict, words in finding["gdscheck.agrees"].found) == (verdict, True), finding


def test_a_cut_gdscheck_cannot_be_told() -> None:
    text, _, _ = recorded("1.9.1.ngpu1.nvfs-2.28.open-driver").read_text().partition("GPU INFO")
    document = patched(GOOD, {"commands": {"gdscheck": {"stdout": text, "stderr": "", "status": 0}}})
    assert findings(document)["gdscheck.agrees"].verdict == UNKNOWN
