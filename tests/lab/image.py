"""A VM host that begins as a disk image: it is provisioned natively, by ``--root``, before any machine runs it.

The disk is that of the lab's VM hosts, a Debian with GRUB.  Only the GPU isn't real: the image gets the lab's stand-in.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gdslab as labs
from gdsdeploy import run
from gdsdeploy.model.lock import Target
from gdslab import archive as archives, guest, images, lifecycle, recipe, standin
from gdslab.host import LabHost
from gdslab.state import Lab, cache_directory
from tests.lab import builder_key, mirrored, own_builds, two_stacks
from tests.lab.program import BIN, PATIENCE
from tests.lab.rollouts import AtEnd
from tests.naming import unique

MOUNT = Path(__file__).with_name("mount_image.sh")
_DISK = "disk.qcow2"
#: The id of a host that ran.
MACHINE_ID = "0123456789abcdef0123456789abcdef"


def checked_run(argv: list[str], status: int) -> subprocess.CompletedProcess[str]:
    """Run a program, and hold its exit code against ``status``."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == status, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@dataclass(frozen=True)
class Image:
    """A raw disk, the folder where each call mounts it, and a lab whose gpu1 will boot it."""

    lab: Lab
    target: Target
    disk: Path
    point: Path

    @property
    def path(self) -> Path:
        return self.lab.fleet_path

    def run(self, *argv: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program while the disk is mounted."""
        words = ["unshare", "--mount", "--propagation", "private", "sh", MOUNT, self.disk, self.point, *argv]
        return checked_run(run.as_root([str(word) for word in words]), status)

    def gdsdeploy(self, verb: str, *options: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a verb on the image as gpu1."""
        environment = [
            f"{name}={value}" for name, value in os.environ.items() if name.startswith(("GDSDEPLOY_", "PYTH"))
        ]
        words = ["env", *environment, BIN / "gdsdeploy", verb, self.path]
        return self.run(*words, "--root", self.point, "--limit", "gpu1", *options, status=status)

    def use_mirror(self) -> None:
        """Let the image have packages of the lab's mirror alone."""
        self.run("chroot", self.point, "sh", "-c", mirrored.USE, "use", "127.0.0.1")

    def provision(self) -> Provision:
        """Plan and provision the image, which isn't yet."""
        planned = host_of(self.gdsdeploy("plan", "--json", status=32).stdout)
        return Provision(planned, host_of(self.gdsdeploy("provision", "--json").stdout))

    def boot(self) -> LabHost:
        """A VM in its first boot from the image, once it is up."""
        disk = self.disk.with_name(_DISK)
        convert = ["qemu-img", "convert", "-O", "qcow2", self.disk, disk]
        run.run(run.as_root([str(word) for word in convert]), doing="convert the image")
        lifecycle.start_vms(self.lab, archives.controller_archive())
        host = self.lab.host("gpu1")
        script = "while systemctl is-system-running | grep -q starting; do sleep 1; done"
        host.ssh(["sh", "-c", script], timeout=900)
        # The host's own /etc/hosts came with this boot.
        mirrored.name([host])
        return host


@dataclass(frozen=True)
class Provision:
    """The image's part of the JSON answers of ``plan`` and ``provision``."""

    planned: dict[str, Any]
    answer: dict[str, Any]


class Folder(Image):
    """A folder that isn't a disk."""

    def run(self, *argv: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program."""
        return checked_run(run.as_root([str(word) for word in argv]), status)


def host_of(text: str) -> dict[str, Any]:
    """The image's part of a JSON answer."""
    host: dict[str, Any] = json.loads(text)["hosts"]["gpu1"]
    return host


def begin(folder: Path, at_end: AtEnd) -> Image:
    """The image for the newer stack, whose modules build1 has built.  folder: for files.  at_end: ends the lab."""
    lab, stack, patch = Lab(unique("image")), ExitStack(), pytest.MonkeyPatch()
    at_end(stack.close)
    at_end(patch.undo)
    at_end(lambda: labs.down(lab))
    labs.up(lab.name, vms=0, lights=1)
    builder_key.give(lab)
    key = stack.enter_context(mirrored.mirrors(lab, folder / "key"))
    add_host(lab, folder)
    target = two_stacks.lock(lab, "new", key).targets["vm"]
    mirrored.use(lab.group("light"))
    own_builds.build(lab, target, own_builds.separate(folder / "cache", patch), folder)
    return make(lab, target, folder)


def add_host(lab: Lab, folder: Path) -> None:
    """Add gpu1, whose disk will be in ``folder``."""
    lab.add_hosts("vm", 1, folder / _DISK)
    lab.write_access()


def make(lab: Lab, target: Target, folder: Path) -> Image:
    """The disk of gpu1 before anything is provisioned, with the stand-in for the target's kernel."""
    archive = archives.controller_archive()
    base = images.base(cache_directory(), recipe.debian(lab.release, archive, "vm"))
    shutil.copyfile(base.with_name("vmlinuz"), folder / "vmlinuz")
    run.run(["qemu-img", "convert", "-O", "raw", base, folder / "disk.raw"], doing="copy the disk")
    (folder / "mnt").mkdir()
    image = Image(lab, target, folder / "disk.raw", folder / "mnt")
    image.use_mirror()
    _plug(image, folder)
    return image


def _plug(image: Image, folder: Path) -> None:
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
