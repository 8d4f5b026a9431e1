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
APT = {"manager": "apt", "pins": [{"package": "nvidia-driver-570", "version": "570.1", "sha256": 64 * "a"}]}
KEY = "/etc/apt/keyrings/gdsdeploy-cuda.gpg"
INDEX = {"repository": "cuda", "uri": killed_world.REPOSITORY, "suite": "/", "components": [], "host_keyring": KEY}
SIGNING = {"certificate": "/etc/ssl/site.der", "key": "/etc/ssl/site.key", "signs": True}
RECIPES = {"driver_version": "1", "driver_flavour": "open", "driver_tree": "/usr/src/nvidia-1"}
DESIRED: dict[str, dict[str, Any]] = {
    # First, as on hosts: its folders are those of others, too.
    "program": {},
    "module_options": {"kernel_release": RELEASE, "module_options": {"nvme_core": {"multipath": "N"}}},
    "driver_options": DRIVER,
    "imex": {"imex_nodes": ["10.0.0.1", "10.0.0.2"]},
    "watch": {"enabled": True},
    "gate": {"settings": Settings().to_json(), "required_by": ["slurmd.service"], "slurm": True},
    "peermem": {"rdma": "peermem"},
    "cufile": {"content": '{"ours": 1}'},
    "recipes": {**RECIPES, "driver_dkms_name": "nvidia"},
    "expectation": {"expectation": "{}"},
    "guard": {"manager": "apt"},
    "boot_arguments": {"kernel_release": RELEASE, "arguments": ["iommu=pt"]},
    "boot_default": {"release": OLDER},
    "signing": {**SIGNING, "settings": "{}"},
    "signing.receives": {"certificate": "/etc/ssl/site.der", "certificate_content": "Y2VydA=="},
    "repositories": {**APT, "indices": [INDEX], "keys": [{"dest": KEY, "content": "a2V5"}]},
    "pins": {**APT, "deny": ["nvidia-driver-*"]},
    "pins.dnf": {"manager": "dnf", "deny": ["nvidia-driver", "kmod-nvidia*"], "modules": ["nvidia-driver:570"]},
    "packages": {
        "manager": "killed",
        "packages": [{"package": "nvidia-driver-570", "version": "570.1"}],
        "superseded": [{"package": name, "version": "570.1"} for name in killed_world.PACKAGES],
    },
}
#: What programs make, and gdsdeploy's own records: an undo leaves them to the next run.
MADE = ("/var/lib/gdsdeploy", "/world", "/boot", f"/lib/modules/{RELEASE}/modules.dep")
#: What a host had of these before, made by an earlier run; an administrator's state is still on record.
EARLIER: dict[str, dict[str, Any]] = {
    "module_options": {"kernel_release": RELEASE, "module_options": {"nvme_core": {"io_timeout": "60"}}},
    "imex": {"imex_nodes": ["10.0.0.3"]},
    "watch": {"enabled": True, "every": 7},
    "gate": {"settings": Settings().to_json(), "required_by": ["k3s.service"]},
    "boot_arguments": {"kernel_release": RELEASE, "arguments": ["iommu=pt", "mitigations=off"]},
    "signing": {**SIGNING, "settings": "{ }"},
    "repositories": {
        "manager": "apt",
        "indices": [{**INDEX, "uri": "https://example.org/earlier/"}],
        "keys": [{"dest": KEY, "content": "b2xk"}],
    },
    "pins": {"manager": "apt", "deny": ["libcuda*"]},
    "pins.dnf": {"manager": "dnf", "deny": ["libcuda"], "modules": ["nvidia-driver:565", "perl:5"]},
}
#: All resources of DESIRED on one host, stopped before each change of so many.
EVERYTHING, STRIDE = "everything", 23
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
        wanted = {name: desired or DESIRED.get(self.name) or DESIRED.get(name)}
        if name == EVERYTHING:
            wanted = {name: desired for name, desired in DESIRED.items() if "." not in name}
        targets = [engine.DesiredResource(name, Received(), MODULES)]
        if name != "received":
            resources = [{"resource": name, "desired": desired} for name, desired in wanted.items()]
            targets = engine.read_resources({"version": 1, "resources": resources})
        results = engine.run(ManagedHost(check=check, root=str(root)), targets)
        assert [(result.name, result.unknown, result.refusals) for result in results] == [
            (target.name, [], []) for target in targets
        ]
        return [change for result in results for change in result.changes]


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


@pytest.mark.parametrize("case", [EVERYTHING], indirect=True)
@pytest.mark.parametrize("way", ["kill", "term"])
def test_an_apply_of_all_resources_that_is_stopped_here_and_there(case: Case, way: str) -> None:
    ends_well(case, way, whole(case.pristine), STRIDE)


def ends_well(case: Case, way: str, before: dict[str, Any], stride: int = 0) -> None:
    """Whatever the change is that an apply was stopped before: the next run does what it says, a removal the rest."""
    step, present = stride or WAYS[way], whole(case.pristine)
    number = 1 - step
    while True:
        number += step
        root = case.fresh()
        status = stopped(partial(case.run, root), number, way)
        if status == 0:
            break
        assert status == (KILLED if way == "kill" else 1)
        place = f"before change {number}"
        if way == "term" and case.name not in ("received", EVERYTHING):
            left = {path for path in differences(present, whole(root)) if not path.startswith(MADE)}
            assert left == set(), place
            assert case.name != "boot_arguments" or World(root).stale(everywhere=True) == [], place
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
    removal_ends_well(case, way, WAYS[way])


@pytest.mark.parametrize("case", [EVERYTHING], indirect=True)
@pytest.mark.parametrize("way", ["kill", "term"])
def test_a_removal_of_all_resources_that_is_stopped_here_and_there(case: Case, way: str) -> None:
    removal_ends_well(case, way, STRIDE)


def removal_ends_well(case: Case, way: str, step: int) -> None:
    before, number = whole(case.pristine), 1 - step
    provisioned = case.folder / "provisioned"
    case.run(case.fresh())
    (case.folder / "root").rename(provisioned)
    case.pristine = provisioned
    while True:
        number += step
        root = case.fresh()
        status = stopped(partial(remove, root), number, way)
        if status == 0:
            break
        place = f"before change {number}"
        predicted, done = summaries(remove(root, check=True)), summaries(remove(root))
        assert done.keys() == predicted.keys(), place
        # A folder of several resources goes with the last of its files, whoever's that is.
        assert case.name == EVERYTHING or done == predicted, place
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
