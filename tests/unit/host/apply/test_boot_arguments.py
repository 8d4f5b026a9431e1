"""Kernel arguments as a resource: set for each boot loader, taken out again, and never another writer's."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply import removal
from gdsdeploy.host.apply.boot_arguments import DROP_IN, BootArguments, Desired
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.boot import arguments
from gdsdeploy.host.errors import ApplyError, DesiredError
from tests.unit.host.apply.apply_tree import apply, check, differing, tree
from tests.unit.host.apply.boot_hosts import (
    BOOT_ID,
    OLDER,
    RELEASE,
    TOKEN,
    UpdateGrub,
    grub,
    put,
    rhel,
    running,
    systemd_boot,
)

WORDS = ["iommu=pt", "nvme_core.multipath=N"]
DESIRED, NOTHING = Desired(RELEASE, WORDS), Desired(RELEASE)
ENTRY = f"/boot/loader/entries/{TOKEN}-{RELEASE}.conf"
OTHER_ENTRY = f"/boot/loader/entries/{TOKEN}-{OLDER}.conf"
RECORD = arguments.PATH
Host = Callable[[Path], Path]


def rhel8(root: Path) -> Path:
    return rhel(root, "$kernelopts $tuned_params")


def rhel_without_command_line(root: Path) -> Path:
    (rhel(root) / "etc/kernel/cmdline").unlink()
    return root


def boot_efi(root: Path) -> Path:
    return systemd_boot(root, "/boot/efi")


HOSTS = [grub, rhel, rhel8, rhel_without_command_line, systemd_boot, boot_efi]


@pytest.fixture
def update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UpdateGrub:
    fake = UpdateGrub(tmp_path)
    monkeypatch.setattr(process, "run", fake)
    return fake


def run(root: Path, desired: Desired = DESIRED) -> list[Change]:
    """Apply it after a check that predicts the same, and that changes nothing; a second run has no change."""
    before = tree(root, ())
    predicted = check(root, BootArguments(), desired)
    assert (predicted.refusals, predicted.unknown) == ([], [])
    assert differing(before, tree(root, ())) == set()
    changes = apply(root, BootArguments(), desired)
    assert changes == predicted.changes
    after = tree(root, ())
    assert check(root, BootArguments(), desired).changes == []
    assert apply(root, BootArguments(), desired) == []
    assert differing(after, tree(root, ())) == set()
    return changes


def remove(root: Path) -> list[Change]:
    before = tree(root, ())
    predicted = BootArguments().revert(ManagedHost(check=True, root=str(root)))
    assert differing(before, tree(root, ())) == set()
    changes = BootArguments().revert(ManagedHost(root=str(root)))
    assert [change.subject for change in changes] == [change.subject for change in predicted]
    assert BootArguments().revert(ManagedHost(root=str(root))) == []
    return changes


def record(root: Path) -> arguments.ArgumentRecord:
    return arguments.read(str(root))


@pytest.mark.parametrize("host", HOSTS)
def test_a_removal_leaves_every_byte_as_it_was(tmp_path: Path, update: UpdateGrub, host: Host) -> None:
    before = tree(host(tmp_path))
    assert run(tmp_path)
    assert differing(before, tree(tmp_path)) != set()
    assert record(tmp_path).arguments == WORDS
    assert remove(tmp_path)
    assert differing(before, tree(tmp_path)) == set()
    assert not (tmp_path / RECORD[1:]).exists()


@pytest.mark.parametrize("host", HOSTS)
def test_a_desired_state_without_arguments_takes_them_out(tmp_path: Path, update: UpdateGrub, host: Host) -> None:
    before = tree(host(tmp_path))
    run(tmp_path)
    assert run(tmp_path, NOTHING)
    assert differing(before, tree(tmp_path)) <= {"/etc/default/grub.d"}
    assert run(tmp_path, NOTHING) == []


@pytest.mark.parametrize("host", HOSTS)
def test_another_value_takes_the_place_of_ours(tmp_path: Path, update: UpdateGrub, host: Host) -> None:
    before = tree(host(tmp_path))
    run(tmp_path)
    changes = run(tmp_path, Desired(RELEASE, ["iommu=off", "nokaslr"]))
    assert {(change.before, change.after) for change in changes if change.kind == "arguments"} == {
        (" ".join(WORDS), "iommu=off nokaslr")
    }
    texts = [
        content for path, (*_, content) in tree(tmp_path).items() if path.startswith(("/boot", "/efi", "/etc/kernel"))
    ]
    assert not any(b"iommu=pt" in text for text in texts if isinstance(text, bytes))
    remove(tmp_path)
    assert differing(before, tree(tmp_path)) <= {"/etc/default/grub.d"}


def test_what_a_plan_shows_on_grub(tmp_path: Path, update: UpdateGrub) -> None:
    changes = run(grub(tmp_path))
    assert [(change.kind, change.subject, change.before, change.reason) for change in changes] == [
        ("write", DROP_IN, "", "missing"),
        ("arguments", "/boot/grub/grub.cfg", "none", "arguments"),
    ]
    assert (tmp_path / DROP_IN[1:]).read_text().splitlines()[-1] == (
        'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt nvme_core.multipath=N"'
    )
    assert update.calls == [["update-grub"]]
    assert (tmp_path / "boot/grub/grub.cfg").read_text().count(" iommu=pt nvme_core.multipath=N") == 4


def test_what_a_plan_shows_on_entries(tmp_path: Path, update: UpdateGrub) -> None:
    changes = run(rhel(tmp_path))
    assert [(change.kind, change.subject) for change in changes] == [
        ("arguments", OTHER_ENTRY), ("arguments", ENTRY), ("arguments", "/etc/kernel/cmdline"),
    ]  # fmt: skip
    assert (
        "options root=UUID=0f3c ro crashkernel=1G-4G:192M rhgb quiet  iommu=pt nvme_core.multipath=N\n"
        in (tmp_path / ENTRY[1:]).read_text()
    )
    assert "iommu" not in (tmp_path / f"boot/loader/entries/{TOKEN}-0-rescue.conf").read_text()
    assert update.calls == []


def test_a_diff_shows_the_entries(tmp_path: Path, update: UpdateGrub) -> None:
    from gdsdeploy.host.apply import engine

    target = engine.DesiredResource("boot_arguments", BootArguments(), DESIRED)
    result = engine.run(ManagedHost(check=True, root=str(rhel(tmp_path))), [target], diff=True)[0]
    assert [diff["path"] for diff in result.diffs] == [OTHER_ENTRY, ENTRY, "/etc/kernel/cmdline"]
    assert all("iommu=pt" in diff["after"] and "iommu=pt" not in diff["before"] for diff in result.diffs)


def test_arguments_of_other_writers_stay(tmp_path: Path, update: UpdateGrub) -> None:
    """A word that an entry had before is neither added there nor taken out."""
    rhel(tmp_path)
    entry = tmp_path / ENTRY[1:]
    entry.write_text(entry.read_text().replace(" ro ", " ro iommu=pt "))
    before = tree(tmp_path)
    run(tmp_path)
    assert entry.read_text().count("iommu=pt") == 1
    # Another program changes the entries meanwhile, as nvidia-kmod-common and grubby do.
    for path in (entry, tmp_path / OTHER_ENTRY[1:]):
        path.write_text(path.read_text().replace("options ", "options rd.driver.blacklist=nouveau "))
    remove(tmp_path)
    for name in (ENTRY, OTHER_ENTRY):
        now = (tmp_path / name[1:]).read_bytes()
        assert now.replace(b"rd.driver.blacklist=nouveau ", b"") == before[name][-1]


def test_a_word_that_its_other_writer_has_dropped_is_ours_then(tmp_path: Path, update: UpdateGrub) -> None:
    rhel(tmp_path)
    entry = tmp_path / ENTRY[1:]
    plain = entry.read_text()
    entry.write_text(plain.replace(" ro ", " ro iommu=pt "))
    run(tmp_path)
    entry.write_text(plain)
    assert [change.subject for change in run(tmp_path)] == [ENTRY]
    remove(tmp_path)
    assert entry.read_text() == plain


def test_what_every_entry_has_already_is_no_change(tmp_path: Path, update: UpdateGrub) -> None:
    rhel(tmp_path, "root=UUID=0f3c nvme-core.multipath=N iommu=pt")
    put(tmp_path, "/etc/kernel/cmdline", "iommu=pt nvme_core.multipath=N")
    assert run(tmp_path) == []
    assert not (tmp_path / RECORD[1:]).exists()
    assert remove(tmp_path) == []


def test_a_kernel_that_was_installed_later_has_inherited_our_arguments(tmp_path: Path, update: UpdateGrub) -> None:
    """kernel-install takes /etc/kernel/cmdline, or the running kernel's arguments: no record names the new entry."""
    run(rhel(tmp_path))
    text = (tmp_path / ENTRY[1:]).read_text()
    newer = put(tmp_path, f"/boot/loader/entries/{TOKEN}-6.12.117.conf", text)
    assert run(tmp_path) == []
    # One that has inherited nothing gets them.
    bare = put(tmp_path, f"/boot/loader/entries/{TOKEN}-6.12.118.conf", "linux /vmlinuz-x\noptions root=UUID=0f3c\n")
    assert len(run(tmp_path)) == 1
    remove(tmp_path)
    assert "iommu" not in newer.read_text() + bare.read_text()


