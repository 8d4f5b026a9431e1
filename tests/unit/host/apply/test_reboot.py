from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply import reboot
from gdsdeploy.host.apply.engine import run
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.boot import needed
from gdsdeploy.host.errors import ApplyError
from tests.unit.host.apply.kernel_hosts import check, desired_resource, predicted, short

RUNNING = os.uname().release
DESIRED: dict[str, Any] = {"kernel_release": RUNNING, "modules": ["nvidia", "nvidia-fs"], "allowed": True}
LOADS = [Change("load", name, resource="loaded") for name in DESIRED["modules"]]
PLACED = Change("place", "nvidia.ko", resource="modules")
AFTER = f"kernel {RUNNING}"


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of loaded modules; the files are as they were when they were loaded."""
    monkeypatch.setattr(needed, "_folder_of", lambda name: tmp_path / name)
    monkeypatch.setattr(needed, "file_of", lambda name: f"/lib/modules/{name}.ko")
    for name in DESIRED["modules"]:
        (tmp_path / name).mkdir()
    return tmp_path


def other_file(loaded: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (loaded / name / "notes").mkdir()
    (loaded / name / "notes" / needed.BUILD_ID).write_bytes(b"\x01")

    class File:
        build_id = "02"

    monkeypatch.setattr(needed, "read_module", lambda _: File)


def test_a_host_that_runs_what_is_installed_needs_none(loaded: Path) -> None:
    result = check(loaded, "reboot", DESIRED)
    assert result.changes == []
    assert (result.report["needed"], result.report["running"], result.report["causes"]) == (False, RUNNING, [])
    assert len(result.report["boot_id"]) == 36


def test_another_kernel(loaded: Path) -> None:
    result = check(loaded, "reboot", {**DESIRED, "kernel_release": "9.9"})
    assert short(result.changes) == [("reboot", "kernel 9.9", "kernel")]
    assert result.changes[0].disruption == "reboot"
    assert result.report["causes"][0]["subject"] == RUNNING


def test_a_module_that_was_loaded_from_another_file(loaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_file(loaded, "nvidia-fs", monkeypatch)
    assert short(check(loaded, "reboot", DESIRED).changes) == [("reboot", AFTER, "module")]


def test_modules_that_are_loaded_before_are_no_reason(loaded: Path) -> None:
    (loaded / "nvidia").rmdir()
    assert short(predicted(loaded, "reboot", DESIRED)) == [("reboot", AFTER, "not-loaded")]
    assert predicted(loaded, "reboot", DESIRED, LOADS[0]) == []
    assert short(predicted(loaded, "reboot", DESIRED, LOADS[1])) == [("reboot", AFTER, "not-loaded")]


def test_loaded_modules_whose_files_are_replaced(loaded: Path) -> None:
    assert short(predicted(loaded, "reboot", DESIRED, PLACED)) == [("reboot", AFTER, "replaced")]
    # Signing again does not make another module of it, and files of others are none of the stack's.
    for harmless in (Change("sign", "nvidia.ko", resource="modules"), Change("place", "x", resource="other")):
        assert predicted(loaded, "reboot", DESIRED, harmless) == []
    for name in DESIRED["modules"]:
        (loaded / name).rmdir()
    assert predicted(loaded, "reboot", DESIRED, PLACED, *LOADS) == []


def test_it_only_says_so_and_only_where_that_is_allowed(loaded: Path) -> None:
    host = ManagedHost(root=str(loaded))
    run(host, [desired_resource("reboot", {**DESIRED, "kernel_release": "9.9"})])
    assert host.notes == [f"reboot this host: the running kernel is {RUNNING}, not 9.9"]
    with pytest.raises(ApplyError, match="its profile does not allow one") as caught:
        run(host, [desired_resource("reboot", {**DESIRED, "kernel_release": "9.9", "allowed": False})])
    assert caught.value.kind == "refused"


def test_reasons_are_the_texts_of_the_causes(loaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_file(loaded, "nvidia", monkeypatch)
    (loaded / "nvidia-fs").rmdir()
    reasons = needed.pending(RUNNING, DESIRED["modules"])
    assert [cause.id for cause in reasons.causes] == [needed.MODULE, needed.UNLOADED]
    assert reasons.reasons == [cause.text for cause in reasons.causes]
    assert reasons.unloaded == ["nvidia-fs"]
    assert reboot.causes(reboot.Desired(RUNNING), {"causes": [], "unloaded": []}, ()) == []
