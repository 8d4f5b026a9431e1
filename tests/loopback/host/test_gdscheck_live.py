"""Debian's real gdscheck of both releases, and through it every release of libcufile, whole runs and failing ones."""

from __future__ import annotations

from typing import Any

import pytest

from gdsdeploy.host.gdscheck import document, reader
from gdsdeploy.host.gdscheck.document import FROM_ROWS, release_of
from tests.cufile import gdschecks, libraries
from tests.cufile.gdschecks import (
    DIRECT_ONLY,
    FORCED,
    HOOKS,
    IOMMU,
    NO_NVIDIA_FS,
    PROPRIETARY,
    RICH,
    SYSFS,
    TOO_LARGE,
    VERSIONS,
    Printed,
    gdscheck,
)

DEBIAN = tuple(VERSIONS)


def parsed(printed: Printed) -> dict[str, Any]:
    """The JSON object of the run, as the command line makes it."""
    return document.document(reader.read_recording(printed.text.encode(), printed.status), "live")


@pytest.mark.parametrize("debian", DEBIAN)
def test_a_whole_run_of_debians_gdscheck(debian: str) -> None:
    table = parsed(gdscheck(debian, VERSIONS[debian], proc=HOOKS, sys_files=SYSFS))
    assert (table["release"], table["nvidia_fs_version"], table["exit_status"]) == (VERSIONS[debian], "2.28", 0)
    assert (table["complete"], table["strays"], table["errors"]) == (True, [], [])
    assert table["storage"]["NVMe"] == {
        "supported": True,
        "paths": ["nvfs", "compat"],
        "state": "direct",
        "value": "Supported",
    }
    assert table["storage"]["NFS"]["supported"] is False
    assert table["config"]["properties.posix_pool_slab_count"] == [128, 64, 32]
    (gpu,) = table["gpus"]
    assert (gpu["name"], gpu["bar_mib"], gpu["iommu"]) == ("stand-in GPU 0", 131072, "disabled")
    # 1.4.0 says of a model that it does not know neither that it supports GDS nor that it does not.
    assert (table["verdict"], gpu["supports_gds"]) == (("compat", False) if debian == "debian-12" else ("direct", True))
    assert table["platform"]["iommu_enabled"] is False
    assert table["platform"]["driver"] == (None if debian == "debian-12" else "open")


@pytest.mark.parametrize("debian", DEBIAN)
def test_without_libcuda_the_loader_stops_it(debian: str) -> None:
    printed = gdscheck(debian, VERSIONS[debian], libcuda=False)
    report = parsed(printed)
    assert (printed.status, report["verdict"], report["storage"]) == (127, "refused", {})
    assert report["reasons"][0].startswith("the program can't start: libcuda.so.1 is not installed")


@pytest.mark.parametrize("debian", DEBIAN)
@pytest.mark.parametrize(
    ("config", "proc", "code", "words"),
    [
        (DIRECT_ONLY, NO_NVIDIA_FS, 5001, "the library found no nvidia-fs"),
        ('{"properties": {"use_poll_mode": 1}}', {}, 5002, "the value of properties.use_poll_mode has a wrong type"),
        ('{"properties": {', {}, 5002, "/etc/cufile.json is not JSON"),
        ('{"properties": {"io_batchsize": 5000}}', {}, 5002, "a value is rejected: invalid directIO size"),
        (TOO_LARGE, {}, 5002, "too large"),
        (gdschecks.SECTIONS, {"driver/nvidia-fs/version": "version: 3.1\n"}, 5004, "another major version"),
    ],
    ids=["no-nvidia-fs", "wrong-type", "broken", "out-of-range", "aborts", "version"],
)
def test_failing_runs_of_debians_gdscheck(
    debian: str, config: str, proc: dict[str, str | None], code: int, words: str
) -> None:
    printed = gdscheck(debian, VERSIONS[debian], config=config, proc=proc)
    report = parsed(printed)
    assert printed.status != 0
    assert report["verdict"] == "refused"
    assert code in [error["code"] for error in report["errors"]]
    assert words in report["reasons"][0]
    assert not any(row["supported"] for row in report["storage"].values())


