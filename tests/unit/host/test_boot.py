from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from gdsdeploy.host.__main__ import main
from gdsdeploy.host.boot import bls, grub, present
from gdsdeploy.host.boot.loader import BootError, loader
from gdsdeploy.host.paths import EXPECTATION

EVIDENCE = Path(__file__).parents[2] / "evidence" / "kmod" / "grub"
NEW, OLD = "6.12.94+deb13-amd64", "6.1.0-50-amd64"
SUBMENU = "gnulinux-advanced-/dev/vda"


def text(name: str) -> str:
    return (EVIDENCE / name).read_text()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root folder with two kernels in Debian's own grub.cfg."""
    folder = tmp_path / "boot" / "grub"
    folder.mkdir(parents=True)
    shutil.copy(EVIDENCE / "debian-13.cfg", folder / "grub.cfg")
    return tmp_path


def test_entries_of_a_real_menu() -> None:
    result = bls.menu_entries(text("debian-13.cfg"))
    assert [(entry.path, entry.release, entry.recovery, entry.numbers) for entry in result] == [
        ("gnulinux-simple-/dev/vda", NEW, False, (0,)),
        (f"{SUBMENU}>gnulinux-{NEW}-advanced-/dev/vda", NEW, False, (1, 0)),
        (f"{SUBMENU}>gnulinux-{NEW}-recovery-/dev/vda", NEW, True, (1, 1)),
        (f"{SUBMENU}>gnulinux-{OLD}-advanced-/dev/vda", OLD, False, (1, 2)),
        (f"{SUBMENU}>gnulinux-{OLD}-recovery-/dev/vda", OLD, True, (1, 3)),
        ("uefi-firmware", "", False, (2,)),
    ]


@pytest.mark.parametrize(
    ("choice", "release"),
    [
        ("0", NEW),
        ("1", NEW),
        ("1>2", OLD),
        (f"{SUBMENU}>gnulinux-{OLD}-advanced-/dev/vda", OLD),
        (f"Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {OLD}", OLD),
        ("gnulinux-simple-/dev/vda", NEW),
    ],
)
def test_grub_takes_numbers_ids_and_titles(choice: str, release: str) -> None:
    result = bls.menu_choice(bls.menu_entries(text("debian-13.cfg")), choice)
    assert result is not None
    assert result.release == release
    assert not result.recovery


@pytest.mark.parametrize("choice", ["7", "1>9", "gone", ""])
def test_what_is_not_in_the_menu_is_nothing(choice: str) -> None:
    assert bls.menu_choice(bls.menu_entries(text("debian-13.cfg")), choice) is None


def test_without_a_choice_the_first_entry_boots(root: Path) -> None:
    result = loader(str(root)).kernels()
    assert (result["default"], result["next"]) == (NEW, NEW)
    assert result["default_entry"] == "gnulinux-simple-/dev/vda"


def test_a_saved_entry_counts_only_where_the_menu_asks_for_it(root: Path) -> None:
    shutil.copy(EVIDENCE / "grubenv", root / "boot/grub/grubenv")
    assert loader(str(root)).kernels()["default"] == NEW
    shutil.copy(EVIDENCE / "debian-13.saved.cfg", root / "boot/grub/grub.cfg")
    assert loader(str(root)).kernels()["default"] == OLD


def test_an_entry_for_one_boot_does_not_change_the_default(root: Path) -> None:
    (root / "boot/grub/grubenv").write_text("# GRUB Environment Block\nnext_entry=1>2\n#####")
    result = loader(str(root)).kernels()
    assert (result["default"], result["next"]) == (NEW, OLD)


def test_a_saved_entry_that_is_gone_falls_back_as_grub_does(root: Path) -> None:
    shutil.copy(EVIDENCE / "debian-13.saved.cfg", root / "boot/grub/grub.cfg")
    (root / "boot/grub/grubenv").write_text("# GRUB Environment Block\nsaved_entry=gone\n")
    assert loader(str(root)).kernels()["default"] == NEW


def test_check_says_what_would_change_and_changes_nothing(root: Path) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    result = loader(str(root)).default(OLD, check=True)
    assert result["changed"]
    assert result["entry"] == f"{SUBMENU}>gnulinux-{OLD}-advanced-/dev/vda"
    assert [entry.split()[0] for entry in result["changes"]] == [grub.DEFAULTS, grub.GRUB_CFG, grub.GRUB_ENV]
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_kernel_that_is_the_default_already_changes_nothing(root: Path) -> None:
    shutil.copy(EVIDENCE / "debian-13.saved.cfg", root / "boot/grub/grub.cfg")
    shutil.copy(EVIDENCE / "grubenv", root / "boot/grub/grubenv")
    defaults = root / grub.DEFAULTS.lstrip("/")
    defaults.parent.mkdir(parents=True)
    defaults.write_text(
        "# Written by gdsdeploy: the kernel to boot is kept in /boot/grub/grubenv.\nGRUB_DEFAULT=saved\n"
    )
    assert loader(str(root)).default(OLD)["changes"] == []


def test_the_entry_whose_id_names_the_kernel_is_taken_not_the_one_that_moves(root: Path) -> None:
    assert loader(str(root)).default(NEW, check=True)["entry"].endswith(f">gnulinux-{NEW}-advanced-/dev/vda")


