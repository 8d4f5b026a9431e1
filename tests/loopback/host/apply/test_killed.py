"""Stopped before any change, for each resource: the next run completes the work, and a removal leaves no trace."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply import engine, module_options, removal, services
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.apply.restore import Desired, FileBefore, Restore
from gdsdeploy.host.gate.gate import Settings
from gdsdeploy.host.kmod.packaged import FOLDER
from gdsdeploy.host.paths import IMEX_NODES
from tests.loopback.host.apply import killed_world
from tests.loopback.host.apply.killed_world import (
    KILLED,
    OLDER,
    RELEASE,
    Archive,
    Received,
    World,
    imitate,
    populate,
    stopped,
    whole,
)  # fmt: skip

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files are root's")
#: fsync costs nothing there.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
#: How it is stopped → at each how many changes: what fails later is much the same.
WAYS = {"kill": 1, "term": 1, "full": 3, "readonly": 5}
DRIVER = {"kernel_release": RELEASE, "modules": ["nvidia"], "rdma": "peermem", "p2pdma": True}
RECIPES = {"driver_version": "1", "driver_flavour": "open", "driver_tree": "/usr/src/nvidia-1"}
DESIRED: dict[str, dict[str, Any]] = {
    "module_options": {"kernel_release": RELEASE, "options": {"nvme_core": {"multipath": "N"}}},
    "driver_options": DRIVER,
    "imex": {"nodes": ["10.0.0.1", "10.0.0.2"]},
    "watch": {"enabled": True},
    "gate": {"settings": Settings().to_json(), "required_by": ["slurmd.service"], "slurm": True},
    "peermem": {"rdma": "peermem"},
    "cufile": {"content": '{"ours": 1}'},
    "recipes": {**RECIPES, "driver_dkms_name": "nvidia"},
    "expectation": {"content": "{}"},
    "guard": {"manager": "apt"},
    "boot_arguments": {"kernel_release": RELEASE, "arguments": ["iommu=pt"]},
    "boot_default": {"kernel_release": OLDER},
    "packages": {
        "manager": "killed",
        "wanted": [{"package": "nvidia-driver-570", "version": "570.1"}],
        "leaving": [{"package": name, "version": "570.1"} for name in killed_world.PACKAGES],
    },
}
#: What programs make, and gdsdeploy's own records: an undo leaves them to the next run.
MADE = ("/var/lib/gdsdeploy", "/world", "/boot", f"/lib/modules/{RELEASE}/modules.dep")
#: What a host had of these before, made by an earlier run; an administrator's state is still on record.
EARLIER: dict[str, dict[str, Any]] = {
    "module_options": {"kernel_release": RELEASE, "options": {"nvme_core": {"io_timeout": "60"}}},
    "imex": {"nodes": ["10.0.0.3"]},
    "watch": {"enabled": True, "every": 7},
    "gate": {"settings": Settings().to_json(), "required_by": ["k3s.service"]},
    "boot_arguments": {"kernel_release": RELEASE, "arguments": ["iommu=pt", "mitigations=off"]},
}
#: Received modules, and those of another archive in their place.
MODULES = Archive({"nvidia.ko": "new", "nvidia-fs.ko": "new"})
OTHERS = Archive({"nvidia.ko": "old", "nvidia-peermem.ko": "old"})


@dataclass
class Case:
    """A resource and a folder that has the host as it was."""

    name: str
    pristine: Path
    folder: Path

    def fresh(self) -> Path:
        root = self.folder / "root"
        if root.exists():
            shutil.rmtree(root)
        shutil.copytree(self.pristine, root, symlinks=True)
        for place in [self.pristine, *self.pristine.rglob("*")]:
            status = place.lstat()
            os.chown(root / place.relative_to(self.pristine), status.st_uid, status.st_gid, follow_symlinks=False)
        return root

    def run(self, root: Path, *, check: bool = False, desired: dict[str, Any] | None = None) -> list[Change]:
        name = self.name.partition(".")[0]
        if name == "received":
            targets = [engine.DesiredResource(name, Received(), MODULES)]
        else:
            document = {"version": 1, "resources": [{"resource": name, "desired": desired or DESIRED[name]}]}
            targets = engine.read_resources(document)
        (result,) = engine.run(ManagedHost(check=check, root=str(root)), targets)
        assert (result.unknown, result.refusals) == ([], [])
        return result.changes


def remove(root: Path, *, check: bool = False) -> list[Change]:
    changes = removal.remove(ManagedHost(check=check, root=str(root)))
    # archive/pack.py names paths of this machine.
    return [replace(change, subject=change.subject.replace(str(root), "")) for change in changes]


def summaries(changes: list[Change]) -> dict[tuple[str, str], str]:
    """What changes and why first, in this order."""
    return {(change.kind, change.subject): change.reason for change in reversed(changes)}


@pytest.fixture(params=[*DESIRED, "boot_default.entries", "boot_arguments.entries", "cufile.alternative", "received"])
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        pristine = Path(folder, "pristine")
        pristine.mkdir()
        populate(pristine, entries=request.param.endswith(".entries"))
        # update-alternatives wants the path that the links are made for.
        each = Case(request.param, pristine, Path(folder))
        if request.param == "cufile.alternative":
            killed_world.register_alternative(pristine)
        imitate(Path(folder, "root"), monkeypatch.setattr)
        yield each


@pytest.mark.parametrize("way", WAYS)
def test_an_apply_that_is_stopped_anywhere(case: Case, way: str) -> None:
    ends_well(case, way, whole(case.pristine))


def ends_well(case: Case, way: str, before: dict[str, Any]) -> None:
    """Whatever the change is that an apply was stopped before: the next run does what it says, a removal the rest."""
    number, present = 1 - WAYS[way], whole(case.pristine)
    while True:
        number += WAYS[way]
        root = case.fresh()
        status = stopped(partial(case.run, root), number, way)
        if status == 0:
            break
        assert status == (KILLED if way == "kill" else 1)
        place = f"before change {number}"
        if way == "term" and case.name != "received":
            left = {path for path in differences(present, whole(root)) if not path.startswith(MADE)}
            assert left == set(), place
        predicted = summaries(case.run(root, check=True))
        assert summaries(case.run(root)) == predicted, place
        assert World(root).stale(everywhere=False) == [], place
        assert case.run(root, check=True) == [], place
        remove(root)
        assert differences(before, whole(root)) == {}, place
        assert World(root).stale(everywhere=True) == [], place
    assert number > 3


@pytest.mark.parametrize("case", EARLIER, indirect=True)
@pytest.mark.parametrize("way", ["kill", "term"])
def test_a_change_of_what_an_earlier_run_has_made_is_stopped_anywhere(case: Case, way: str) -> None:
    before = whole(case.pristine)
    case.run(case.fresh(), desired=EARLIER[case.name])
    provisioned = case.folder / "provisioned"
    (case.folder / "root").rename(provisioned)
    case.pristine = provisioned
    ends_well(case, way, before)


@pytest.mark.parametrize("way", WAYS)
def test_a_removal_that_is_stopped_anywhere(case: Case, way: str) -> None:
    before, number = whole(case.pristine), 1 - WAYS[way]
    provisioned = case.folder / "provisioned"
    case.run(case.fresh())
    (case.folder / "root").rename(provisioned)
    case.pristine = provisioned
    while True:
        number += WAYS[way]
        root = case.fresh()
        status = stopped(partial(remove, root), number, way)
        if status == 0:
            break
        place = f"before change {number}"
        predicted = summaries(remove(root, check=True))
        assert summaries(remove(root)) == predicted, place
        assert differences(before, whole(root)) == {}, place
        assert World(root).stale(everywhere=True) == [], place
        assert remove(root) == [], place
    assert number > 3


@pytest.mark.parametrize("case", ["received"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_modules_that_were_there_stay_until_others_are_in_place(case: Case, way: str) -> None:
    root = case.fresh()
    engine.run(ManagedHost(root=str(root)), [engine.DesiredResource("received", Received(), OTHERS)])
    provisioned = case.folder / "provisioned"
    root.rename(provisioned)
    case.pristine, number = provisioned, 1 - WAYS[way]
    folder = Path("lib/modules", RELEASE, FOLDER)
    while True:
        number += WAYS[way]
        root = case.fresh()
        if stopped(partial(case.run, root), number, way) == 0:
            break
        place = f"before change {number}"
        if way == "term":
            assert modules(root / folder) in (OTHERS.modules, MODULES.modules), place
            assert World(root).stale(everywhere=False) == [], place
        case.run(root)
        assert modules(root / folder) == MODULES.modules, place
        assert World(root).stale(everywhere=False) == [], place
        assert [path for path in (root / "lib/modules").iterdir() if path.name.startswith(".")] == [], place
    assert number > 3


@pytest.mark.parametrize("case", ["module_options", "imex", "watch", "gate", "peermem"], indirect=True)
@pytest.mark.parametrize("way", ["kill", "term"])
def test_a_rollback_that_is_stopped_anywhere(case: Case, way: str) -> None:
    others = {"module_options": module_options.PATH, "imex": IMEX_NODES}
    path = others.get(case.name) or services.path(f"gds-{case.name}.service")
    file = case.pristine / path.lstrip("/")
    was = FileBefore(path, hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "")
    target = engine.DesiredResource("restore", Restore(), Desired("apt", "remove", files=[was]))
    before = whole(case.pristine)
    case.run(case.fresh())
    provisioned = case.folder / "provisioned"
    (case.folder / "root").rename(provisioned)
    case.pristine, number = provisioned, 0
    while True:
        number += 1
        root = case.fresh()
        if stopped(lambda root=root: engine.run(ManagedHost(root=str(root)), [target]), number, way) == 0:  # type: ignore[misc]
            break
        place = f"before change {number}"
        if way == "term":
            assert World(root).dangling() == [], place
        predicted = engine.run(ManagedHost(check=True, root=str(root)), [target])[0].changes
        assert engine.run(ManagedHost(root=str(root)), [target])[0].changes == predicted, place
        assert World(root).stale(everywhere=True) == [], place
        assert World(root).dangling() == [], place
        remove(root)
        assert differences(before, whole(root)) == {}, place
    assert number > 3


def modules(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.glob("*.ko")}


def differences(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        path: (before.get(path), after.get(path))
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    }
