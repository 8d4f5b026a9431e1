"""A golden image: a disk that no machine runs is provisioned, boots in a VM, and its first boot passes its gate.

The disk is that of the lab's VM hosts, a Debian with GRUB.  Only the GPU isn't real: the image gets the lab's stand-in.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import gdslab as labs
from gdsdeploy import run
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Target
from gdslab import archive as archives
from gdslab import fleet, guest, images, lifecycle, recipe, standin
from gdslab.host import LabHost
from gdslab.state import Lab, cache_directory
from tests.lab import builder_key
from tests.lab.program import BIN, PATIENCE, gdsdeploy
from tests.naming import unique

pytestmark = pytest.mark.lab

MOUNT = Path(__file__).with_name("mount_image.sh")
MACHINE_ID = "0123456789abcdef0123456789abcdef"
PROGRAM = ("sudo", "python3", "-I", "-S", "/usr/lib/gdsdeploy/gdsdeploy-host.pyz")
#: Of first boots alone: what a boot makes has no place in an image.
OF_A_BOOT = ("var/lib/gdsdeploy/builder.key", "var/lib/gdsdeploy/gate.json", "run/gdsdeploy", "usr/sbin/policy-rc.d")


def checked_run(argv: list[str], status: int) -> subprocess.CompletedProcess[str]:
    """Run a program, and hold its exit code against ``status``."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == status, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@dataclass(frozen=True)
