"""One boot of another kernel: GRUB's own editor on its own menu, and every place where it cannot forget an entry."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gdsdeploy.host import __main__ as program
from gdsdeploy.host.boot import grub, once
from gdsdeploy.host.boot.grub import MenuGrub
from gdsdeploy.host.boot.loader import loader
from gdsdeploy.host.errors import HostError, RolloutError

EVIDENCE = Path(__file__).parents[3] / "evidence" / "kmod" / "grub"
NEW, OLD = "6.12.94+deb13-amd64", "6.1.0-50-amd64"
ENTRY = f"gnulinux-advanced-/dev/vda>gnulinux-{NEW}-advanced-/dev/vda"
FIRST, SECOND = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
MOUNT = "{ids} 254:1 / {point} {options} - {kind} /dev/vda1 {more}\n"


def mounted(root: Path, kind: str = "ext4", options: str = "rw,relatime", more: str = "rw", point: str = "/") -> None:
    """What /proc says of the filesystem with GRUB's files; a partition of a plain disk in /sys."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    line = MOUNT.format(ids="29 1" if point == "/" else "30 29", point=point, options=options, kind=kind, more=more)
    (root / "proc/self/mountinfo").write_text(line)


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def boots(root: Path, ident: str) -> None:
    write(root, "proc/sys/kernel/random/boot_id", ident + "\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Debian's menu with two kernels, the old one the default, on ext4 on a partition."""
    folder = tmp_path / "boot/grub"
    folder.mkdir(parents=True)
    shutil.copy(EVIDENCE / "debian-13.saved.cfg", folder / "grub.cfg")
    shutil.copy(EVIDENCE / "grubenv", folder / "grubenv")
    write(tmp_path, grub.DEFAULTS.lstrip("/"), grub._DEFAULTS_TEXT)
    mounted(tmp_path)
    disk = tmp_path / "sys/devices/pci/block/vda/vda1"
    disk.mkdir(parents=True)
    write(disk, "partition", "1\n")
    (tmp_path / "sys/dev/block").mkdir(parents=True)
    (tmp_path / "sys/dev/block/254:1").symlink_to("../../devices/pci/block/vda/vda1")
    boots(tmp_path, FIRST)
    return tmp_path


def next_entry(root: Path) -> str:
    return loader(str(root)).kernels()["next"]


def test_the_next_boot_is_of_the_kernel_and_the_default_stays(root: Path) -> None:
    answer = once.arm(NEW, OLD, str(root))
    assert answer == {
        "changed": True, "once": True, "kernel": NEW, "entry": ENTRY, "default": OLD, "boot_id": FIRST,
    }  # fmt: skip
    after = loader(str(root)).kernels()
    assert (after["default"], after["next"]) == (OLD, NEW)
    block = (root / "boot/grub/grubenv").read_bytes()
    assert len(block) == grub.SIZE
    assert f"saved_entry=gnulinux-advanced-/dev/vda>gnulinux-{OLD}".encode() in block
    assert once.arm(NEW, OLD, str(root))["changed"] is False
    assert once.state(str(root))["state"] == "armed"


def test_what_the_boot_came_to_is_told_afterwards(root: Path) -> None:
    once.arm(NEW, OLD, str(root))
    # GRUB empties the entry before it boots it.
    MenuGrub(str(root)).change(["set", "next_entry="])
    assert once.state(str(root))["state"] == "withdrawn", "still the same boot: somebody else took it back"
    boots(root, SECOND)
    assert once.state(str(root), running=NEW)["state"] == "booted"
    assert once.state(str(root), running=OLD)["state"] == "fell back"
    again = once.arm(NEW, OLD, str(root))
    assert (again["changed"], again["boot_id"]) == (True, SECOND)
    assert once.state(str(root), running=OLD)["state"] == "armed"


def test_an_entry_left_from_the_boot_before_is_armed_anew(root: Path) -> None:
    """As where the host was started from another disk, and GRUB never saw it."""
    once.arm(NEW, OLD, str(root))
    boots(root, SECOND)
    assert once.arm(NEW, OLD, str(root))["changed"]
    assert once.state(str(root), running=OLD)["state"] == "armed"


def test_clear_takes_it_back_and_once_more_changes_nothing(root: Path) -> None:
    once.arm(NEW, OLD, str(root))
    answer = once.clear(str(root))
    assert (answer["changed"], answer["default"], next_entry(root)) == (True, OLD, OLD)
    assert once.state(str(root))["state"] == "none"
    assert once.clear(str(root))["changed"] is False


def test_the_default_itself_needs_no_entry_and_loses_a_stale_one(root: Path) -> None:
    once.arm(NEW, "", str(root))
    answer = once.arm(OLD, OLD, str(root))
    assert (answer["once"], answer["changed"], next_entry(root)) == (False, True, OLD)


def test_a_default_that_has_to_be_set_first_is_set_on_the_running_system_only(root: Path) -> None:
    (root / grub.DEFAULTS.lstrip("/")).unlink()
    with pytest.raises(HostError, match="running system only"):
        once.arm(NEW, OLD, str(root))
    assert next_entry(root) == OLD


def test_a_kernel_without_an_entry_is_not_armed(root: Path) -> None:
    before = (root / "boot/grub/grubenv").read_bytes()
    with pytest.raises(HostError, match=r"no entry for kernel 9\.9; it has"):
        once.arm("9.9", OLD, str(root))
    assert (root / "boot/grub/grubenv").read_bytes() == before
    assert once.record(str(root)) == {}


def lvm(root: Path) -> None:
    write(root, "sys/devices/pci/block/vda/vda1/dm/uuid", "LVM-abcdef\n")


def crypt(root: Path) -> None:
    write(root, "sys/devices/pci/block/vda/vda1/dm/uuid", "CRYPT-LUKS2-abcdef\n")


def nameless_mapper(root: Path) -> None:
    write(root, "sys/devices/pci/block/vda/vda1/dm/uuid", "")


def raid(root: Path) -> None:
    (root / "sys/devices/pci/block/vda/vda1/md").mkdir()


def partition_of_raid(root: Path) -> None:
    (root / "sys/devices/pci/block/vda/md").mkdir()


def btrfs(root: Path) -> None:
    mounted(root, "btrfs", more="rw,compress=zstd")


def zfs(root: Path) -> None:
    mounted(root, "zfs")


def overlay(root: Path) -> None:
    mounted(root, "overlay")


def journalled(root: Path) -> None:
    mounted(root, more="rw,data=journal")


def read_only(root: Path) -> None:
    mounted(root, options="ro,relatime")


def no_disk(root: Path) -> None:
    (root / "sys/dev/block/254:1").unlink()


def no_lines(root: Path) -> None:
    file = root / "boot/grub/grub.cfg"
    file.write_text(file.read_text().replace("save_env next_entry", "true"))


def no_grub(root: Path) -> None:
    (root / "boot/grub/grub.cfg").unlink()


def damaged(root: Path) -> None:
    (root / "boot/grub/grubenv").write_text("# GRUB Environment Block\n")


def separate_boot(root: Path) -> None:
    """The root filesystem is as good as any; /boot is what counts."""
    mounted(root, "btrfs", point="/boot")
    text = (root / "proc/self/mountinfo").read_text()
    mounted(root)
    (root / "proc/self/mountinfo").write_text((root / "proc/self/mountinfo").read_text() + text)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lvm, "is on LVM, through which GRUB can't write"),
        (crypt, "an encrypted disk"),
        (nameless_mapper, "the device mapper"),
        (raid, "software RAID"),
        (partition_of_raid, "software RAID"),
        (btrfs, "is on btrfs, where GRUB can't write its environment"),
        (zfs, "is on zfs"),
        (overlay, "is on overlay"),
        (separate_boot, "is on btrfs"),
        (journalled, "data=journal"),
        (read_only, "read-only"),
        (no_disk, "on no disk that the kernel shows"),
        (no_lines, "save_env next_entry"),
        (no_grub, "doesn't boot through GRUB"),
        (damaged, "isn't one of GRUB's environment blocks"),
    ],
)
def test_where_grub_cannot_forget_the_entry_nothing_is_armed(root: Path, spoil: object, words: str) -> None:
    """It would boot the new kernel again and again, whether or not that comes up."""
    spoil(root)  # type: ignore[operator]
    block = root / "boot/grub/grubenv"
    before = block.read_bytes()
    with pytest.raises(RolloutError) as caught:
        once.arm(NEW, OLD, str(root))
    assert caught.value.kind == "no-one-shot"
    assert words in caught.value.message
    assert block.read_bytes() == before
    state = once.state(str(root))
    assert (state["possible"], words in state["problem"]) == (False, True)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "vfat"])
