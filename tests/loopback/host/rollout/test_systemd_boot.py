"""systemd-boot: its entries, its EFI variables, and a bootctl that writes them as the real one does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gdsdeploy.host.boot import once, sdboot
from gdsdeploy.host.boot.loader import ENTRIES, RECORD, BootError, loader
from gdsdeploy.host.boot.sdboot import SystemdBoot
from gdsdeploy.host.errors import RolloutError
from gdsdeploy.host.rootdir import Files

NEW, OLD = "6.12.95+deb13-amd64", "6.1.0-50-amd64"
MACHINE = "0123456789abcdef0123456789abcdef"
VENDOR = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
EFIVARS = "sys/firmware/efi/efivars"
ENTRY = """\
title      Debian GNU/Linux 13 (trixie)
version    {release}
options    root=UUID=b1c7f0a4 ro
linux      /{machine}/{release}/linux
"""
#: As systemd's: a value in UTF-16 with a zero at its end, after attributes; an empty name deletes the variable.
BOOTCTL = """#!/usr/bin/python3
import os, sys
verb, name = sys.argv[1:]
variable = {"set-default": "LoaderEntryDefault", "set-oneshot": "LoaderEntryOneShot"}[verb]
path = "%s/" + variable + "-%s"
if name:
    open(path, "wb").write(bytes([7, 0, 0, 0]) + (name + "\\0").encode("utf-16-le"))
elif os.path.exists(path):
    os.unlink(path)
"""


def variable(root: Path, name: str, content: bytes | str) -> None:
    folder = root / EFIVARS
    folder.mkdir(parents=True, exist_ok=True)
    data = content if isinstance(content, bytes) else f"{content}\0".encode("utf-16-le")
    (folder / f"{name}-{VENDOR}").write_bytes(b"\x06\0\0\0" + data)


def entry(root: Path, release: str, name: str = "") -> None:
    folder = root / "boot/efi/loader/entries"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name or f'{MACHINE}-{release}'}.conf").write_text(ENTRY.format(release=release, machine=MACHINE))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host that systemd-boot has started, with two kernels."""
    for release in (OLD, NEW):
        entry(tmp_path, release)
    (tmp_path / "boot/efi/loader/loader.conf").write_text("timeout 3\nconsole-mode keep\n")
    variable(tmp_path, "LoaderInfo", "systemd-boot 257.13-1~deb13u1")
    variable(tmp_path, "LoaderFeatures", (0b111111).to_bytes(8, "little"))
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("11111111-1111-1111-1111-111111111111\n")
    return tmp_path


