"""Bringing a lab up again, and taking it down: what is left alone, what is made, what is refused."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import run
from gdsdeploy.builds.builder_keys import BuilderKeys
from gdsdeploy.fleetfile.load import load_fleet
from gdslab import (
    elbase,
    emulator,
    families,
    guest,
    images,
    lifecycle,
    nspawn,
    qemu,
    records,
    standin,
    state,
    systems,
)
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable
from gdslab.host import LabHost
from gdslab.kit import doca, el, elversions, kits
from gdslab.kit.kits import Kit
from gdslab.recipe import Boot, Recipe
from gdslab.state import Lab


class Machines:
    """Stands in for QEMU, nspawn and mmdebstrap: which hosts run, and what was done."""

    def __init__(self) -> None:
        self.up: set[Path] = set()
        self.done: list[str] = []
        self.recipes: list[Recipe] = []
        self.deaf: set[str] = set()
        self.emulator: Path | None = None

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
        self.recipes.append(recipe)
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
    monkeypatch.setattr(emulator, "root", lambda cache, archive: imitation.emulator)
    monkeypatch.setattr(lifecycle.requirements, "ensure", lambda **_: None)
    monkeypatch.setattr(lifecycle.archives, "controller_archive", lambda: mirror)
    return imitation


def did(machines: Machines) -> list[str]:
    done, machines.done = sorted(machines.done), []
    return done


def test_second_time_changes_nothing(machines: Machines) -> None:
    lab = lifecycle.up("dev")
    assert did(machines) == ["base light", "base vm", "create build1", "create gpu1", "start build1", "start gpu1"]
    before = {path: path.read_bytes() for path in lab.directory.rglob("*") if path.is_file()}
    lifecycle.up("dev")
    assert did(machines) == []
    assert {path: path.read_bytes() for path in lab.directory.rglob("*") if path.is_file()} == before


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


def test_a_system_by_its_name_or_by_debians_release(machines: Machines) -> None:
    assert lifecycle.up("one", vms=0, os="debian-12").system == lifecycle.up("two", vms=0, release="bookworm").system
    assert lifecycle.up("two", vms=0, os="debian-12").system.os == "debian-12"
    with pytest.raises(LabUnavailable, match="--os debian-13 and --release bookworm are different"):
        lifecycle.up("three", os="debian-13", release="bookworm")
    with pytest.raises(LabUnavailable, match="no hosts of plan-9"):
        lifecycle.up("three", os="plan-9")


@pytest.fixture
def kit(machines: Machines, home: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    """The repositories of Ubuntu, empty; their server runs."""
    folder = home / "cache/lab/kit-ubuntu-24.04-0"
    folder.mkdir(parents=True)
    (folder / "ubuntu.gpg").write_bytes(b"key")
    records.write_json(
        folder / "kit.json", {"keys": {"ubuntu": "A" * 40, "cuda": "B" * 40, **dict.fromkeys(doca.MAKERS, "C" * 40)}}
    )
    empty_kit = kits.load(folder)

    def make(*_: object) -> Kit:
        machines.done.append("kit")
        return empty_kit

    monkeypatch.setattr(kits, "make", make)
    return empty_kit


def test_ubuntu_hosts_come_from_the_labs_repositories(machines: Machines, kit: Kit) -> None:
    lab = lifecycle.up("ubuntu", os="ubuntu-24.04")
    try:
        assert did(machines) == ["base light", "create node1", "kit", "start node1"]
        server = lab.server
        assert server is not None
        assert server.running()
        fleet = load_fleet(lab.fleet_path)
        assert [host.profile for host in fleet.hosts.values()] == ["nodes"]
        assert fleet.profiles["nodes"].os == "ubuntu-24.04"
        assert fleet.profiles["nodes"].repositories == ("cuda", "ubuntu", "ubuntu-security")
        assert fleet.repositories["cuda"].fingerprints == ("B" * 40,)
        assert fleet.repositories["doca"].uri == f"{server.uri}/doca/3.4.1/ubuntu24.04/x86_64"
        assert fleet.repositories["doca-kernel"].fingerprints == ("C" * 40,)
        seed = families.seed_files(lab.system, server)
        sources = seed["etc/apt/sources.list.d/ubuntu.sources"][0]
        assert f"URIs: {server.uri}/ubuntu\nSuites: noble noble-updates" in str(sources)
        lifecycle.up("ubuntu", nodes=2)
        assert did(machines) == ["base light", "create node2", "start node2"]
        server.stop()
        lifecycle.up("ubuntu")
        assert server.running()
        assert did(machines) == []
        assert lifecycle.purge() == [kit.folder]
    finally:
        lifecycle.down(lab)
    assert lifecycle.purge() == []
    assert not kit.folder.exists()


def test_rocky_hosts_come_from_the_labs_repositories(
    machines: Machines, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "cache/lab/kit-rocky-9-0"
    folder.mkdir(parents=True)
    for name in el.KEYS.values():
        (folder / name).write_text(f"key {name}")
    records.write_json(folder / "kit.json", {"keys": dict.fromkeys(el.KEYS, "A" * 40)})
    monkeypatch.setattr(kits, "make", lambda *_: kits.load(folder))
    lab = lifecycle.up("rocky", os="rocky-9")
    try:
        assert did(machines) == ["base light", "create node1", "start node1"]
        server = lab.server
        assert server is not None
        fleet = load_fleet(lab.fleet_path)
        profile = fleet.profiles["nodes"]
        assert (profile.os, profile.own_kernel) == ("rocky-9", False)
        assert profile.repositories == ("baseos", "appstream", "epel", "cuda")
        assert tuple(fleet.repositories) == (*profile.repositories, "doca", "doca-kernel")
        unsigned = {name: entry.why for name, entry in fleet.repositories.items() if entry.metadata == "unsigned"}
        assert unsigned == el.UNSIGNED
        assert all(fleet.repositories[name].package_keys == ("A" * 40,) for name in unsigned)
        cuda = fleet.repositories["cuda"]
        assert cuda.uri == f"{server.uri}/compute/cuda/repos/rhel9/x86_64"
        assert Path(str(cuda.keyring)).read_text() == "key RPM-GPG-KEY-NVIDIA"
        seed = elbase.seed_files(lab.system, server)
        assert f"baseurl={server.uri}/rocky/9/BaseOS" in str(seed["etc/yum.repos.d/rocky.repo"][0])
        assert seed["etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-9"][0] == b"key RPM-GPG-KEY-Rocky"
    finally:
        lifecycle.down(lab)


def test_a_host_of_ubuntu_26_04_has_dracut_and_the_branch_that_its_repository_begins_with(
    machines: Machines, kit: Kit
) -> None:
    lab = lifecycle.up("new", os="ubuntu-26.04")
    try:
        profile = load_fleet(lab.fleet_path).profiles["nodes"]
        assert (profile.os, profile.driver.version) == ("ubuntu-26.04", "595")
        (recipe,) = machines.recipes
        content = recipe.files
        assert "etc/dracut.conf.d/lab.conf" in content
        assert not any(name.startswith("etc/initramfs-tools/") for name in content)
        with pytest.raises(LabUnavailable, match=r"no VM hosts of ubuntu-26\.04"):
            lifecycle.up("new", vms=1)
    finally:
        lifecycle.down(lab)


def test_the_kernel_of_a_vm_gets_its_packages_release(
    machines: Machines, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module that renames it is built for Debian's kernel, and is in the base system with its hook."""
    built: list[tuple[str, str]] = []

    def build(release: guest.Release, kernel: standin.Kernel) -> Path:
        built.append((release.name, kernel.release))
        return Path("/c/modules")

    monkeypatch.setattr(standin, "build", build)
    lab = lifecycle.up("ubuntu", vms=1, nodes=0, os="ubuntu-24.04")
    try:
        assert built == [("trixie", "6.12.95+deb12-amd64")]
        (recipe,) = machines.recipes
        assert recipe.files["usr/local/lib/lab/gds_lab_release.ko"] == Path("/c/modules/gds_lab_release.ko")
        assert "insmod /gds_lab_release.ko release=%s" in str(recipe.files["etc/initramfs-tools/hooks/lab-release"])
        images = [name for name in recipe.packages if name.startswith("linux-")]
        assert images == ["linux-image-6.14.0-36-generic"], "the newest kernel is left to install"
        assert [host.kind for host in lab.hosts()] == ["vm"]
        fleet = load_fleet(lab.fleet_path)
        assert {name: host.profile for name, host in fleet.hosts.items()} == {"gpu1": "gds"}
        assert fleet.profiles["gds"].own_kernel
    finally:
        lifecycle.down(lab)


