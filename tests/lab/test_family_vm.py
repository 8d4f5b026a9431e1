"""One machine of each family goes into another kernel: lock, provision, reboot, validate, plan again.

The machine begins with an older kernel of its family, and with the locked packages of everything else, like one that
was installed from a site's image.  Repositories, names and layout are the vendors', the content is Debian's
(docs/lab.md).  The tests build on each other, in order.

Its modules are from a builder that is switched off.  The archive may be one that a light host of the same system has
built in another lab of this run (family_builds.py): the story of the family, or a builder of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import gdslab as labs
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Target
from gdslab import guest, standin
from gdslab.host import LabHost
from gdslab.kit import elversions, ubuntu
from gdslab.process import Process
from gdslab.state import Lab
from tests.lab import family_builds
from tests.lab.program import gdsdeploy
from tests.naming import unique

pytestmark = pytest.mark.lab

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def grub_default(host: LabHost) -> str:
    """The kernel that Ubuntu's GRUB boots by default: the image of the menu entry that grubenv names."""
    environment = host.ssh(["sudo", "grub-editenv", "/boot/grub/grubenv", "list"]).stdout
    assert "next_entry=" not in environment, environment
    entry = environment.partition("saved_entry=")[2].split()[0].rpartition(">")[2]
    menu = host.ssh(["sudo", "cat", "/boot/grub/grub.cfg"]).stdout
    body = menu.partition(f"'{entry}' {{")[2]
    return body.partition("/boot/vmlinuz-")[2].split()[0]


def bls_default(host: LabHost) -> str:
    """The kernel that Rocky Linux boots by default: the image of the Boot Loader Specification entry of grubenv."""
    environment = host.ssh(["sudo", "grub2-editenv", "/boot/grub2/grubenv", "list"]).stdout
    assert "next_entry=" not in environment, environment
    entry = environment.partition("saved_entry=")[2].split()[0]
    text = host.ssh(["sudo", "cat", f"/boot/loader/entries/{entry}.conf"]).stdout
    return text.partition("/boot/vmlinuz-")[2].split()[0]


@dataclass(frozen=True)
class Expected:
    """What the families differ in.

    older, locked: kernels.  default: asks a host for the one that it boots by default.
    """

    older: str
    locked: str
    default: Callable[[LabHost], str]


_UBUNTU, _ROCKY = ubuntu.RELEASES["ubuntu-24.04"], elversions.RELEASES[9]
EXPECTED = {
    "ubuntu-24.04": Expected(ubuntu.release(_UBUNTU.older), _UBUNTU.release, grub_default),
    "rocky-9": Expected(elversions.release(_ROCKY.older), _ROCKY.release, bls_default),
}


@dataclass(frozen=True)
class Machine:
    """The VM host, its lock, and what it was before it was provisioned."""

    lab: Lab
    target: Target
    kernel: str
    boot: str
    process: Process | None

    @property
    def host(self) -> LabHost:
        return self.lab.host("gpu1")

    @property
    def expected(self) -> Expected:
        return EXPECTED[self.lab.system.os]


def locked(fleet: Path) -> Target:
    """The lock of the fleet file, which gets the builder and its versions first."""
    value = yaml.safe_load(fleet.read_text())
    family_builds.name_builder(value, "gds")
    # A fleet file needs a host.
    value.setdefault("hosts", {"gpu1": {"profile": "gds", "address": "127.0.0.1"}})
    fleet.write_text(yaml.safe_dump(value, sort_keys=False))
    gdsdeploy("lock", fleet)
    (target,) = lockfile.read(lockfile.beside(fleet)).targets.values()
    return target