def test_attempts_that_systemd_boot_counts_rename_an_entry(tmp_path: Path, update: UpdateGrub) -> None:
    systemd_boot(tmp_path)
    entry = tmp_path / f"efi/loader/entries/{TOKEN}-{RELEASE}+3.conf"
    entry.write_bytes(entry.read_bytes().replace(b" rw", b" rw iommu=pt"))
    before = entry.read_bytes()
    run(tmp_path)
    renamed = entry.rename(entry.with_name(entry.name.replace("+3", "+2-1")))
    assert run(tmp_path) == []
    remove(tmp_path)
    assert renamed.read_bytes() == before


@pytest.mark.parametrize("host", [grub, rhel, systemd_boot])
@pytest.mark.parametrize("word", ["iommu=on", "nvme-core.multipath=Y"])
def test_another_value_of_another_writer_is_refused(tmp_path: Path, update: UpdateGrub, host: Host, word: str) -> None:
    host(tmp_path)
    for path in ("etc/default/grub", "boot/grub/grub.cfg", ENTRY[1:], f"efi/loader/entries/{TOKEN}-{OLDER}.conf"):
        if (tmp_path / path).exists():
            text = (tmp_path / path).read_text().replace("quiet splash", f"quiet splash {word}")
            (tmp_path / path).write_text(text.replace("options root", f"options {word} root"))
    before = tree(tmp_path, ())
    assert {refusal.id for refusal in check(tmp_path, BootArguments(), DESIRED).refusals} == {"other-value"}
    with pytest.raises(ApplyError, match=f"{word} isn't gdsdeploy's") as caught:
        apply(tmp_path, BootArguments(), DESIRED)
    assert caught.value.kind == "refused"
    assert differing(before, tree(tmp_path, ())) == set()