def test_a_vm_of_rocky_boots_from_entries_of_the_boot_loader_specification(
    home: Path, mirror: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What mmdebstrap's root begins with: the command line, the module, and the older kernel's packages."""
    folder = home / "cache/lab/kit-rocky-9-0"
    system = systems.find("rocky-9")
    versions = elbase.versions(system)
    offered = folder / el.repositories(versions)["baseos"]
    offered.mkdir(parents=True)
    for name in [*(package.file for package in el.base(versions)), *el.kernel_files(versions.older)]:
        (offered / name).write_text(name)
    (home / "release.ko").write_bytes(b"module")
    laid_out: dict[str, bytes] = {}
    commands: list[list[str]] = []

    def execute(argv: list[str], **_: Any) -> None:
        commands.append(argv)
        tree = next(Path(word.split()[3]) for word in argv if "base.sh" in word)
        laid_out.update({str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()})

    monkeypatch.setattr(run, "run", execute)
    recipe = elbase.recipe(system, kits.Kit(folder, {}), mirror, Boot(home / "release.ko"))
    images.light_base(home, recipe)
    assert laid_out["usr/local/lib/lab/gds_lab_release.ko"] == b"module"
    assert laid_out["etc/kernel/cmdline"].startswith(f"root=UUID={guest.ROOT_UUID} ro console=ttyS0".encode())
    kernels = {Path(name).name for name in laid_out if name.startswith("run/packages/")}
    assert kernels == set(el.kernel_files(versions.older))
    assert {Path(name).name for name in laid_out if name.startswith("run/rpms/")} == {
        package.file for package in el.base(versions)
    }
    assert not any(name.startswith(("etc/apt", "etc/initramfs-tools", "etc/default/grub")) for name in laid_out)
    assert any("grub-pc-bin" in word and "initramfs-tools" not in word for word in commands[0])


LOCKED = guest.ImagePackages((), (("nvidia-modprobe", "3:550.163.01-1.el9"),), kernel=False)


def test_a_vm_of_rocky_begins_with_packages_of_the_kit(home: Path, mirror: Archive) -> None:
    """With what dnf would take along: AppStream's, and headers for DKMS."""
    system, versions = systems.find("rocky-9"), elversions.RELEASES[9]
    kit = kits.Kit(home, {})
    for repository, name in {
        "cuda": "nvidia-modprobe-550.163.01-1.el9.x86_64.rpm",
        "appstream": "ocl-icd-1.x86_64.rpm",
    }.items():
        place = home / el.repositories(versions)[repository] / name
        place.parent.mkdir(parents=True)
        place.touch()
    recipe = elbase.recipe(system, kit, mirror, Boot(home / "release.ko", LOCKED))
    assert {name.removeprefix("run/packages/") for name in recipe.files if name.startswith("run/packages/")} == {
        "nvidia-modprobe-550.163.01-1.el9.x86_64.rpm",
        "ocl-icd-1.x86_64.rpm",
        *el.kernel_files(versions.older),
        *el.kernel_files(versions.older, "devel", "devel-matched"),
        *el.kernel_files(versions.kernel, "devel"),
    }
    other = replace(LOCKED, packages=(("nvidia-modprobe", "3:1-1"),))
    with pytest.raises(LabUnavailable, match="no nvidia-modprobe 3:1-1"):
        elbase.recipe(system, kit, mirror, Boot(home / "release.ko", other))


def test_a_vm_of_ubuntu_begins_with_packages_of_the_kit(home: Path, mirror: Archive) -> None:
    system, kit = systems.find("ubuntu-24.04"), kits.Kit(home, {})
    kernel = replace(LOCKED, packages=(("linux-image-6.14.0-37-generic", "6.14.0-37.37~24.04.1"),), kernel=True)
    recipes = [families.recipe(system, kit, mirror, Boot(home / "r.ko", each)) for each in (None, LOCKED, kernel)]
    images = [[name for name in recipe.packages if name.startswith(("linux-", "nvidia-"))] for recipe in recipes]
    assert images == [
        ["linux-image-6.14.0-36-generic"],
        ["linux-image-6.14.0-36-generic", "nvidia-modprobe=3:550.163.01-1.el9"],
        ["linux-image-6.14.0-37-generic=6.14.0-37.37~24.04.1"],
    ]
    assert recipes[0].sources == ()
    assert recipes[1].argv(home, home)[-1] == f"deb [signed-by={home}/cuda.gpg] copy://{home}/cuda /"


def test_light_hosts_of_a_kit_begin_without_packages(machines: Machines, kit: Kit) -> None:
    with pytest.raises(LabUnavailable, match=r"light hosts of ubuntu-24\.04"):
        lifecycle.up("ubuntu", nodes=1, os="ubuntu-24.04", preinstalled=LOCKED)
    lifecycle.down(Lab("ubuntu"))


def test_hosts_keep_the_emulator_they_were_started_with(machines: Machines, home: Path) -> None:
    machines.emulator = home / "cache/lab/qemu-trixie-0/root"
    machines.emulator.mkdir(parents=True)
    host = lifecycle.up("dev").host("gpu1")
    assert isinstance(host, qemu.VmHost)
    assert qemu.qemu_argv(host, "tcg", host.emulator)[0] == f"{machines.emulator}/usr/lib64/ld-linux-x86-64.so.2"
    assert lifecycle.purge() == [machines.emulator.parent]
    lifecycle.down(Lab("dev"))
    assert lifecycle.purge() == []


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