def test_plain_filesystems_and_multipath_are_fine(root: Path, kind: str) -> None:
    mounted(root, kind)
    assert loader(str(root)).obstacles() == []
    write(root, "sys/devices/pci/block/vda/vda1/dm/uuid", "part1-mpath-3600a\n")
    assert loader(str(root)).obstacles() == []


def test_an_environment_that_is_not_there_yet_is_made(root: Path) -> None:
    (root / "boot/grub/grubenv").unlink()
    assert loader(str(root)).obstacles() == []
    once.arm(OLD, "", str(root))
    assert next_entry(root) == OLD


class TestBootLoaderSpecification:
    """RHEL's way: the environment may be a link into the EFI system partition."""

    NEWER, OLDER = "5.14.0-570.el9.x86_64", "5.14.0-427.el9.x86_64"
    CONFIG = 'if [ "${next_entry}" ] ; then\n   set next_entry=\n   save_env next_entry\nfi\n'

    @pytest.fixture
    def bls(self, root: Path) -> Path:
        for release in (self.OLDER, self.NEWER):
            write(root, f"boot/loader/entries/m-{release}.conf", f"version {release}\nlinux /vmlinuz-{release}\n")
        block = f"# GRUB Environment Block\nsaved_entry=m-{self.OLDER}\n".ljust(1024, "#")
        write(root, "boot/efi/EFI/redhat/grubenv", block)
        write(root, "boot/grub2/grub.cfg", self.CONFIG)
        (root / "boot/grub2/grubenv").symlink_to("../efi/EFI/redhat/grubenv")
        return root

    def test_an_entry_is_armed_and_cleared(self, bls: Path) -> None:
        answer = once.arm(self.NEWER, self.OLDER, str(bls))
        assert (answer["entry"], answer["default"]) == (f"m-{self.NEWER}", self.OLDER)
        assert next_entry(bls) == self.NEWER
        assert (bls / "boot/grub2/grubenv").is_symlink()
        once.clear(str(bls))
        assert next_entry(bls) == self.OLDER

    def test_the_place_behind_the_link_counts(self, bls: Path) -> None:
        mounted(bls, "btrfs", point="/boot/efi")
        assert ["btrfs" in obstacle for obstacle in loader(str(bls)).obstacles()] == [True]


@pytest.mark.parametrize("words", [[], ["--kernel", "../x"], ["--kernel", "6.1", "--clear"], ["--default", "6.1"]])
def test_unusable_arguments_end_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(["rollout", "once", *words])
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_refusal_is_json_where_json_was_asked_for(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lvm(root)
    arm = once.arm
    monkeypatch.setattr(once, "arm", lambda kernel, default: arm(kernel, default, str(root)))
    assert program.main(["rollout", "once", "--kernel", NEW, "--json"]) == 30
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["kind"], "LVM" in error["message"], bool(error["hint"])) == ("no-one-shot", True, True)
    assert program.main(["rollout", "once", "--kernel", NEW]) == 30
    assert capsys.readouterr().err.startswith("error: no kernel can be booted just once: ")
