"""The kernel guard on a real host: packages with kernels come and go by the real dpkg, and the default stays good.

A light host has dpkg, run-parts, GRUB's own scripts and a journal; only the disk that GRUB would probe is imitated.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gdsdeploy.host.boot.bls import menu_entries
from gdsdeploy.zipapp import hostapp
from gdslab import guest
from gdslab.host import LabHost
from tests.lab import small_stack
from tests.lab.roleplay import lights, play, put
from tests.unit.host.kmod.kmod_root import EXPECTED, RELEASE, VERSION, Root

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
NEWER = "6.12.117+deb13-amd64"
PROGRAM = ["sudo", "python3", "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"]
HOOKS = ["/etc/kernel/postinst.d/zzz-gdsdeploy-guard", "/etc/kernel/postrm.d/zzz-gdsdeploy-guard"]
EXPECTATION = replace(EXPECTED, host="build1", driver_tree="/usr/src/nvidia-current-open-" + VERSION)
#: What Debian's own linux-image packages do in their maintainer scripts.
SCRIPT = """#!/bin/sh
set -e
test -d /etc/kernel/{event}.d || exit 0
export DEB_MAINT_PARAMS="$*"
run-parts --report --exit-on-error --arg={release} --arg=/boot/vmlinuz-{release} /etc/kernel/{event}.d
"""
#: GRUB with its own scripts, which ask the lab's stand-in about the disk.
GRUB = """
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install --no-install-recommends grub2-common >/dev/null
install -m 0755 /dev/stdin /usr/sbin/grub-probe
# GRUB's hooks do nothing in a container.
printf '#!/bin/sh\\nexit 1\\n' >/usr/local/bin/systemd-detect-virt
chmod 0755 /usr/local/bin/systemd-detect-virt
mkdir -p /boot/grub
touch /boot/grub/grub.cfg
printf 'GRUB_TIMEOUT=0\\nGRUB_DISABLE_OS_PROBER=true\\nexport GRUB_PROBE_UUID=0\\n' >/etc/default/grub
"""


def kernel_package(folder: Path, release: str, tree: Path | None = None) -> Path:
    """A package of a kernel with Debian's maintainer scripts; ``tree`` is laid over its files."""
    files = folder / f"files-{release}"
    modules = files / "lib" / "modules" / release
    modules.mkdir(parents=True)
    (modules / "modules.order").touch()
    (files / "boot").mkdir()
    (files / "boot" / f"vmlinuz-{release}").write_text("imitated\n")
    if tree is not None:
        subprocess.run(["cp", "-a", f"{tree}/.", files], check=True)
    scripts = {event: SCRIPT.format(event=event, release=release) for event in ("postinst", "postrm")}
    return small_stack.deb(folder, f"linux-image-{release}", "1", files=files, scripts=scripts)


@pytest.fixture(scope="module")
def host() -> Iterator[LabHost]:
    """A light host with GRUB, the host program and the expectation."""
    with lights("guard") as lab:
        light = lab.host("build1")
        probe = guest.data("guest/grub-probe").read_bytes()
        light.ssh(["sudo", "sh", "-c", GRUB], input=probe, timeout=300)
        put(light, "/usr/lib/gdsdeploy/gdsdeploy-host.pyz", hostapp.build())
        light.ssh(["sudo", "mkdir", "-p", "/var/lib/gdsdeploy"])
        put(light, "/etc/gdsdeploy/expectation.json", json.dumps(asdict(EXPECTATION)).encode())
        yield light


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, host: LabHost) -> None:
    """Both kernels' packages, on the host: the locked one comes with good modules, as if DKMS had built them."""
    folder = tmp_path_factory.mktemp("kernels")
    good = Root(folder / "good")
    good.nvidia()
    good.nvidia_fs()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for package in (kernel_package(folder, RELEASE, folder / "good"), kernel_package(folder, NEWER)):
            archive.add(package, package.name)
    host.ssh(["tar", "-C", "/tmp", "-xf", "-"], input=buffer.getvalue())


def install(host: LabHost, release: str) -> str:
    """Install a kernel as a user does; what the terminal shows."""
    return dpkg(host, "--install", f"/tmp/linux-image-{release}_1_amd64.deb")


def dpkg(host: LabHost, *words: str) -> str:
    done = host.ssh(["sudo", "sh", "-c", f"dpkg {' '.join(words)} 2>&1"], timeout=120)
    assert host.ssh(["dpkg", "--audit"]).stdout == ""
    return done.stdout