@pytest.mark.parametrize("version", libraries.RELEASES)
def test_every_release_in_every_state(version: str) -> None:
    """Direct, without hooks, without nvidia-fs, with the IOMMU on, with the proprietary driver: all end with 0."""
    release = tuple(int(part) for part in version.split(".")[:2])
    direct = parsed(gdscheck("debian-13", version, proc=HOOKS, sys_files=SYSFS))
    assert direct["verdict"] == ("direct" if release > (1, 4) else "compat")
    assert (direct["release"], direct["release_from"]) == (version, "header")
    assert (direct["storage"]["NVMe"]["supported"], direct["storage"]["SCSI"]["supported"]) == (True, False)
    assert direct["storage"]["NVMe"]["paths"] == ["nvfs", "compat"]
    assert direct["storage"]["SCSI"]["paths"] == ["compat"]
    assert direct["strays"] == []
    cases = {
        "no hooks": gdscheck("debian-13", version, sys_files=SYSFS),
        "IOMMU": gdscheck("debian-13", version, proc=HOOKS, sys_files=IOMMU),
        "proprietary": gdscheck("debian-13", version, proc={**HOOKS, **PROPRIETARY}, sys_files=SYSFS),
    }
    reports = {name: parsed(printed) for name, printed in cases.items()}
    assert {printed.status for printed in cases.values()} == {0}
    assert reports["no hooks"]["verdict"] == "compat"
    assert not any(row["supported"] for row in reports["no hooks"]["storage"].values())
    assert any("no storage driver is registered" in reason for reason in reports["no hooks"]["reasons"])
    assert reports["IOMMU"]["verdict"] == direct["verdict"]
    assert reports["IOMMU"]["platform"]["iommu_enabled"] is True
    assert any("IOMMU" in warning for warning in reports["IOMMU"]["warnings"])
    # Up to 1.8 the driver is not told.
    assert reports["proprietary"]["verdict"] == ("broken" if release > (1, 4) else "compat")


@pytest.mark.parametrize("version", libraries.RELEASES)
def test_forced_compat_mode_has_no_header_and_its_rows_bound_the_release(version: str) -> None:
    printed = gdscheck("debian-13", version, config=FORCED, proc=HOOKS, sys_files=SYSFS)
    recording = reader.read_recording(printed.text.encode(), printed.status)
    assert (recording.report.release, recording.report.verdict) == ("", "compat")
    bounds, source = release_of(recording.report)
    assert bounds is not None
    low, _, high = bounds.partition("-")
    numbers = [tuple(int(part) for part in words.split(".")) for words in (low, high or low)]
    release = tuple(int(part) for part in version.split(".")[:2])
    assert (source, numbers[0] <= release <= numbers[1]) == (FROM_ROWS, True), bounds
    assert parsed(printed)["reasons"] == ["the configuration forces compat mode (properties.force_compat_mode)"]


@pytest.mark.parametrize("version", ["1.4.0.31", "1.15.1.6", "1.20.0.107"])
def test_mount_tables_and_rdma_are_typed(version: str) -> None:
    report = parsed(gdscheck("debian-13", version, config=RICH, proc=HOOKS, sys_files=SYSFS))
    assert report["complete"]
    assert report["storage"]["NVMe"]["state"] == "disabled"
    assert report["storage"]["NVMe"]["supported"] is False
    ((mount, addresses),) = report["config"]["fs.nfs.mount_table"].items()
    assert "/tmp" in mount
    assert addresses == ["10.0.0.1", "127.0.0.1"]
    assert report["config"]["properties.rdma_dynamic_routing"] is True
    assert report["config"]["properties.rdma_dynamic_routing_order"] == ["GPU_MEM", "SYS_MEM"]
    assert (report["rdma"]["dmabuf"], report["rdma"]["peerdirect"]) == (True, False)
    assert (report["rdma"]["devices"], report["rdma"]["library"]) == (True, False)
    # From 1.18 addresses are not looked at where the RDMA library is not loaded.
    down = 0 if version.startswith("1.20") else 2
    assert (report["rdma"]["up"], report["rdma"]["down"]) == (0, down)


@pytest.mark.parametrize("version", libraries.RELEASES)
def test_the_librarys_log_holds_the_same_report(version: str) -> None:
    printed = parsed(gdscheck("debian-13", version))
    answer = libraries.library(version).ask(gdschecks.SECTIONS)
    logged = document.document(reader.read_recording(answer.log.encode()), "log")
    assert logged["kind"] == "cufile.log"
    for key in ("release", "nvidia_fs_version", "storage", "rdma", "config", "verdict", "complete"):
        assert logged[key] == printed[key], key
    assert (
        [gpu["supports_gds"] for gpu in logged["gpus"]] == [gpu["supports_gds"] for gpu in printed["gpus"]] == [False]
    )