@pytest.fixture
def running(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, with a bootctl that changes its variables."""
    program = root / "bin/bootctl"
    program.parent.mkdir()
    program.write_text(BOOTCTL % (root / EFIVARS, VENDOR))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(sdboot.SystemdBoot, "only_here", lambda self: None)
    return root


def test_the_newest_entry_is_the_default_unless_something_names_another(root: Path) -> None:
    assert loader(str(root)).kernels() == {
        "default": NEW, "default_entry": f"{MACHINE}-{NEW}", "next": NEW, "next_entry": f"{MACHINE}-{NEW}",
    }  # fmt: skip
    (root / "boot/efi/loader/loader.conf").write_text(f"default {MACHINE}-6.1.*\n")
    assert loader(str(root)).kernels()["default"] == OLD
    variable(root, "LoaderEntryDefault", f"{MACHINE}-{NEW}.conf")
    assert loader(str(root)).kernels()["default"] == NEW
    variable(root, "LoaderEntryOneShot", f"{MACHINE}-{OLD}.conf")
    assert (loader(str(root)).kernels()["default"], loader(str(root)).kernels()["next"]) == (NEW, OLD)


def test_counted_attempts_belong_to_no_name(root: Path) -> None:
    (root / f"boot/efi/loader/entries/{MACHINE}-{NEW}.conf").unlink()
    entry(root, NEW, f"{MACHINE}-{NEW}+2-1")
    assert loader(str(root)).entry_of(NEW).ident == f"{MACHINE}-{NEW}"
    variable(root, "LoaderEntryOneShot", f"{MACHINE}-{NEW}+2-1.conf")
    assert loader(str(root)).kernels()["next"] == NEW


def test_a_host_that_grub_started_is_none_of_these(root: Path) -> None:
    variable(root, "LoaderInfo", "GRUB 2.12")
    assert not SystemdBoot(str(root)).present()


def test_arguments_are_in_its_entries_even_beside_a_menu_of_grub(root: Path) -> None:
    (root / "boot/grub").mkdir()
    (root / "boot/grub/grub.cfg").write_text("menuentry 'x' {\n}\n")
    boot_loader = loader(str(root)).arguments()
    assert boot_loader.kind == ENTRIES
    assert len(boot_loader.places) == 2


def test_a_default_is_set_and_the_earlier_one_comes_back(running: Path) -> None:
    variable(running, "LoaderEntryDefault", f"{MACHINE}-{NEW}.conf")
    assert loader(str(running)).default(OLD, check=True)["changed"] is True
    assert loader(str(running)).kernels()["default"] == NEW
    assert loader(str(running)).default(OLD)["changed"] is True
    assert loader(str(running)).default(OLD)["changed"] is False
    assert loader(str(running)).kernels()["default"] == OLD
    before = json.loads((running / RECORD.lstrip("/")).read_text())
    assert before == {"before": f"{MACHINE}-{NEW}.conf", "set": [f"{MACHINE}-{OLD}.conf"]}
    assert loader(str(running)).undo_default(check=True)["changed"] is True
    assert loader(str(running)).undo_default()["kernel"] == NEW
    assert not (running / RECORD.lstrip("/")).exists()
    assert loader(str(running)).undo_default()["changed"] is False


def test_a_default_that_somebody_set_since_stays(running: Path) -> None:
    loader(str(running)).default(OLD)
    variable(running, "LoaderEntryDefault", "windows.conf")
    assert loader(str(running)).undo_default()["changed"] is False
    assert sdboot._text(Files(str(running)), "LoaderEntryDefault") == "windows.conf"


def test_an_administrators_entry_of_the_kernel_stays_the_default(running: Path) -> None:
    entry(running, OLD, "mine")
    variable(running, "LoaderEntryDefault", "mine.conf")
    assert loader(str(running)).default(OLD) == {
        "changed": False, "changes": [], "kernel": OLD, "entry": "mine",
    }  # fmt: skip


def test_a_kernel_without_an_entry_changes_nothing(running: Path) -> None:
    with pytest.raises(BootError, match=r"no entry for kernel 6\.99; it has: 6\.12"):
        loader(str(running)).default("6.99")
    assert not (running / RECORD.lstrip("/")).exists()


def test_a_kernel_boots_once_and_the_default_stays(running: Path) -> None:
    answer = once.arm(NEW, OLD, str(running))
    assert (answer["once"], answer["kernel"], answer["default"]) == (True, NEW, OLD)
    assert (loader(str(running)).kernels()["default"], loader(str(running)).kernels()["next"]) == (OLD, NEW)
    assert once.arm(NEW, OLD, str(running))["changed"] is False
    assert once.state(str(running))["state"] == "armed"
    # systemd-boot deletes the variable before it starts the entry.
    (running / EFIVARS / f"LoaderEntryOneShot-{VENDOR}").unlink()
    (running / "proc/sys/kernel/random/boot_id").write_text("22222222-2222-2222-2222-222222222222\n")
    assert once.state(str(running), NEW)["state"] == "booted"
    assert once.state(str(running), OLD)["state"] == "fell back"


def test_a_boot_that_was_armed_is_withdrawn(running: Path) -> None:
    once.arm(NEW, OLD, str(running))
    assert once.clear(str(running))["changed"] is True
    assert loader(str(running)).kernels()["next"] == OLD
    assert once.state(str(running))["state"] == "none"


def test_one_that_cannot_boot_an_entry_once_is_named(running: Path) -> None:
    variable(running, "LoaderFeatures", (1).to_bytes(8, "little"))
    with pytest.raises(RolloutError, match="can't boot an entry once"):
        once.arm(NEW, OLD, str(running))


def test_damaged_variables_name_nothing(root: Path) -> None:
    for content in (b"", b"\xd8", b"\xff" * 3000, "nothing.conf"):
        variable(root, "LoaderEntryDefault", content)
        variable(root, "LoaderEntryOneShot", content)
        assert loader(str(root)).kernels()["next"] == NEW
