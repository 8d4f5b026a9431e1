"""``explain HOST PID``: why one process takes the path that it takes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from gdsdeploy.host.explain import process
from gdsdeploy.host.facts import facts_from
from tests.unit.host.checks.changes import EXPECTATION, GOOD, findings
from tests.unit.host.checks.faults_cufile import WHEEL, job, with_config
from tests.unit.host.explain.test_explain_causes import OF_PROCESSES

PID = 4711
NOTHING = [0, 0, 0, 0, 0, 0, 0]


def counted(n: int, nvfs: int, posix: int, unaligned: int = 0) -> dict[str, Any]:
    read = [n, nvfs, 0, posix, unaligned, 0, n * 4096]
    rows = [["GPU-11111111-1111-1111-1111-111111111111", read, NOTHING]]
    record = {"version": 10, "size": 32256, "read_bytes": n * 4096, "write_bytes": 0, "gpus": rows}
    return {"counters": record, "at": 1.0}


def explained(*changes: Any) -> process.ExplainedProcess:
    document = copy.deepcopy(GOOD)
    for change in changes:
        change(document)
    return process.explain_process(facts_from(document), PID)


def ids(answer: process.ExplainedProcess) -> list[str]:
    return [cause.id for cause in answer.causes]


def test_a_process_that_takes_the_direct_path_has_no_cause() -> None:
    answer = explained(job(statistics=counted(10, 10, 0), nvidia_fs=True))
    assert (answer.route.path, ids(answer)) == ("nvidia-fs", [])
    text = process.render(answer)
    assert text.startswith("process 4711 (train) of /system.slice/train.service: nvidia-fs\n")
    assert "since it opened cuFile: 40960 bytes read, 0 written, 0 of them through CPU memory" in text


def test_each_cause_of_a_process() -> None:
    wheel = {"libraries": [WHEEL], "wheels": {WHEEL: ["nvidia_cufile_cu12-1.13.1.3.dist-info"]}}
    whole = explained(job(statistics=counted(10, 0, 10, 4), nvidia_fs=False, **wheel))
    assert ids(whole)[:3] == ["process.no-nvidia-fs", "process.own-libcufile", "process.unaligned"]
    off = explained(job(statistics={"reason": "statistics-off"}, nvidia_fs=True))
    assert ids(off) == ["process.not-counted"]
    assert "profile.cufile_stats" in off.causes[0].fix
    assert {f"process.{name}" for name in OF_PROCESSES} == {*ids(whole)[:3], *ids(off)}
    assert "CPU memory" in process.render(whole)


def test_its_own_configuration_and_the_mount_of_its_files() -> None:
    forced = with_config({"config": {"properties": {"force_compat_mode": True}}})
    files = [["/mnt/nvme/a.bin", "/mnt/nvme", "ext4", True], ["/elsewhere/b", "/elsewhere", "xfs", False]]
    answer = explained(forced, job(statistics=counted(10, 0, 10), nvidia_fs=True, files=files))
    assert ids(answer)[0] == "cufile.force-compat"
    # The loaded nvme of that host has no hooks.
    assert answer.files[0] == ("/mnt/nvme/a.bin", "compat")
    assert any(cause.id == "nvme.no-hooks" for cause in answer.causes)
    document = process.as_document(answer)
    assert json.loads(json.dumps(document))["files"][0] == {"path": "/mnt/nvme/a.bin", "mount_path": "compat"}


def test_files_of_a_container_are_not_those_of_the_host() -> None:
    files = [["/mnt/nvme/a.bin", "/mnt/nvme", "ext4", True]]
    answer = explained(job(statistics=counted(10, 0, 10), nvidia_fs=True, container=True, files=files))
    assert answer.files == (("/mnt/nvme/a.bin", "not judged"),)
    assert "nvme.no-hooks" not in ids(answer)
    assert "nothing that was examined explains" in process.render(answer)


@pytest.mark.parametrize("change", [lambda d: d["processes"].clear(), lambda d: d["processes"]["libcufile"].clear()])
def test_processes_that_are_not_known(change: Any) -> None:
    with pytest.raises(process.NoSuchProcessError):
        explained(change)


def test_another_process() -> None:
    with pytest.raises(process.NoSuchProcessError, match=r"process 1 has no libcufile loaded .*4711"):
        process.explain_process(facts_from(GOOD), 1)


def test_validate_says_what_processes_do_beside_what_the_proof_says() -> None:
    document = copy.deepcopy(GOOD)
    before = findings(document, EXPECTATION)["storage.path:/mnt/nvme"]
    job(statistics=counted(10, 0, 10), files=[["/mnt/nvme/a.bin", "/mnt/nvme", "ext4", True]])(document)
    after = findings(document, EXPECTATION)["storage.path:/mnt/nvme"]
    line = "process 4711 (train) of /system.slice/train.service has files here, and its I/O took: compat"
    assert [*before.evidence, line] == after.evidence
    assert (before.verdict, before.found) == (after.verdict, after.found)
