"""systemd-boot on a VM host with UEFI: the real one boots a kernel once, and gets a default that is taken back.

Debian's packages put it in the place of the lab's own boot loader, and the host's two kernels into its menu.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import gdslab as labs
from gdsdeploy.zipapp import hostapp
from gdslab import Lab, LabHost
from gdslab.firmware import Firmware
from tests.lab import fetched
from tests.lab.program import PATIENCE
from tests.naming import unique

pytestmark = pytest.mark.lab

PROGRAM = "/var/tmp/gdsdeploy-host.pyz"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
#: As an administrator changes to it; kernel-install makes the entries, with the present kernel's arguments.
INSTALL = r"""
set -eu
mkdir -p /etc/kernel
printf 'layout=bls\nBOOT_ROOT=/boot/efi\n' >/etc/kernel/install.conf
sed 's/BOOT_IMAGE=[^ ]* //' /proc/cmdline >/etc/kernel/cmdline
mkdir /var/tmp/debs
base64 -d | tar -xC /var/tmp/debs
DEBIAN_FRONTEND=noninteractive dpkg --install /var/tmp/debs/*.deb >/dev/null
ls /boot/efi/loader/entries
"""


@dataclass(frozen=True)
class Machine:
    """The VM host, its kernel by default, and another one."""

    host: LabHost
    default: str
    other: str

    def program(self, *words: str) -> Any:
        argv = ["sudo", "python3", "-I", "-S", PROGRAM, *words, "--json"]
        return json.loads(self.host.ssh(argv, timeout=PATIENCE).stdout)

    def reboot(self) -> str:
        """The kernel that runs after a reboot."""
        before = self.host.ssh(["cat", BOOT_ID]).stdout
        self.host.ssh(["sudo", "systemctl", "reboot"], ok=range(256))
        self.host.wait_ssh(PATIENCE)
        while self.host.ssh(["cat", BOOT_ID], ok=range(256)).stdout in (before, ""):
            self.host.wait_ssh(PATIENCE)
        return self.host.ssh(["uname", "-r"]).stdout.strip()

    def kernels(self) -> tuple[str, str]:
        """What boots by default, and next."""
        shown = self.program("boot", "show")
        return shown["default"], shown["next"]


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    lab = Lab(unique("systemd-boot"))
    try:
        labs.up(lab.name, vms=1, lights=1, firmware=Firmware(uefi=True))
        host = lab.host("gpu1")
        host.ssh(["tee", PROGRAM], input=hostapp.build())
        packages = fetched.fetch(["systemd-boot"], host, lab.host("build1"))
        entries = host.ssh(["sudo", "sh", "-c", INSTALL], input=packages, timeout=PATIENCE).stdout
        kernels = host.ssh(["ls", "/lib/modules"]).stdout.split()
        assert len(kernels) == 2
        assert all(f"-{kernel}.conf" in entries for kernel in kernels)
        running = Machine(host, "", "").reboot()
        (other,) = set(kernels) - {running}
        yield Machine(host, running, other)
    finally:
        labs.down(lab)


def test_systemd_boot_has_booted_the_newest_kernel(machine: Machine) -> None:
    assert "systemd-boot" in machine.host.ssh(["sudo", "bootctl", "status"], ok=range(256)).stdout
    assert machine.kernels() == (machine.default, machine.default)


def test_another_kernel_boots_once(machine: Machine) -> None:
    answer = machine.program("rollout", "once", "--kernel", machine.other)
    assert (answer["once"], answer["default"]) == (True, machine.default)
    assert machine.kernels() == (machine.default, machine.other)
    assert machine.reboot() == machine.other
    once = machine.program("rollout", "status")["once"]
    assert (once["state"], once["kernel"]) == ("booted", machine.other)
    assert machine.kernels() == (machine.default, machine.default), "systemd-boot has forgotten it"


def test_a_default_is_set_and_taken_back(machine: Machine) -> None:
    assert machine.program("boot", "default", "--kernel", machine.other)["changed"] is True
    assert machine.kernels() == (machine.other, machine.other)
    assert machine.reboot() == machine.other
    assert machine.program("boot", "default", "--kernel", machine.other)["changed"] is False
    assert machine.program("boot", "clear")["kernel"] == machine.default
    assert machine.kernels() == (machine.default, machine.default)
