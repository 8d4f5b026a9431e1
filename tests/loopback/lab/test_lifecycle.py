"""Bringing a lab up again, and taking it down: what is left alone, what is made, what is refused."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.builds.builder_keys import BuilderKeys
from gdslab import (
    emulator,
    images,
    lifecycle,
    nspawn,
    qemu,
    state,
)
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable
from gdslab.host import LabHost
from gdslab.recipe import Recipe
from gdslab.state import Lab


class Machines:
    """Stands in for QEMU, nspawn and mmdebstrap: which hosts run, and what was done."""

    def __init__(self) -> None:
        self.up: set[Path] = set()
        self.done: list[str] = []
        self.deaf: set[str] = set()

    def start(self, host: LabHost) -> None:
        self.done.append(f"start {host.name}")
        self.up.add(host.directory)

    def stop(self, host: LabHost) -> None:
        self.done.append(f"stop {host.name}")
        self.up.discard(host.directory)

    def create(self, host: LabHost, seed: bytes) -> None:
        if not host.directory.exists():
            self.done.append(f"create {host.name}")
            host.directory.mkdir(parents=True)

    def wait(self, host: LabHost, timeout: float = 0) -> None:
        if host.name in self.deaf:
            raise LabUnavailable(f"{host.name} did not answer")

    def base(self, recipe: Recipe) -> Path:
        self.done.append(f"base {recipe.kind}")
        return Path(f"/c/{recipe.kind}/root")


@pytest.fixture
def machines(home: Path, mirror: Archive, monkeypatch: pytest.MonkeyPatch) -> Machines:
    imitation = Machines()
    for kind in (qemu.VmHost, nspawn.LightHost):
        monkeypatch.setattr(kind, "start", lambda self: imitation.start(self))
        monkeypatch.setattr(kind, "stop", lambda self: imitation.stop(self))
        monkeypatch.setattr(kind, "create", lambda self, seed: imitation.create(self, seed))
        monkeypatch.setattr(kind, "wait_ssh", lambda self, timeout=0: imitation.wait(self, timeout))
    monkeypatch.setattr(LabHost, "running", lambda self: self.directory in imitation.up)
    monkeypatch.setattr(images, "light_base", lambda cache, recipe: imitation.base(recipe))
    monkeypatch.setattr(
        images, "vm_base", lambda cache, recipe, early: images.VmBase(imitation.base(recipe), Path("/c/vmlinuz"))
    )
    monkeypatch.setattr(qemu, "accelerator", lambda cache, kernel: "tcg")
    monkeypatch.setattr(emulator, "root", lambda cache, archive: None)
    monkeypatch.setattr(lifecycle.requirements, "ensure", lambda **_: None)
    monkeypatch.setattr(lifecycle.archives, "controller_archive", lambda: mirror)
    return imitation


def did(machines: Machines) -> list[str]:
    done, machines.done = sorted(machines.done), []
    return done


def test_what_does_not_run_is_started_and_what_is_missing_made(machines: Machines) -> None:
    lab = lifecycle.up("dev")
    did(machines)
    machines.up.discard(lab.host("gpu1").directory)
    lifecycle.up("dev", lights=2)
    assert did(machines) == ["base light", "create build2", "start build2", "start gpu1"]


def test_failure_keeps_what_was_made_for_the_next_run(machines: Machines) -> None:
    machines.deaf = {"gpu1"}
    with pytest.raises(LabUnavailable, match="gpu1 did not answer"):
        lifecycle.up("dev")
    assert [host.running() for host in Lab("dev").hosts()] == [True, True]
    did(machines)
    machines.deaf = set()
    lifecycle.up("dev")
    assert not [step for step in did(machines) if step.startswith(("base", "create"))]


def test_port_taken_since_is_named(machines: Machines) -> None:
    lab = lifecycle.up("dev", vms=0)
    host = lab.host("build1")
    machines.up.clear()
    with (
        socket.create_server(("127.0.0.1", host.port)),
        pytest.raises(LabUnavailable, match=f"port {host.port}") as caught,
    ):
        lifecycle.up("dev", vms=0)
    assert "build1's" in caught.value.message


def test_release_of_an_existing_lab_is_its_own(machines: Machines) -> None:
    lifecycle.up("old", vms=0, release="bookworm")
    assert lifecycle.up("old", vms=0).release.name == "bookworm"
    with pytest.raises(LabUnavailable, match="has debian-12 hosts, not debian-13"):
        lifecycle.up("old", vms=0, release="trixie")


def test_labs_do_not_disturb_each_other(machines: Machines) -> None:
    one, two = lifecycle.up("one"), lifecycle.up("two")
    lifecycle.down(one)
    assert not one.directory.exists()
    assert all(host.running() for host in two.hosts())
    lifecycle.down(two)
    assert not state.labs_directory().exists(), "the last lab leaves not even a folder"


def test_the_next_lab_of_the_name_may_have_another_builder(machines: Machines) -> None:
    """The key of a builder is on record by the path of the fleet file."""
    lab = lifecycle.up("dev")
    key = BuilderKeys.of(lab.fleet_path).path("build1")
    key.write_text("a key")
    lifecycle.down(lab)
    assert not key.exists()


def test_down_of_what_does_not_exist_is_no_error(machines: Machines) -> None:
    lifecycle.down(Lab("dev"))
    assert did(machines) == []


def test_host_that_cannot_be_stopped_keeps_its_lab(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = lifecycle.up("dev", vms=0)

    def refuse(self: Any) -> None:
        raise LabUnavailable("build1 did not end")

    monkeypatch.setattr(nspawn.LightHost, "stop", refuse)
    with pytest.raises(LabUnavailable):
        lifecycle.down(lab)
    assert lab.exists()


def test_purge_spares_what_a_lab_stands_on(machines: Machines, home: Path) -> None:
    used, unused = home / "cache/lab/light/root", home / "cache/lab/older/root"
    for folder in (used, unused):
        folder.mkdir(parents=True)
    lab = Lab("dev")
    lab.write({"release": "trixie", "hosts": []})
    lab.add_hosts("light", 1, used)
    assert lifecycle.purge() == [used.parent]
    assert used.exists()
    assert not unused.exists()
