"""What a rollout relies on when a host reboots: real GRUB, a real kernel that runs once, one that never comes up.

The other kernel is Debian's for clouds: another release, with an initramfs of a few modules, both made on the light
host.  It stays out of dpkg's sight, and everything is taken away again.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.zipapp import hostapp
from gdslab import Lab, LabHost

pytestmark = pytest.mark.lab

PROGRAM = "/tmp/gdsdeploy-rollout.pyz"
BROKEN = "9.9.9-broken"
#: Seconds that a VM may take to answer again where the processor is emulated and shared.
PATIENCE = 420

#: On the light host: another kernel than $1, and an initramfs that finds the VM's disk and network adapter.
MAKE = """
set -eu
export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
release=none
trap 'rm -rf "$work" "/usr/lib/modules/$release" "/boot/config-$release"' EXIT
chmod 0755 "$work"
cd "$work"
(apt-get -qq update && apt-get -qq install --no-install-recommends initramfs-tools-core zstd kmod) >log 2>&1 ||
    { cat log >&2; exit 1; }
package=$(apt-cache search --names-only '^linux-image-[0-9].*-cloud-amd64$' | cut -d' ' -f1 |
    grep -vx "linux-image-$1" | sort -V | tail -n 1)
apt-get -qq download "$package" 2>/dev/null
dpkg-deb --extract "$package"_*.deb root
release=${package#linux-image-}
mkdir -p /usr/lib/modules
mv "root/usr/lib/modules/$release" /usr/lib/modules/
cp "root/boot/config-$release" /boot/
depmod "$release"
cp -r /etc/initramfs-tools conf
sed -i 's/^MODULES=.*/MODULES=list/; s/^BUSYBOX=.*/BUSYBOX=n/' conf/initramfs.conf
printf '%s\\n' virtio_pci virtio_blk virtio_net ext4 >conf/modules
mkinitramfs -d conf -o "root/boot/initrd.img-$release" "$release" 2>/dev/null
mkdir -p "root/usr/lib/modules/$release"
for name in virtio_net nvme autofs4; do
    modprobe --set-version "$release" --show-depends "$name" | grep '^insmod ' | cut -d' ' -f2
done | sort -u | xargs -r cp --parents --target-directory="root"
cp "/usr/lib/modules/$release"/modules.[ob]* "root/usr/lib/modules/$release/"
[ ! -d root/lib ] || { cp -r root/lib/modules root/usr/lib/; rm -rf root/lib; }
depmod --basedir "$work/root/usr" "$release"
rm -f root/boot/config-* root/boot/System.map-*
tar -cC root boot "usr/lib/modules/$release"
"""
#: On the VM, with those files as its input: both kernels beside its own, in its menu.
PLACE = f"""
set -eu
tar -cf /root/before-rollout.tar \\
    $(ls -d /boot/grub/grub.cfg /boot/grub/grubenv /etc/default/grub.d/gdsdeploy.cfg 2>/dev/null)
tar -xC /
cp "/boot/vmlinuz-$(uname -r)" /boot/vmlinuz-{BROKEN}
update-grub 2>/dev/null
sync
"""
#: What was there before, and nothing else.
TAKE = f"""
set -eu
rm -rf "/usr/lib/modules/$1" /boot/*-{BROKEN} /boot/*-"$1"
rm -f /etc/default/grub.d/gdsdeploy.cfg /var/lib/gdsdeploy/rollout/once.json
rmdir /var/lib/gdsdeploy/rollout /var/lib/gdsdeploy 2>/dev/null || true
tar -xPf /root/before-rollout.tar
rm /root/before-rollout.tar
sync
"""


def wait_for(host: LabHost, previous: str) -> str:
    """Wait until the host answers in another boot than ``previous``; returns that boot's id."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        host.wait_ssh(PATIENCE)
        done = host.ssh(["cat", "/proc/sys/kernel/random/boot_id"], ok=(0, 255))
        if done.status == 0 and done.stdout.strip() not in ("", previous):
            return done.stdout.strip()
        time.sleep(1)
    raise AssertionError(f"{host.name} is still in boot {previous}")


def rollout(host: LabHost, *words: str, ok: tuple[int, ...] = (0,)) -> dict[str, Any]:
    done = host.ssh(["sudo", "python3", PROGRAM, "rollout", *words, "--json"], ok=ok, timeout=300)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def put_program(host: LabHost) -> None:
    host.ssh(["tee", PROGRAM], input=hostapp.build())


@pytest.fixture(scope="module")
def other(lab: Lab) -> Iterator[str]:
    """The release of another kernel in the VM's menu, while the one that it runs is its default."""
    machine, builder = lab.host("gpu1"), lab.host("build1")
    machine.wait_ssh(PATIENCE)
    builder.wait_ssh()
    running = machine.ssh(["uname", "-r"]).stdout.strip()
    argv = ["ssh", "-F", str(lab.ssh_config), builder.name, "sudo", "sh", "-s", running]
    menu = subprocess.run(argv, input=MAKE.encode(), capture_output=True, timeout=300)
    assert menu.returncode == 0, menu.stderr.decode()
    outcome = re.search(rb"boot/vmlinuz-(\S+?)\0", menu.stdout)
    assert outcome is not None
    release = outcome.group(1).decode()
    machine.ssh(["sudo", "sh", "-c", PLACE], input=menu.stdout, timeout=300)
    put_program(machine)
    yield release
    machine.wait_ssh(PATIENCE)
    machine.ssh(["sudo", "sh", "-c", TAKE, "take", release])


def test_a_kernel_runs_once(lab: Lab, other: str) -> None:
    host = lab.host("gpu1")
    before = rollout(host, "status")
    mine, first = before["kernel"], before["boot_id"]
    assert before["once"]["possible"], before["once"]["problem"]

    armed = rollout(host, "once", "--kernel", other, "--default", mine)
    assert (armed["once"], armed["kernel"], armed["default"]) == (True, other, mine)
    status = rollout(host, "status")
    assert (status["boot"]["default"], status["boot"]["next"], status["once"]["state"]) == (mine, other, "armed")

    assert rollout(host, "reboot", "--boot-id", first, "--rollout", "plan-1")["did"] == "ordered"
    second = wait_for(host, first)
    assert host.ssh(["uname", "-r"]).stdout.strip() == other
    put_program(host)
    status = rollout(host, "status")
    assert (status["boot"]["default"], status["boot"]["next"], status["once"]["state"]) == (mine, mine, "booted")

    late = rollout(host, "reboot", "--boot-id", first, "--rollout", "plan-1")
    assert late == {"did": "already rebooted", "boot_id": second, "kernel": other}
    assert not rollout(host, "status")["reboot"]["ordered"]


def test_a_kernel_that_does_not_come_up_costs_one_power_cycle(lab: Lab, other: str) -> None:
    """It has no initramfs, so it finds no root and panics; without ``panic=`` it stays there.

    The kernel that ran once doesn't run again.
    """
    host = lab.host("gpu1")
    first = host.ssh(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()
    mine = rollout(host, "status")["boot"]["default"]
    assert mine != other
    size = host.log.stat().st_size
    rollout(host, "once", "--kernel", BROKEN, "--default", mine)
    assert rollout(host, "reboot", "--boot-id", first)["did"] == "ordered"
    deadline = time.monotonic() + PATIENCE
    while b"Kernel panic - not syncing" not in host.log.read_bytes()[size:]:
        assert time.monotonic() < deadline, "it was not booted"
        time.sleep(1)
    host.power_cycle()
    wait_for(host, first)
    put_program(host)
    status = rollout(host, "status")
    assert (status["kernel"], status["boot"]["next"]) == (mine, mine)
    assert (status["once"]["state"], status["once"]["kernel"]) == ("fell back", BROKEN)
    assert rollout(host, "once", "--clear")["changed"]
    assert rollout(host, "status")["once"]["state"] == "none"


@pytest.fixture(scope="module")
def exchanges(lab: Lab) -> dict[str, Any]:
    """What came of each try to exchange modules of the VM's own kernel."""
    host = lab.host("gpu1")
    host.wait_ssh(PATIENCE)
    put_program(host)
    script = (Path(__file__).parent / "exchange_modules.py").read_text()
    answers = host.ssh(["sudo", "python3", "-", PROGRAM], input=script, timeout=300).stdout
    outcome: dict[str, Any] = json.loads(answers)
    return outcome


OLD = dict.fromkeys(("dm_mirror", "dm_region_hash", "dm_log", "uinput"), "old")
NEW = {**OLD, "dm_log": "new"}


def test_modules_are_exchanged_with_the_service_that_holds_them(exchanges: dict[str, Any]) -> None:
    assert exchanges["the same"] == {"said": "nothing to do", "loaded": OLD, "service": False, "unfinished": False}
    plan = exchanges["plan"]
    assert (plan["safe"], plan["needed"], plan["modules"]) == (True, True, list(OLD))
    assert exchanges["exchanged"] == {"said": "reloaded", "loaded": NEW, "service": True, "unfinished": False}
    assert exchanges["again"] == {"said": "nothing to do", "loaded": NEW, "service": True, "unfinished": False}


def test_modules_in_use_and_modules_that_were_not_kept_stay(exchanges: dict[str, Any]) -> None:
    kind, words = exchanges["in use"]["said"]
    assert (kind, "/dev/uinput open" in words) == ("unsafe", True)
    kind, words = exchanges["not kept"]["said"]
    assert (kind, "could not be put back" in words) == ("unsafe", True)
    assert exchanges["in use"]["loaded"] == exchanges["not kept"]["loaded"] == OLD
    assert any("not 9.9.9" in reason for reason in exchanges["other kernel"])


def test_modules_that_the_kernel_refuses_give_way_to_those_before(exchanges: dict[str, Any]) -> None:
    kind, words = exchanges["refused by the kernel"]["said"]
    assert (kind, "modprobe dm_region_hash" in words) == ("reload", True)
    assert exchanges["refused by the kernel"]["loaded"] == OLD
    assert not exchanges["refused by the kernel"]["unfinished"]


def test_an_exchange_that_was_killed_half_way_is_finished_by_the_next(exchanges: dict[str, Any]) -> None:
    assert exchanges["killed"] == [9, [], False]
    assert exchanges["finished"] == {"said": "reloaded", "loaded": OLD, "service": True, "unfinished": False}