class Image:
    """A raw disk, and the folder where each call mounts it."""

    lab: Lab
    target: Target
    disk: Path
    point: Path

    def run(self, *argv: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program while the disk is mounted."""
        words = ["unshare", "--mount", "--propagation", "private", "sh", MOUNT, self.disk, self.point, *argv]
        return checked_run(run.as_root([str(word) for word in words]), status)

    def gdsdeploy(self, verb: str, *options: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a verb on the image as gpu1."""
        environment = [
            f"{name}={value}" for name, value in os.environ.items() if name.startswith(("GDSDEPLOY_", "PYTH"))
        ]
        words = ["env", *environment, BIN / "gdsdeploy", verb, self.lab.fleet_path]
        return self.run(*words, "--root", self.point, "--limit", "gpu1", *options, status=status)

    def host(self, text: str) -> dict[str, Any]:
        """The image's part of a JSON answer."""
        host: dict[str, Any] = json.loads(text)["hosts"]["gpu1"]
        return host


class Folder(Image):
    """A folder that isn't a disk."""

    def run(self, *argv: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program."""
        return checked_run(run.as_root([str(word) for word in argv]), status)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The lab's disk with the stand-in, and a lab whose gpu1 will boot it; build1 builds unless a build is kept."""
    folder = tmp_path_factory.mktemp("golden")
    lab = Lab(unique("golden"))
    archive = archives.controller_archive()
    try:
        labs.up(lab.name, vms=0, lights=1)
        builder_key.give(lab)
        lab.add_hosts("vm", 1, folder / "disk.qcow2")
        lab.write_access()
        fleet.write(lab, archive)
        gdsdeploy("lock", lab.fleet_path)
        target = lockfile.read(lab.fleet_path.with_name("gdsdeploy.lock")).targets["gds"]
        base = images.vm_base(cache_directory(), recipe.debian(lab.release, archive, "vm"), lambda _: None)
        shutil.copyfile(base.kernel, folder / "vmlinuz")
        convert = ["qemu-img", "convert", "-O", "raw", base.disk, folder / "disk.raw"]
        run.run(convert, doing="copy the disk")
        (folder / "mnt").mkdir()
        disk = Image(lab, target, folder / "disk.raw", folder / "mnt")
        plug(disk, folder)
        yield disk
    finally:
        labs.down(lab)


def plug(image: Image, folder: Path) -> None:
    """Put the stand-in GPU into the image for its locked kernel, and give the image the id of a host that ran."""
    sources = tuple(guest.source_line(index.model_dump()) for index in image.target.indices)
    kernel = standin.Kernel(image.target.kernel.release, image.target.kernel.version, sources)
    module = standin.build(image.lab.release, kernel) / standin.GPU
    unit = guest.data("guest/lab-gpu.service").read_text()
    content: dict[str, tuple[str | bytes, int]] = {
        f"{standin.MODULE_DIRECTORY}/{kernel.release}/{standin.GPU}": (module.read_bytes(), 0o644),
        "etc/systemd/system/lab-gpu.service": (unit, 0o644),
        "etc/machine-id": (f"{MACHINE_ID}\n", 0o444),
    }
    (folder / "standin.tar").write_bytes(guest.tar(content))
    image.run("tar", "--extract", "--file", folder / "standin.tar", "--directory", image.point, "--no-overwrite-dir")
    image.run("chroot", image.point, "systemctl", "enable", "--quiet", "lab-gpu.service")


@pytest.fixture(scope="module")
def provisioned(image: Image) -> dict[str, Any]:
    """What the plan said before the image was provisioned."""
    planned = image.host(image.gdsdeploy("plan", "--json", status=32).stdout)
    if planned["modules"]["lack"]:
        gdsdeploy("provision", image.lab.fleet_path, "--limit", "build1")
    answer = image.host(image.gdsdeploy("provision", "--json").stdout)
    assert answer["error"] is None
    changes = {(change["kind"], change["subject"]) for change in answer["changes"] if change["kind"] != "place"}
    # Which files the archive has is known when it is there; the controller puts it there, and makes its folder.
    archive = f"/var/lib/gdsdeploy/modules-{image.target.kernel.release}.tar"
    brought = {("receive", archive), ("make", "/var/lib/gdsdeploy")}
    assert changes | brought == {(one["kind"], one["subject"]) for one in planned["actions"] if one["kind"] != "place"}
    return planned


def test_the_plan_names_what_an_image_cannot_have(image: Image, provisioned: dict[str, Any]) -> None:
    subjects = {(one["kind"], one["subject"]) for one in provisioned["actions"]}
    release = image.target.kernel.release
    assert {("boot", release), ("enable", "gds-gate.service"), ("write", "/etc/machine-id")} <= subjects
    assert not {kind for kind, _ in subjects} & {"load", "unload", "reboot", "start", "reload"}
    assert provisioned["disruption"] == "none"
    text = image.gdsdeploy("plan").stdout
    assert "nothing to do" in text
    assert f"the first boot has to be of kernel {release}\n" in text
    assert "the first boot loads nvidia, nvidia-fs\n" in text
    assert "the gate judges the first boot" in text


def test_nothing_of_a_boot_is_in_the_image(image: Image, provisioned: dict[str, Any]) -> None:
    for name in OF_A_BOOT:
        image.run("test", "!", "-e", image.point / name)
    assert image.run("cat", image.point / "etc/machine-id").stdout == ""
    assert image.run("cat", image.point / "etc/resolv.conf").stdout == f"nameserver {guest.NAMESERVER}\n"
    configuration = image.run("cat", image.point / "boot/grub/grub.cfg").stdout
    assert f"root=UUID={guest.ROOT_UUID}" in configuration
    assert "loop" not in configuration


def test_a_second_run_changes_nothing(image: Image, provisioned: dict[str, Any]) -> None:
    done = image.gdsdeploy("provision", "--json")
    assert image.host(done.stdout)["changes"] == []
    assert json.loads(done.stdout)["satisfied"] == ["gpu1"]
    assert "Nothing to change" in done.stderr


def test_a_folder_for_the_network_has_no_boot_loader(image: Image, provisioned: dict[str, Any]) -> None:
    archive = archives.controller_archive()
    base = images.light_base(cache_directory(), recipe.debian(image.lab.release, archive, "light"))
    root = image.disk.with_name("root")
    try:
        run.run(run.as_root(["cp", "-a", "--reflink=auto", "-T", str(base), str(root)]), doing="copy the base system")
        folder = Folder(image.lab, image.target, image.disk, root)
        answer = json.loads(folder.gdsdeploy("provision", "--json").stdout)
        subjects = {(one["kind"], one["subject"]) for one in image.host(json.dumps(answer))["changes"]}
        release = image.target.kernel.release
        assert {("install", f"linux-image-{release}"), ("enable", "gds-gate.service")} <= subjects
        assert "boot" not in {kind for kind, _ in subjects}
        (reboot,) = [entry["words"] for entry in answer["image"]["left"] if entry["kind"] == "reboot"]
        assert reboot.endswith("no boot loader is set up in the image")
        folder.gdsdeploy("plan")
    finally:
        run.run(run.as_root(["rm", "-rf", "--one-file-system", str(root)]), doing="remove the folder")


@pytest.fixture(scope="module")
def booted(image: Image, provisioned: dict[str, Any]) -> LabHost:
    """A VM in its first boot from the image."""
    disk = image.disk.with_name("disk.qcow2")
    convert = ["qemu-img", "convert", "-O", "qcow2", image.disk, disk]
    run.run(run.as_root([str(word) for word in convert]), doing="convert the image")
    lifecycle.start_vms(image.lab, archives.controller_archive())
    host = image.lab.host("gpu1")
    script = "while systemctl is-system-running | grep -q starting; do sleep 1; done"
    host.ssh(["sh", "-c", script], timeout=900)
    return host


def test_the_first_boot_passes_its_gate(image: Image, booted: LabHost) -> None:
    boot = booted.ssh(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()
    record = json.loads(booted.ssh([*PROGRAM, "gate", "show", "--json"]).stdout)["record"]
    assert (record["state"], record["verdict"], record["boot_id"]) == ("open", "pass", boot), record["reason"]
    assert booted.ssh(["uname", "-r"]).stdout.strip() == image.target.kernel.release
    assert booted.ssh(["systemctl", "is-active", "gds-gate"], ok=(0, 3)).stdout.strip() == "inactive"
    assert len(booted.ssh(["journalctl", "--list-boots", "--no-pager", "--quiet"]).stdout.splitlines()) == 1
    own = booted.ssh(["cat", "/etc/machine-id"]).stdout.strip()
    assert (len(own), own != MACHINE_ID) == (32, True)
    gdsdeploy("validate", image.lab.fleet_path, "--limit", "gpu1", "--since-boot")


def test_the_host_is_what_provision_makes_of_a_host(image: Image, booted: LabHost) -> None:
    report = json.loads(gdsdeploy("validate", image.lab.fleet_path, "--limit", "gpu1", "--json").stdout)
    (host,) = report["hosts"].values()
    assert {finding["verdict"] for finding in host["findings"]} == {"pass", "not-applicable"}
    plan = image.host(gdsdeploy("plan", image.lab.fleet_path, "--limit", "gpu1", "--json").stdout)
    assert (plan["state"], plan["actions"]) == ("nothing to do", [])


def test_remove_takes_it_back(image: Image, provisioned: dict[str, Any]) -> None:
    copy = replace(image, disk=image.disk.with_name("copy.raw"))
    run.run(["cp", "--sparse=always", str(image.disk), str(copy.disk)], doing="copy the image")
    changes = image.host(copy.gdsdeploy("remove", "--json").stdout)["changes"]
    assert ("disable", "gds-gate.service") in {(change["kind"], change["subject"]) for change in changes}
    for name in ("etc/gdsdeploy", "usr/lib/gdsdeploy", "var/lib/gdsdeploy", "etc/systemd/system/gds-gate.service"):
        copy.run("test", "!", "-e", copy.point / name)
    names = copy.run("chroot", copy.point, "dpkg-query", "-W", "-f", "${Package} ").stdout.split()
    assert not {"libcufile0", "gds-tools", "libcuda1"} & set(names)
    copy.gdsdeploy("plan", status=32)
