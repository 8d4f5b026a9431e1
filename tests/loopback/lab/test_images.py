"""Base systems: how they are made, and what their disk begins with."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.lock import lockfile
from gdslab import guest, images, recipe
from gdslab.archive import Archive

TRIXIE = guest.RELEASES["trixie"]


def test_mmdebstrap_command(mirror: Archive) -> None:
    script = guest.data("guest/base.sh")
    signed = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    assert recipe.debian(TRIXIE, mirror, "light").argv(Path("/c/root"), Path("/t")) == [
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        "--include=ca-certificates,dbus,iproute2,kmod,openssh-server,procps,python3,python3-apt,sudo,systemd,systemd-sysv,udev",
        '--aptopt=Acquire::Check-Valid-Until "false"',
        '--aptopt=Acquire::Languages "none"',
        '--setup-hook=install -D /t/etc/dpkg/dpkg.cfg.d/lab "$1/etc/dpkg/dpkg.cfg.d/lab"',
        f'--customize-hook=sh {script} "$1" /t light admin /mnt/nvme',
        "trixie",
        "/c/root",
        f"{signed} http://mirror.example/debian trixie main",
        f"{signed} http://mirror.example/debian trixie-updates main",
        f"{signed} http://mirror.example/debian-security trixie-security main",
    ]


def test_vm_hosts_begin_with_the_kernel_that_a_lock_names(mirror: Archive) -> None:
    pattern = r"--include=?name(^linux-image-6\.12\.95\+deb12\-amd64$)"
    argv = recipe.debian(TRIXIE, mirror, "vm").argv(Path("/c/root"), Path("/t"))
    assert pattern in argv
    assert argv[-1].endswith(" http://mirror.example/debian bookworm-backports main")
    own = guest.ImagePackages((), (("linux-image-6.1.0-50-amd64", "6.1.176-1"),), kernel=True)
    assert pattern not in recipe.debian(TRIXIE, mirror, "vm", own).argv(Path("/c/root"), Path("/t"))
    assert recipe.debian(guest.RELEASES["bookworm"], mirror, "vm").packages[-1] == "linux-image-amd64"


def test_name_changes_with_recipe_and_archive_only(mirror: Archive) -> None:
    name = recipe.debian(TRIXIE, mirror, "vm").name
    assert name == recipe.debian(TRIXIE, replace(mirror), "vm").name
    assert name.startswith("trixie-vm-")
    others = {
        recipe.debian(TRIXIE, mirror, "light").name,
        recipe.debian(guest.RELEASES["bookworm"], mirror, "vm").name,
        recipe.debian(TRIXIE, replace(mirror, uri="http://other.example/debian"), "vm").name,
        recipe.debian(TRIXIE, replace(mirror, proxy={"Acquire::http::Proxy": "http://p.example"}), "vm").name,
    }
    assert len(others) == 4
    assert name not in others


#: One package for hosts that boot it, one for machines that build.
BEGINS = guest.ImagePackages(
    sources=("deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main non-free",),
    packages=(("linux-image-6.1.0-50-amd64", "6.1.176-1"), ("libcuda1", "535.261.03-1")),
    kernel=True,
)


def test_what_hosts_begin_with_is_installed_last_and_exactly(mirror: Archive) -> None:
    argv = recipe.debian(TRIXIE, mirror, "vm", BEGINS).argv(Path("/c/root"), Path("/t"))
    plain = recipe.debian(TRIXIE, mirror, "vm").argv(Path("/c/root"), Path("/t"))
    hooks = [word for word in argv if word.startswith("--customize-hook=")]
    assert hooks[-1] == (
        f'--customize-hook=sh {guest.data("guest/begin.sh")} "$1" 1 '
        "'deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main non-free' "
        "linux-image-6.1.0-50-amd64=6.1.176-1 libcuda1=535.261.03-1"
    )
    assert hooks[:-1] == [word for word in plain if word.startswith("--customize-hook=")]
    assert "linux-image-amd64" in next(word for word in plain if word.startswith("--include"))
    assert "linux-image" not in next(word for word in argv if word.startswith("--include")), "it boots its own kernel"
    names = {recipe.debian(TRIXIE, mirror, "vm", image).name for image in (None, BEGINS, replace(BEGINS, packages=()))}
    assert len(names) == 3


def test_hosts_begin_with_the_locked_packages_of_hosts_only() -> None:
    target = lockfile.read(Path(__file__).parents[2] / "golden/lab/gdsdeploy.lock").targets["gds"]
    begins = guest.image_packages(target)
    assert begins.kernel
    names = dict(begins.packages)
    assert {"libcuda1", "libcufile0", f"linux-image-{target.kernel.release}"} <= names.keys()
    assert not {"dkms", "nvidia-fs-dkms", f"linux-headers-{target.kernel.release}"} & names.keys()
    assert len(begins.sources) == len(target.indices)
    assert all(line.startswith("deb [signed-by=/usr/share/keyrings/") for line in begins.sources)


def test_boot_record_is_one_active_partition_behind_grub(tmp_path: Path) -> None:
    boot, core, disk = tmp_path / "boot.img", tmp_path / "core.img", tmp_path / "disk.raw"
    boot.write_bytes(b"\xeb" * 512)
    core.write_bytes(b"CORE" * 1000)
    disk.touch()
    images.write_boot_sectors(disk, boot, core)
    written = disk.read_bytes()
    assert written[:440] == b"\xeb" * 440
    assert written[510:512] == b"\x55\xaa"
    assert written[512:4512] == b"CORE" * 1000
    active, _, kind, _, first, count = struct.unpack("<B3sB3sII", written[446:462])
    assert (active, kind, first) == (0x80, 0x83, 2048)
    assert (first + count) * 512 == guest.DISK_BYTES


def test_grub_that_would_reach_into_the_partition_is_refused(tmp_path: Path) -> None:
    for name in ("boot", "disk"):
        (tmp_path / name).write_bytes(bytes(512))
    (tmp_path / "core").write_bytes(bytes(images.PARTITION_OFFSET - 511))
    with pytest.raises(ValueError, match="does not fit"):
        images.write_boot_sectors(tmp_path / "disk", tmp_path / "boot", tmp_path / "core")
    assert (tmp_path / "disk").read_bytes() == bytes(512)


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["--target=device", "/"], "/dev/vda1"),
        (["--device", "/dev/vda1", "--target=fs_uuid"], "some-uuid"),
        (["-t", "fs", "/boot"], "ext2"),
        (["--target=hints_string", "--device", "/dev/vda1"], "--hint-bios=hd0,msdos1"),
        (["--target=abstraction", "--device", "/dev/vda1"], ""),
    ],
)
def test_answers_for_grub(argv: list[str], answer: str) -> None:
    script = guest.data("guest/grub-probe")
    done = subprocess.run(
        ["sh", script, *argv], env={"GRUB_PROBE_UUID": "some-uuid"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == answer


def test_unknown_question_of_grub_fails(tmp_path: Path) -> None:
    assert subprocess.run(["sh", guest.data("guest/grub-probe"), "--target=zodiac", "/"], check=False).returncode == 1


def test_purge_keeps_what_a_lab_uses_and_discards_leftovers(tmp_path: Path) -> None:
    for name in ("trixie-vm-1", "trixie-light-1", "trixie-light-2.tmp-abc"):
        (tmp_path / name / "root").mkdir(parents=True)
    (tmp_path / "accelerator.json").write_text("{}")
    names = images.purge(tmp_path, {tmp_path / "trixie-light-1/root"})
    assert names == [tmp_path / "trixie-light-1"]
    assert [path.name for path in tmp_path.iterdir()] == ["trixie-light-1"]
    assert images.purge(tmp_path, set()) == []
    assert not tmp_path.exists()
    assert images.purge(tmp_path, set()) == []


def test_scripts_are_valid_shell() -> None:
    for folder in ("guest", "light", "standin"):
        for script in [
            *guest.data(folder).glob("*.sh"),
            *guest.data(folder).glob("seed"),
            *guest.data(folder).glob("grub-probe"),
        ]:
            subprocess.run(["sh", "-n", script], check=True)