def test_an_argument_that_may_stand_there_several_times(tmp_path: Path, update: UpdateGrub) -> None:
    rhel(tmp_path, "root=UUID=0f3c pci=realloc")
    run(tmp_path, Desired(RELEASE, ["pci=disable_acs_redir=pci:0:0"]))
    assert "options root=UUID=0f3c pci=realloc pci=disable_acs_redir=pci:0:0\n" in (tmp_path / ENTRY[1:]).read_text()


def test_the_same_word_that_another_writer_adds_later(tmp_path: Path, update: UpdateGrub) -> None:
    """Of DGX's packages: the drop-in goes, and a further run finds nothing to do."""
    run(grub(tmp_path))
    put(tmp_path, "/etc/default/grub.d/nv-iommu.cfg", 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt"\n')
    update(["update-grub"], 1.0)
    run(tmp_path)
    assert (tmp_path / DROP_IN[1:]).read_text().splitlines()[-1].endswith('LINUX nvme_core.multipath=N"')
    assert record(tmp_path).arguments == ["nvme_core.multipath=N"]
    (tmp_path / "etc/default/grub.d/nv-iommu.cfg").unlink()
    update(["update-grub"], 1.0)
    run(tmp_path)
    assert record(tmp_path).arguments == WORDS


def test_grub_cfg_that_another_program_made_without_them(tmp_path: Path, update: UpdateGrub) -> None:
    before = tree(grub(tmp_path))
    run(tmp_path)
    (tmp_path / "boot/grub/grub.cfg").write_bytes(before["/boot/grub/grub.cfg"][-1])
    assert [change.kind for change in run(tmp_path)] == ["arguments"]


def test_a_removal_whose_update_grub_fails_takes_nothing_of_others_back(tmp_path: Path, update: UpdateGrub) -> None:
    apply(grub(tmp_path), BootArguments(), Desired(RELEASE, ["iommu=pt"]))
    update.status = 1
    host, undone = ManagedHost(root=str(tmp_path)), []
    # As a resource does that was removed before.
    host.undo_by("a link", lambda: undone.append("a link"))
    with pytest.raises(ApplyError, match="update-grub"):
        BootArguments().revert(host)
    assert undone == []
    update.status = 0
    changes = BootArguments().revert(ManagedHost(root=str(tmp_path)))
    assert [change.subject for change in changes] == ["/boot/grub/grub.cfg", "/etc/default/grub.d"]


def test_update_grub_that_fails_leaves_the_drop_in_as_it_was(tmp_path: Path, update: UpdateGrub) -> None:
    before = tree(grub(tmp_path))
    update.status = 1
    with pytest.raises(ApplyError, match="update-grub ended with status 1"):
        apply(tmp_path, BootArguments(), DESIRED)
    assert differing(before, tree(tmp_path)) <= {"/etc/default/grub.d"}
    update.status = 0
    run(tmp_path)
    remove(tmp_path)
    assert differing(before, tree(tmp_path)) <= {"/etc/default/grub.d"}


def test_update_grub_that_leaves_a_word_out(tmp_path: Path, update: UpdateGrub) -> None:
    grub(tmp_path)
    menu = tmp_path / "boot/grub/grub.cfg"
    before = menu.read_text()
    update.drops = ["iommu=pt"]
    with pytest.raises(ApplyError, match="left iommu=pt out of /boot/grub/grub") as caught:
        apply(tmp_path, BootArguments(), DESIRED)
    assert caught.value.kind == "verify"
    assert menu.read_text() == before, "what was made of the drop-in went with it"


MINE = f"menuentry 'Of mine' --id 'mine' {{\n\tlinux /boot/vmlinuz-{RELEASE} root=UUID=%s ro\n}}\n"


def test_entries_that_update_grub_does_not_make_are_not_judged(tmp_path: Path, update: UpdateGrub) -> None:
    grub(tmp_path)
    update.others = MINE % "ffff" + MINE % "0f3c"
    update(["update-grub"], 1.0)
    before = tree(tmp_path)
    run(tmp_path)
    remove(tmp_path)
    assert differing(before, tree(tmp_path)) == set()


@pytest.mark.parametrize("uuid", ["0f3c", "ffff"])
def test_such_an_entry_that_boots_by_default_is_named_at_once(tmp_path: Path, update: UpdateGrub, uuid: str) -> None:
    grub(tmp_path)
    update.others = MINE % uuid
    update.default = "${saved_entry}"
    update(["update-grub"], 1.0)
    put(tmp_path, "/boot/grub/grubenv", "# GRUB Environment Block\nsaved_entry=mine\n")
    refusals = check(tmp_path, BootArguments(), DESIRED).refusals
    # Another system's entry doesn't stay the default.
    assert [refusal.message for refusal in refusals] == (
        []
        if uuid == "ffff"
        else ["the entry 'Of mine' boots by default, lacks iommu=pt, and isn't made of /etc/default/grub"]
    )


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("number", range(6))
def test_a_run_that_is_killed_at_any_write(
    tmp_path: Path, update: UpdateGrub, monkeypatch: pytest.MonkeyPatch, host: Host, number: int
) -> None:
    """Nothing is undone then: a removal, or a second run and a removal, still leave every byte as it was."""
    before = tree(host(tmp_path))

    class Killed(BaseException):
        pass

    def killed_after(writes: int) -> None:
        left = [writes]
        from gdsdeploy.host.apply import files

        real = files.replace

        def replace(*arguments: object) -> None:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            real(*arguments)  # type: ignore[arg-type]

        for module in ("boot_arguments.files", "files", "record"):
            monkeypatch.setattr(f"gdsdeploy.host.apply.{module}.replace", replace)
        monkeypatch.setattr(ManagedHost, "undo", lambda _: None)

    with monkeypatch.context():
        killed_after(number)
        with contextlib.suppress(Killed):
            apply(tmp_path, BootArguments(), DESIRED)
    monkeypatch.undo()
    monkeypatch.setattr(process, "run", update)
    if number % 2:
        run(tmp_path)
    BootArguments().revert(ManagedHost(root=str(tmp_path)))
    if (tmp_path / "boot/grub/grub.cfg").exists():
        update(["update-grub"], 1.0)
    assert differing(before, tree(tmp_path)) <= {"/etc/default/grub.d", "/etc/kernel"}


def test_a_second_file_that_fails_puts_the_first_one_back(
    tmp_path: Path, update: UpdateGrub, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(rhel(tmp_path))
    real = ManagedHost.rewrite

    def failing(host: ManagedHost, path: str, text: str) -> None:
        if path == ENTRY:
            raise ApplyError("no space left", kind="no-space")
        real(host, path, text)

    monkeypatch.setattr(ManagedHost, "rewrite", failing)
    with pytest.raises(ApplyError, match="no space left"):
        apply(tmp_path, BootArguments(), DESIRED)
    assert differing(before, tree(tmp_path)) == set()


def test_modes_and_links_stay(tmp_path: Path, update: UpdateGrub) -> None:
    rhel(tmp_path)
    (tmp_path / ENTRY[1:]).chmod(0o600)
    os.setxattr(tmp_path / ENTRY[1:], "user.site", b"managed")
    place = tmp_path / "etc/kernel/cmdline"
    place.rename(tmp_path / "etc/cmdline")
    place.symlink_to("../cmdline")
    before = tree(tmp_path)
    run(tmp_path)
    assert differing(before, tree(tmp_path)) == {ENTRY, OTHER_ENTRY, "/etc/cmdline"}
    assert tree(tmp_path)[ENTRY][0] == 0o600
    assert os.getxattr(tmp_path / ENTRY[1:], "user.site") == b"managed"
    remove(tmp_path)
    assert differing(before, tree(tmp_path)) == set()


def test_bytes_that_are_no_text_stay(tmp_path: Path, update: UpdateGrub) -> None:
    rhel(tmp_path)
    (tmp_path / ENTRY[1:]).write_bytes(b"title \xff\xfe\nlinux /vmlinuz\noptions root=LABEL=\xe4 ro\t\n\n\x0c")
    before = tree(tmp_path)
    run(tmp_path)
    remove(tmp_path)
    assert differing(before, tree(tmp_path)) == set()


def no_loader(root: Path) -> Path:
    running(root)
    return root


def no_blscfg(root: Path) -> Path:
    put(rhel(root), "/boot/grub2/grub.cfg", "menuentry x {\n}\n")
    return root


def no_update_grub(root: Path) -> Path:
    (grub(root) / "usr/sbin/update-grub").unlink()
    return root


def unified(root: Path) -> Path:
    put(systemd_boot(root), "/efi/EFI/Linux/linux.efi", "MZ")
    return root


def no_options(root: Path) -> Path:
    put(rhel(root), ENTRY, "title x\nlinux /vmlinuz-x\n")
    return root


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (no_loader, "no boot loader is recognised"),
        (no_blscfg, "no grub.cfg reads /boot/loader/entries"),
        (no_update_grub, "but no update-grub"),
        (unified, "linux.efi is a unified kernel image"),
        (no_options, "there is no line with arguments"),
    ],
)
def test_a_host_that_is_not_understood_is_refused(tmp_path: Path, update: UpdateGrub, host: Host, words: str) -> None:
    before = tree(host(tmp_path), ())
    refusals = check(tmp_path, BootArguments(), DESIRED).refusals
    assert [refusal.id for refusal in refusals] == ["boot-loader"]
    assert words in refusals[0].message
    assert refusals[0].hint
    with pytest.raises(ApplyError) as caught:
        apply(tmp_path, BootArguments(), DESIRED)
    assert caught.value.kind == "refused"
    # Who asks for nothing isn't bothered with it.
    assert run(tmp_path, NOTHING) == []
    assert remove(tmp_path) == []
    assert differing(before, tree(tmp_path, ())) == set()


