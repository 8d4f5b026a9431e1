"""Canonical's packages of built modules as the lab makes them: real .debs, which the lock verb chooses and reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from gdsdeploy.lock import lockfile
from gdslab.kit import kernel, prebuilt
from gdslab.kit.content import Content
from gdslab.kit.ubuntu import RELEASES
from tests.commandline import run
from tests.repos import kitcontent
from tests.repos.conftest import Ubuntu
from tests.repos.cuda import CUDA_UBUNTU, NOBLE, noble_suites, ubuntu_kernel
from tests.unit.host.kmod.kmod_elf import module_bytes

NUMBER = RELEASES["ubuntu-24.04"]
RELEASE, VERSION = NUMBER.release, NUMBER.kernel
DRIVER, NVIDIA_FS = f"linux-modules-nvidia-550-open-{RELEASE}", f"linux-modules-nvidia-fs-{RELEASE}"


def with_sign_file(content: Content, work: Path) -> Content:
    """Debian's kbuild package with a program that appends a line: the kernel's own is only in Debian's package."""
    tools = work / f"unpacked/linux-kbuild-{kernel.ABI}_{kernel.VERSION}"
    program = tools / f"files/usr/lib/linux-kbuild-{kernel.ABI}/scripts/sign-file"
    program.parent.mkdir(parents=True)
    (tools / "control").mkdir()
    program.write_text('#!/bin/sh\n[ -s "$2" ] && [ -s "$3" ] && echo signed >>"$4"\n')
    program.chmod(0o755)
    return content


@pytest.fixture
def fleet(ubuntu: Ubuntu, tmp_path: Path) -> Path:
    """A fleet file whose profile takes its modules from the lab's packages."""
    work, out = tmp_path / "work", ubuntu.archive.root.parent
    vermagic = f"{RELEASE} SMP preempt mod_unload modversions "
    modules = {
        "nvidia.ko": module_bytes(license="Dual MIT/GPL", info=[("version", "550.163.01")], vermagic=vermagic),
        "nvidia-fs.ko": module_bytes("nvidia_fs", info=[("version", "2.26.6")], vermagic=vermagic),
    }
    for name, content in modules.items():
        (tmp_path / name).write_bytes(content)
    stack = with_sign_file(kitcontent.content(work), work)
    paths = {name: tmp_path / name for name in modules}
    fingerprint = prebuilt.publish("ubuntu-24.04", stack, paths, out, tmp_path / "kit")
    newer = ubuntu_kernel("6.14.0-37", VERSION, hwe="hwe-6.14", headers=False)
    ubuntu.publish(noble_suites([*NOBLE, *newer]), CUDA_UBUNTU)
    value = yaml.safe_load(ubuntu.fleet.read_text())
    value["repositories"]["restricted"] = {
        "uri": f"{ubuntu.server.uri}/{prebuilt.REPOSITORY}",
        "suites": ["/"],
        "keyring": str(out / "restricted.gpg"),
        "fingerprints": [fingerprint],
    }
    profile = value["profiles"]["gds"]
    profile.update(driver="550", modules="packaged", repositories=["restricted", *profile["repositories"]])
    ubuntu.fleet.write_text(yaml.safe_dump(value))
    return ubuntu.fleet


def test_the_lock_verb_chooses_and_reads_the_packages(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("lock", fleet) == 0
    assert "[packaged-nvidia-fs]" in capsys.readouterr().err
    target = lockfile.read(lockfile.beside(fleet)).targets["gds"]
    assert (target.kernel.release, target.driver.version) == (RELEASE, "550.163.01")
    assert {module.module: module.package for module in target.packaged} == {"nvidia": DRIVER, "nvidia_fs": NVIDIA_FS}
    names = {package.package for package in target.packages}
    assert {"nvidia-firmware-550-550.163.01", "nvidia-kernel-common-550", "libnvidia-compute-550"} <= names
    assert not [name for name in names if "dkms" in name or "headers" in name or "kernel-source" in name]
    assert run("lock", "--check", fleet) == 0


def test_the_files_are_those_that_the_lock_names(fleet: Path, tmp_path: Path) -> None:
    assert run("lock", fleet) == 0
    target = lockfile.read(lockfile.beside(fleet)).targets["gds"]
    for module in target.packaged:
        (deb,) = (tmp_path / "www/restricted").glob(f"{module.package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", deb, tmp_path / "root"], check=True)
        file = tmp_path / "root/lib/modules" / RELEASE / module.file
        digest = subprocess.run(["sha256sum", file], check=True, capture_output=True, text=True).stdout.split()[0]
        assert digest == module.sha256


def test_explain_and_the_other_supply_after_a_change_of_the_profile(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("lock", fleet) == 0
    assert run("lock", "--explain", "driver", fleet) == 0
    assert DRIVER in capsys.readouterr().out
    value = yaml.safe_load(fleet.read_text())
    value["profiles"]["gds"].update(modules="auto")
    fleet.write_text(yaml.safe_dump(value))
    assert run("lock", "--check", fleet) == 12
    assert run("lock", fleet) == 0
    target = lockfile.read(lockfile.beside(fleet)).targets["gds"]
    assert target.packaged == ()
    assert target.driver.source_tree == "/usr/src/nvidia-550.54.15"
