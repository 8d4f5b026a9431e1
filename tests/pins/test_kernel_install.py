"""The kernel guard under the real kernel-install, on a root that boots through Boot Loader Specification entries."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from gdsdeploy.host.apply import guard
from gdsdeploy.zipapp import hostapp
from tests.pins.inplace import in_place
from tests.unit.host.kmod.kmod_root import EXPECTED, RELEASE, Root

NEWER = "6.12.117-1.el9.x86_64"
TOKEN = "0123456789abcdef0123456789abcdef"
EXPECTATION = replace(EXPECTED, os="rhel-9")
#: What RHEL's own plugin does with UPDATEDEFAULT=yes.
GRUB_PLUGIN = """#!/bin/sh
[ "$1" = add ] && grub-editenv /boot/grub2/grubenv set saved_entry={token}-"$2"
exit 0
"""
#: Everything that is written lands in memory, above this machine's own folders, and is gone with the namespace.
IN_PLACE = """
mount -t tmpfs tmpfs /boot
cp -r "$1/." /
shift
"$@"
echo "ended with $?"
cat /boot/grub2/grubenv
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The files of a host: two kernels of which one is locked and good, and the guard."""
    tree = tmp_path / "root"
    good = Root(tmp_path / "good")
    good.nvidia()
    good.nvidia_fs()
    (tree / "usr/lib/modules").mkdir(parents=True)
    (tmp_path / "good/lib/modules" / RELEASE).rename(tree / "usr/lib/modules" / RELEASE)
    (tmp_path / "good/usr/src").rename(tree / "usr/src")
    (tree / "usr/lib/modules" / NEWER).mkdir()
    write(tree / f"boot/vmlinuz-{NEWER}", "imitated\n")
    write(tree / f"boot/vmlinuz-{RELEASE}", "imitated\n")
    write(
        tree / f"boot/loader/entries/{TOKEN}-{RELEASE}.conf", f"title x\nversion {RELEASE}\nlinux /vmlinuz-{RELEASE}\n"
    )
    write(tree / "boot/grub2/grubenv", f"# GRUB Environment Block\nsaved_entry={TOKEN}-{RELEASE}\n".ljust(1024, "#"))
    write(tree / "etc/kernel/install.conf", "layout=bls\n")
    write(tree / "etc/kernel/entry-token", TOKEN + "\n")
    write(tree / "etc/kernel/cmdline", "root=/dev/vda1\n")
    (tree / "boot" / TOKEN).mkdir()
    write(tree / "etc/kernel/install.d/20-grub.install", GRUB_PLUGIN.format(token=TOKEN), executable=True)
    write(tree / "etc/kernel/install.d/99-gdsdeploy-guard.install", guard.hook("dnf"), executable=True)
    write(tree / "etc/gdsdeploy/expectation.json", json.dumps(asdict(EXPECTATION)))
    (tree / "usr/lib/gdsdeploy").mkdir()
    hostapp.build(tree / "usr/lib/gdsdeploy/gdsdeploy-host.pyz")
    return tree


def write(path: Path, text: str, *, executable: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if executable:
        path.chmod(0o755)


def kernel_install(root: Path, *words: str) -> str:
    """Run kernel-install there; what it said, and GRUB's environment afterwards."""
    argv = in_place(IN_PLACE, root, "kernel-install", *words, over=("etc", "usr", "var"))
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False, timeout=300)
    output = done.stdout + done.stderr
    assert "ended with 0" in output, output
    return output


def test_a_new_kernel_does_not_become_the_default(root: Path) -> None:
    guard = root / "etc/kernel/install.d/99-gdsdeploy-guard.install"
    output = kernel_install(root, "add", NEWER, f"/boot/vmlinuz-{NEWER}")
    assert f"gdsdeploy: kernel {NEWER} is not admitted (it has no module nvidia and no module nvidia_fs)" in output
    assert f"{RELEASE} becomes the boot default again" in output
    assert f"saved_entry={TOKEN}-{RELEASE}\n" in output
    guard.unlink()
    assert f"saved_entry={TOKEN}-{NEWER}\n" in kernel_install(root, "add", NEWER, f"/boot/vmlinuz-{NEWER}")


def test_the_last_good_kernel_does_not_go_silently(root: Path) -> None:
    entry = root / f"boot/loader/entries/{TOKEN}-{NEWER}.conf"
    entry.write_text(f"title x\nversion {NEWER}\nlinux /vmlinuz-{NEWER}\n")
    (root / f"boot/vmlinuz-{RELEASE}").unlink()
    output = kernel_install(root, "remove", RELEASE)
    assert f"the locked kernel {RELEASE} was removed" in output
    assert "comes up without GPUDirect Storage" in output