def test_a_removal_from_an_entry_that_was_damaged_takes_out_the_others(tmp_path: Path, update: UpdateGrub) -> None:
    run(rhel(tmp_path))
    put(tmp_path, ENTRY, "linux /vmlinuz-x\n")
    assert [change.subject for change in remove(tmp_path)] == [OTHER_ENTRY, "/etc/kernel/cmdline"]


def test_an_entry_that_is_too_large_is_unknown(tmp_path: Path, update: UpdateGrub) -> None:
    put(rhel(tmp_path), ENTRY, "linux /vmlinuz\noptions x\n" + "#" * (1 << 20))
    assert check(tmp_path, BootArguments(), DESIRED).unknown == [f"{ENTRY}: it is larger than 1,048,576 bytes"]


def test_a_removal_that_can_not_read_an_entry_names_it(tmp_path: Path, update: UpdateGrub) -> None:
    run(rhel(tmp_path))
    put(tmp_path, ENTRY, "linux /vmlinuz\noptions x\n" + "#" * (1 << 20))
    with pytest.raises(ApplyError, match="it is larger than 1,048,576 bytes"):
        removal.remove(ManagedHost(root=str(tmp_path)), ["boot_arguments"])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"version": 2}',
        '{"version": 1, "arguments": "x", "exceptions": {}, "left": {"boot_id": "", "arguments": []}}',
        '{"version": 1, "arguments": [], "exceptions": {"a": 1}, "left": {"boot_id": "", "arguments": []}}',
        "\xff",
        "[" * 100_000,
    ],
)
def test_a_damaged_record_stops_every_change(tmp_path: Path, update: UpdateGrub, text: str) -> None:
    put(rhel(tmp_path), RECORD, text)
    before = tree(tmp_path, ())
    for desired in (DESIRED, NOTHING):
        with pytest.raises(ApplyError, match="the record of kernel arguments can't be read") as caught:
            apply(tmp_path, BootArguments(), desired)
        assert f"mv {RECORD}" in caught.value.hint
    assert differing(before, tree(tmp_path, ())) == set()


