from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.__main__ import main
from gdsdeploy.host.apply import reboot
from gdsdeploy.host.apply.engine import run
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.boot import arguments, needed
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


def test_a_reboot_that_brought_nothing_is_an_error_with_its_reason(loaded: Path) -> None:
    before = {**DESIRED, "after_boot": "0"}
    host = ManagedHost(root=str(loaded))
    run(host, [desired_resource("reboot", before)])
    (loaded / "nvidia").rmdir()
    with pytest.raises(ApplyError, match="not bring the locked stack: the module nvidia is not loaded") as caught:
        run(host, [desired_resource("reboot", before)])
    assert (caught.value.kind, host.notes) == ("verify", [])


def test_a_host_that_has_not_rebooted_is_an_error(loaded: Path) -> None:
    now = {**DESIRED, "after_boot": check(loaded, "reboot", DESIRED).report["boot_id"]}
    assert short(check(loaded, "reboot", now).changes) == [("reboot", AFTER, "same-boot")]
    with pytest.raises(ApplyError, match="has not rebooted"):
        run(ManagedHost(root=str(loaded)), [desired_resource("reboot", now)])


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


@pytest.fixture
def booted(tmp_path: Path) -> Path:
    """A host that was booted with an argument, and with NVMe multipath."""
    for path, text in {
        "proc/cmdline": "root=/dev/vda1 ro iommu=pt quiet\n",
        "proc/sys/kernel/random/boot_id": "this-boot\n",
        "proc/modules": "nvme_core 200704 3 nvme, Live 0x0\n",
        "sys/module/built_in/parameters/x": "1\n",
        "sys/module/nvme_core/parameters/multipath": "Y\n",
        "sys/module/nvme_core/parameters/io_timeout": "30\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "parameters", "subjects"),
    [
        (["iommu=pt", "quiet"], {"nvme_core.multipath": "1", "nvme_core.io_timeout": "0x1e"}, []),
        (["iommu=off"], {}, [(needed.ARGUMENT, "iommu=off")]),
        (["nokaslr", "iommu=pt"], {}, [(needed.ARGUMENT, "nokaslr")]),
        # The argument that this boot doesn't have is why the parameter is another one.
        (["nvme_core.multipath=N"], {"nvme_core.multipath": "N"}, [(needed.ARGUMENT, "nvme_core.multipath=N")]),
        ([], {"nvme_core.multipath": "N"}, [(needed.PARAMETER, "nvme_core.multipath")]),
        ([], {"nvme_core.other": "N", "x.y": "1", "../../etc": "1"}, []),
        # Without an argument, no boot changes what is built into the kernel.
        ([], {"built_in.x": "2"}, []),
    ],
)
def test_what_the_kernel_was_booted_with(
    booted: Path, arguments: list[str], parameters: dict[str, str], subjects: list[tuple[str, str]]
) -> None:
    causes = needed.booted_otherwise(arguments, parameters, str(booted))
    assert [(cause.id, cause.subject) for cause in causes] == subjects


def test_an_argument_that_was_taken_out_in_this_boot(booted: Path) -> None:
    place = booted / arguments.PATH[1:]
    place.parent.mkdir(parents=True)
    place.write_text(arguments.ArgumentRecord(left=arguments.Left("this-boot", ["iommu=pt", "gone=1"])).to_json())
    (cause,) = needed.booted_otherwise([], {}, str(booted))
    assert (cause.id, cause.subject) == (needed.ARGUMENT, "iommu=pt")
    assert needed.booted_otherwise(["iommu=pt"], {}, str(booted)) == []
    (booted / "proc/sys/kernel/random/boot_id").write_text("next-boot\n")
    assert needed.booted_otherwise([], {}, str(booted)) == []


def test_modules_can_be_exchanged_without_a_reboot_and_arguments_cannot(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_file(loaded, "nvidia", monkeypatch)
    assert needed.pending(RUNNING, DESIRED["modules"]).by_reload
    word = "gdsdeploy_test=1"
    result = check(loaded, "reboot", {**DESIRED, "arguments": [word]})
    assert (short(result.changes), result.report["observed"]["by_reload"]) == ([("reboot", AFTER, "argument")], False)
    assert not needed.pending("9.9", []).by_reload


def test_the_command_takes_arguments_and_parameters(loaded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["boot", "needed", "--json", "--kernel", RUNNING, "--argument=gdsdeploy_test=1", "--parameter=x.y=1"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [cause["subject"] for cause in answer["causes"]] == ["gdsdeploy_test=1"]
    assert (answer["needed"], answer["by_reload"]) == (True, False)