def test_an_entry_that_update_grub_made_is_taken_not_the_first_that_mentions_the_kernel(root: Path) -> None:
    menu = root / "boot/grub/grub.cfg"
    others = "".join(
        f"menuentry 'Linux {OLD} {number}' --id '{ident}' {{\n\tlinux /vmlinuz-{OLD} {words}\n}}\n"
        for number, (ident, words) in enumerate(
            [
                (f"shell-{OLD}", "root=/dev/vda ro init=/bin/bash"),
                (f"other-{OLD}", "root=/dev/vdb ro"),
                (f"mine-{OLD}", "root=/dev/vda ro fips=1"),
                (f"osprober-gnulinux-{OLD}-advanced-x", "root=/dev/vda ro"),
            ]
        )
    )
    menu.write_text(others + menu.read_text())
    assert loader(str(root)).entry_of(OLD).ident == f"{SUBMENU}>gnulinux-{OLD}-advanced-/dev/vda"
    menu.write_text(others.replace("/dev/vdb", "/dev/vda"))
    assert loader(str(root)).entry_of(OLD).ident == f"other-{OLD}", (
        "without any of update-grub's, one that isn't a shell"
    )
    menu.write_text(others.partition("menuentry 'Linux 6.1.0-50-amd64 1")[0])
    with pytest.raises(BootError, match="no entry for kernel"):
        loader(str(root)).entry_of(OLD)


@pytest.mark.parametrize(
    ("saved", "stays"),
    [
        (f"mine-{OLD}", True),
        (f"Linux {OLD} of mine", True),
        (f"{SUBMENU}>gnulinux-{OLD}-advanced-/dev/vda", True),
        (f"Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {OLD}", True),
        # A number moves with the next kernel; these boot something else.
        ("0", False),
        (f"shell-{OLD}", False),
        (f"other-{OLD}", False),
        (f"{SUBMENU}>gnulinux-{OLD}-recovery-/dev/vda", False),
        (f"{SUBMENU}>gnulinux-{NEW}-advanced-/dev/vda", False),
    ],
)
def test_a_saved_entry_that_boots_the_kernel_stays(root: Path, saved: str, stays: bool) -> None:
    menu = root / "boot/grub/grub.cfg"
    text = (EVIDENCE / "debian-13.saved.cfg").read_text()
    entries = [("mine", "/dev/vda ro fips=1"), ("shell", "/dev/vda init=/bin/bash"), ("other", "/dev/vdb")]
    menu.write_text(
        "".join(
            f"menuentry 'Linux {OLD} of {name}' --id '{name}-{OLD}' {{\n\tlinux /vmlinuz-{OLD} root={words}\n}}\n"
            for name, words in entries
        )
        + text
    )
    (root / "boot/grub/grubenv").write_text(f"# GRUB Environment Block\nsaved_entry={saved}\n")
    changes = loader(str(root)).default(OLD, check=True)["changes"]
    assert any(change.startswith(grub.GRUB_ENV) for change in changes) is not stays


def test_a_kernel_without_an_entry_is_an_error_that_lists_those_that_have_one(root: Path) -> None:
    with pytest.raises(BootError) as caught:
        loader(str(root)).default("9.9")
    assert f"no entry for kernel 9.9; it has: {OLD}, {NEW}" in caught.value.message


def test_a_host_without_grub_says_so(tmp_path: Path) -> None:
    with pytest.raises(BootError, match=r"grub\.cfg is missing"):
        loader(str(tmp_path)).kernels()


def test_another_root_is_never_changed(root: Path) -> None:
    with pytest.raises(BootError, match="on the running system only"):
        loader(str(root)).default(OLD)


def test_damaged_menus_are_read_as_far_as_they_go() -> None:
    whole = text("debian-13.cfg")
    for size in range(0, len(whole), 97):
        bls.menu_entries(whole[:size])
    assert [entry.release for entry in bls.menu_entries("menuentry 'open quote {\n}\n}\n}")] == [""]
    assert bls.menu_entries("menuentry\nsubmenu\n}\n{\n") == []


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["boot", *words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_show(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "show", "--root", str(root), "--json")
    assert status == 0
    assert json.loads(out)["default"] == NEW
    status, out, _ = run(capsys, "show", "--root", str(root))
    assert out.splitlines()[0] == f"default: {NEW} (gnulinux-simple-/dev/vda)"


def test_bad_input_is_one_line_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "show", "--root", str(tmp_path))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")


def test_a_host_without_a_menu_has_no_default_of_ours_to_take_back(tmp_path: Path) -> None:
    """A builder or a container, on which `gdsdeploy remove` asks as it does everywhere."""
    assert loader(str(tmp_path)).undo_default() == {"changed": False, "changes": [], "kernel": "", "entry": ""}
    ours = tmp_path / grub.DEFAULTS.lstrip("/")
    ours.parent.mkdir(parents=True)
    ours.write_text("GRUB_DEFAULT=saved\n")
    with pytest.raises(BootError):
        loader(str(tmp_path)).undo_default(check=True)


def test_a_pipe_in_place_of_the_expectation_is_none(tmp_path: Path) -> None:
    path = tmp_path / EXPECTATION.lstrip("/")
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    assert present.expectation(str(tmp_path)) == {}
