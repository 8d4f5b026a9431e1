"""When an exchange of modules is refused; the exchange itself is tried under a real kernel in tests/lab."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gdsdeploy.host import __main__ as program
from gdsdeploy.host.apply import gpu, unload
from gdsdeploy.host.archive import pack
from gdsdeploy.host.boot import needed
from gdsdeploy.host.boot.present import boot_id
from gdsdeploy.host.errors import RolloutError
from gdsdeploy.host.rollout import reload
from tests.unit.host.kmod.kmod_elf import write_module

NAMES = ("nvidia_fs", "nvidia")
OTHER_ID = "11111111-1111-1111-1111-111111111111"


class ReloadHost:
    """A kernel with two modules loaded; what it says of them can be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uses = reload.Use([], [])
        self.files = {name: str(write_module(folder / f"{name}.ko", name)) for name in NAMES}
        #: what is loaded is what is installed
        self.same = True


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReloadHost:
    machine = ReloadHost(tmp_path / "modules")
    rows = [{"name": name, "references": 0, "users": []} for name in NAMES]
    monkeypatch.setattr(gpu, "modules", lambda root="/", names=(): rows)
    monkeypatch.setattr(reload, "stack_use", lambda of, root="/": machine.uses)
    monkeypatch.setattr(needed, "file_of", machine.files.__getitem__)
    monkeypatch.setattr(reload, "_is_other", lambda name, file: not machine.same)
    monkeypatch.setattr(reload, "FOLDER", str(tmp_path / "run"))
    monkeypatch.setattr(reload, "MARKER", str(tmp_path / "run/reload.json"))
    monkeypatch.setattr(pack, "PLACE", str(tmp_path / "kept"))
    return machine


def plan(kernel: str = "") -> reload.Plan:
    return reload.plan(boot_id(), "plan-1", kernel)


def test_what_is_installed_already_needs_nothing(host: ReloadHost) -> None:
    result = plan()
    assert (result.needed, result.safe, result.modules) == (False, True, list(NAMES))
    assert reload.exchange(boot_id(), "plan-1")["did"] == "nothing to do"


def test_another_boot_is_left_alone(host: ReloadHost) -> None:
    host.same = False
    with pytest.raises(RolloutError) as caught:
        reload.exchange(OTHER_ID, "plan-1")
    assert caught.value.kind == "boot"


def test_what_was_not_kept_is_not_unloaded(host: ReloadHost) -> None:
    host.same = False
    result = plan()
    assert (result.needed, result.safe) == (True, False)
    assert "could not be put back" in result.reasons[0]
    assert "rollout keep --id plan-1" in result.reasons[0]
    with pytest.raises(RolloutError) as caught:
        reload.exchange(boot_id(), "plan-1")
    assert caught.value.kind == "unsafe"
    assert not Path(reload.MARKER).exists()


def test_every_reason_is_said(host: ReloadHost, tmp_path: Path) -> None:
    host.uses = reload.Use(["python3 (process 7) has /dev/nvidia0 open"], [])
    host.files["nvidia_fs"] = ""
    broken = tmp_path / "broken.ko"
    broken.write_bytes(b"\x7fELF damaged")
    host.files["nvidia"] = str(broken)
    words = " | ".join(plan("9.9.9").reasons)
    assert f"the running kernel is {os.uname().release}, not 9.9.9" in words
    assert "process 7" in words
    assert "modprobe finds no file for the module nvidia_fs" in words
    assert "broken.ko" in words


def test_the_unit_of_peermem_unloads_its_module_itself(host: ReloadHost, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"name": name, "references": 0, "users": []} for name in ("nvidia_peermem", *NAMES)]
    monkeypatch.setattr(gpu, "modules", lambda root="/", names=(): rows)
    host.files["nvidia_peermem"] = host.files["nvidia"]
    assert plan().modules == ["nvidia_peermem", *NAMES]
    host.uses = reload.Use([], [reload.PEERMEM_UNIT])
    result = plan()
    assert (result.modules, result.services) == (list(NAMES), [reload.PEERMEM_UNIT])


def test_what_provisioning_unloaded_comes_back_with_the_others(
    host: ReloadHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"name": "nvidia", "references": 0, "users": []}]
    monkeypatch.setattr(gpu, "modules", lambda root="/", names=(): rows)
    assert plan().modules == ["nvidia"]
    monkeypatch.setattr(unload, "recorded", lambda _: ["nvidia_fs", "nvidia_peermem", reload.PEERMEM_UNIT])
    host.files["nvidia_peermem"] = host.files["nvidia"]
    result = plan()
    assert (result.modules, result.services) == (list(NAMES), [reload.PEERMEM_UNIT])


def test_a_run_that_did_not_end_is_taken_up_in_the_same_boot_only(host: ReloadHost) -> None:
    value = {"boot_id": boot_id(), "modules": list(NAMES), "services": ["nvidia-persistenced.service"]}
    Path(reload.FOLDER).mkdir()
    Path(reload.MARKER).write_text(json.dumps(value))
    assert plan().services == ["nvidia-persistenced.service"], "it stopped that, and has to start it"
    Path(reload.MARKER).write_text(json.dumps({**value, "boot_id": OTHER_ID}))
    assert plan().services == []


def test_a_check_that_finds_a_reason_ends_with_30(host: ReloadHost, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rollout", "reload", "--boot-id", boot_id(), "--id", "plan-1", "--check", "--json"]
    assert program.main(words) == 0
    assert json.loads(capsys.readouterr().out)["safe"] is True
    host.same = False
    assert program.main(words) == 30
    report = json.loads(capsys.readouterr().out)
    assert (report["safe"], report["needed"], report["error"]["kind"]) == (False, True, "unsafe")
    assert report["modules"] == list(NAMES)