@pytest.mark.parametrize(
    "word",
    ["init=/bin/sh", "root=/dev/sda", "a b", 'x="y"', "x=$(id)", "x;y", "", "=x", "rd.break", "BOOT_IMAGE=x", "ro"],
)
def test_words_that_are_no_arguments_of_a_fleet_file(tmp_path: Path, update: UpdateGrub, word: str) -> None:
    with pytest.raises(DesiredError):
        apply(grub(tmp_path), BootArguments(), Desired(RELEASE, [word]))


def test_an_argument_that_is_listed_twice(tmp_path: Path, update: UpdateGrub) -> None:
    with pytest.raises(DesiredError, match="listed twice"):
        apply(grub(tmp_path), BootArguments(), Desired(RELEASE, ["iommu=pt", "iommu=off"]))


def test_what_the_running_kernel_still_has_is_recorded(tmp_path: Path, update: UpdateGrub) -> None:
    run(rhel(tmp_path))
    running(tmp_path, "iommu=pt nvme_core.multipath=N")
    run(tmp_path, Desired(RELEASE, WORDS[:1]))
    assert record(tmp_path).left == arguments.Left(BOOT_ID, WORDS[1:])
    run(tmp_path)
    assert record(tmp_path).left.arguments == []
    run(tmp_path, NOTHING)
    assert record(tmp_path).left.arguments == WORDS
    assert json.loads((tmp_path / RECORD[1:]).read_text())["left"]["arguments"] == WORDS