def default(host: LabHost) -> str:
    return str(json.loads(host.ssh([*PROGRAM, "boot", "show", "--json"]).stdout)["default"])


def journal(host: LabHost) -> str:
    return host.ssh(["sudo", "journalctl", "--quiet", "--identifier=gdsdeploy-guard", "--output=cat"]).stdout


def test_the_role_puts_the_guard_there_once(host: LabHost, packages: None, tmp_path: Path) -> None:
    options = {"gds_kernel_release": RELEASE, "gds_kernel_packages": []}
    assert play(host, tmp_path, "gds_kernel", **options)
    assert host.ssh(["ls", *HOOKS]).stdout.split() == sorted(HOOKS)
    assert host.ssh(["run-parts", "--test", "/etc/kernel/postinst.d"]).stdout.split()[-1] == HOOKS[0]
    assert play(host, tmp_path, "gds_kernel", **options) == []


def test_a_kernel_without_modules_does_not_become_the_default(host: LabHost, packages: None) -> None:
    assert f"the locked kernel {RELEASE} is the boot default, and its modules are good" in install(host, RELEASE)
    output = install(host, NEWER)
    assert f"gdsdeploy: kernel {NEWER} is not admitted (it has no module nvidia and no module nvidia_fs)" in output
    assert f"{RELEASE} becomes the boot default again" in output, "no default was set, so GRUB chose the newest"
    assert default(host) == RELEASE
    assert f"{RELEASE} stays the boot default" in install(host, NEWER)
    assert f"kernel {NEWER} is not admitted" in journal(host)
    menu = host.ssh(["sudo", "cat", "/boot/grub/grub.cfg"]).stdout
    assert f"gnulinux-{NEWER}-advanced" in menu
    status = json.loads(host.ssh([*PROGRAM, "guard", "status", "--json"]).stdout)
    assert status["ok"]
    assert {entry["release"]: entry["admitted"] for entry in status["kernels"]} == {RELEASE: True, NEWER: False}


def test_a_default_that_others_moved_is_brought_back(host: LabHost, packages: None) -> None:
    """As an administrator does who wants the newest kernel."""
    menu = host.ssh(["sudo", "cat", "/boot/grub/grub.cfg"]).stdout
    entry = next(entry for entry in menu_entries(menu) if entry.release == NEWER and "advanced" in entry.path)
    host.ssh(["sudo", "grub-set-default", entry.path])
    assert default(host) == NEWER
    status = host.ssh([*PROGRAM, "guard", "status"], ok=(1,)).stdout.splitlines()
    assert f"{NEWER} (default, next): not admitted: it has no module nvidia and no module nvidia_fs" in status
    assert f"{RELEASE} (locked): admitted" in status
    assert f"{RELEASE} becomes the boot default again" in install(host, NEWER)
    assert default(host) == RELEASE


def test_the_default_is_refused_to_a_kernel_whose_modules_are_not_good(host: LabHost, packages: None) -> None:
    other = {**asdict(EXPECTATION), "driver_version": "580.1", "kernel_release": NEWER}
    put(host, "/tmp/other.json", json.dumps(other).encode())
    refused = host.ssh([*PROGRAM, "guard", "default", "--expectation", "/tmp/other.json"], ok=(1,))
    assert f"kernel {NEWER} is not admitted: it has no module nvidia" in refused.stderr
    assert default(host) == RELEASE


def test_a_host_without_python_installs_kernels_all_the_same(host: LabHost, packages: None) -> None:
    host.ssh(["sudo", "mv", "/usr/bin/python3", "/usr/bin/python3.away"])
    try:
        assert f"gdsdeploy: kernel {NEWER}: nobody can tell whether it may boot by default" in install(host, NEWER)
    finally:
        host.ssh(["sudo", "mv", "/usr/bin/python3.away", "/usr/bin/python3"])
    assert default(host) == RELEASE
    assert "python3 is missing" in journal(host)


def test_the_last_good_kernel_does_not_go_silently(host: LabHost, packages: None) -> None:
    output = dpkg(host, "--purge", f"linux-image-{RELEASE}")
    assert f"the locked kernel {RELEASE} was removed" in output
    assert f"the next boot ({NEWER}) comes up without GPUDirect Storage" in output
    assert "provision this host before it reboots" in journal(host)


def test_remove_dismisses_the_guard(host: LabHost, packages: None, tmp_path: Path) -> None:
    assert play(host, tmp_path, "gds_remove")
    assert host.ssh(["ls", *HOOKS], ok=(2,)).stdout == ""
    assert "gdsdeploy" not in dpkg(host, "--purge", f"linux-image-{NEWER}")