@pytest.fixture(scope="module", params=list(EXPECTED))
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    lab = Lab(unique("familyvm"))
    try:
        labs.up(lab.name, os=request.param, vms=0, lights=0, nodes=0)
        # The machine is made from what this one locks.
        first = lab.fleet_path.with_name("first.yml")
        first.write_text(lab.fleet_path.read_text())
        preinstalled = guest.image_packages(locked(first))
        labs.up(lab.name, vms=1, lights=0, nodes=0, preinstalled=preinstalled)
        target, host = locked(lab.fleet_path), lab.host("gpu1")
        for kernel in standin.locked_kernels(lab):
            standin.plug_all(lab, [host], kernel)
        family_builds.supply(lab.fleet_path, target)
        # Names of boot entries begin with this id, and GRUB reads a name like 1a2b as the number of an entry.
        host.ssh(["sudo", "sed", "-i", "s/^../1a/", "/etc/machine-id"])
        kernel, boot = host.ssh(["sh", "-c", f"uname -r; cat {BOOT_ID}"]).stdout.split()
        yield Machine(lab, target, kernel, boot, host.process())
    finally:
        labs.down(lab)


@pytest.fixture(scope="module")
def provisioned(machine: Machine) -> dict[str, Any]:
    """What the first provision did, by host."""
    done = gdsdeploy("provision", machine.lab.fleet_path, "--limit", "gpu1", "--json")
    hosts: dict[str, Any] = json.loads(done.stdout)["hosts"]
    return hosts


def test_the_host_was_rebooted_into_the_locked_kernel(machine: Machine, provisioned: dict[str, Any]) -> None:
    assert machine.kernel == machine.expected.older
    assert machine.target.kernel.release == machine.expected.locked
    kernel, boot = machine.host.ssh(["sh", "-c", f"uname -r; cat {BOOT_ID}"]).stdout.split()
    assert kernel == machine.expected.locked
    assert boot != machine.boot
    assert machine.host.process() == machine.process, "the machine stayed, its kernel started again"
    assert "gds_reboot: Reboot" in provisioned["gpu1"]["changed"]


def test_the_boot_loader_starts_the_locked_kernel_by_default(machine: Machine, provisioned: dict[str, Any]) -> None:
    assert machine.expected.default(machine.host) == machine.expected.locked
    assert f"vmlinuz-{machine.expected.older}" in machine.host.ssh(["ls", "/boot"]).stdout, "the older kernel stays"


def test_the_builders_modules_are_loaded(machine: Machine, provisioned: dict[str, Any]) -> None:
    host, target = machine.host, machine.target
    assert target.driver.version in host.ssh(["cat", "/proc/driver/nvidia/version"]).stdout
    assert target.nvidia_fs is not None
    assert host.ssh(["cat", "/sys/module/nvidia_fs/version"]).stdout.strip() == target.nvidia_fs.version
    assert host.ssh(["test", "-c", "/dev/nvidia-fs0"]).status == 0
    path = host.ssh(["sudo", "modinfo", "-n", "nvidia"]).stdout
    assert path.startswith(f"/lib/modules/{machine.expected.locked}/updates/gdsdeploy/")


def test_nothing_was_compiled_on_the_host(machine: Machine, provisioned: dict[str, Any]) -> None:
    """NVIDIA's rpms bring DKMS and the driver's source along; it knows them and builds for no kernel."""
    built = machine.host.ssh(["sudo", "sh", "-c", "ls -d /var/lib/dkms/*/*/*/*/module"], ok=(0, 2)).stdout
    assert built == ""


def test_every_check_passes(machine: Machine, provisioned: dict[str, Any]) -> None:
    report = json.loads(gdsdeploy("validate", machine.lab.fleet_path, "--json").stdout)
    (host,) = report["hosts"].values()
    wrong = {f["check"]: f["found"] for f in host["findings"] if f["verdict"] not in ("pass", "not-applicable")}
    assert wrong == {}
    passes = [finding["check"] for finding in host["findings"] if finding["verdict"] == "pass"]
    # Without a GPU, an adapter in use and options of the driver, the rest has nothing to examine.
    assert len(passes) > len(host["findings"]) / 2
    assert {"kernel.running", "driver.loaded-version", "nvidia-fs.loaded-version", "modules.running"} <= set(passes)


def test_the_second_plan_is_empty(machine: Machine, provisioned: dict[str, Any]) -> None:
    plan = json.loads(gdsdeploy("plan", machine.lab.fleet_path, "--limit", "gpu1", "--json").stdout)["hosts"]
    assert {name: host["state"] for name, host in plan.items()} == {"gpu1": "nothing to do"}
