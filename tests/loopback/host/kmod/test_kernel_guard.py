"""Which kernels the guard admits, and what it does after one was installed or removed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gdsdeploy.host import __main__ as program
from gdsdeploy.host.boot import guard
from gdsdeploy.host.boot.guard import INSTALLED, REMOVED, Verdict, decide
from gdsdeploy.host.boot.loader import BootError, loader
from gdsdeploy.host.model.expectation import Expectation
from tests.unit.host.kmod.kmod_root import EXPECTED, P2P, RELEASE, Root

OTHER = "6.1.0-50-amd64"
EVIDENCE = Path(__file__).parents[3] / "evidence" / "kmod" / "grub"
EXPECTATION = EXPECTED
GOOD, BAD = Verdict(RELEASE, True), Verdict(RELEASE, False, ["it has no module nvidia"])
GOOD_OTHER, BAD_OTHER = Verdict(OTHER, True), Verdict(OTHER, False, ["it has no module nvidia"])


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """The locked kernel with good modules, another one without any, and Debian's own menu of the two."""
    host = Root(tmp_path)
    host.nvidia()
    host.nvidia_fs()
    (tmp_path / "lib/modules" / OTHER).mkdir()
    (tmp_path / "boot/grub").mkdir(parents=True)
    for release in (RELEASE, OTHER):
        (tmp_path / f"boot/vmlinuz-{release}").touch()
    (tmp_path / "boot/grub/grub.cfg").write_text((EVIDENCE / "debian-13.cfg").read_text())
    return host


def reasons_of(root: Root, release: str = RELEASE, expectation: Expectation = EXPECTATION) -> list[str]:
    verdict = guard.judge(release, expectation, str(root.path))
    assert verdict.admitted == (not verdict.reasons)
    return verdict.reasons


def test_good_modules_admit_a_kernel(root: Root) -> None:
    assert reasons_of(root) == []


def test_a_kernel_without_modules_is_not_admitted(root: Root) -> None:
    assert reasons_of(root, OTHER) == ["it has no module nvidia and no module nvidia_fs"]
    assert "has no modules in" in reasons_of(root, "9.9")[0]
    assert "is not a kernel release" in reasons_of(root, "../../etc")[0]


def test_a_module_of_another_driver_is_not_good_enough(root: Root) -> None:
    root.nvidia(info=[("version", "580.1")])
    assert [reason for reason in reasons_of(root) if reason.startswith("nvidia: is driver 580.1, expected 550.163.01")]


def test_a_module_that_the_kernel_would_refuse_is_not_good_enough(root: Root) -> None:
    root.nvidia_fs(imports=dict.fromkeys(P2P, 0xBAD))
    assert any("nvidia_fs: was built against other versions" in reason for reason in reasons_of(root))


def test_what_cannot_be_told_does_not_admit(root: Root) -> None:
    root.nvidia_fs(info=[("version", "2.19.7")])
    assert any("doesn't record the driver source" in reason for reason in reasons_of(root))


def test_another_nvidia_fs_is_not_good_enough(root: Root) -> None:
    assert reasons_of(root, expectation=replace(EXPECTATION, nvidia_fs_version="2.28.4")) == [
        "nvidia_fs: is version 2.19.7, expected 2.28.4"
    ]


def test_only_what_the_fleet_asks_for_is_needed(root: Root) -> None:
    for file in root.modules.rglob("nvidia-fs.ko"):
        file.unlink()
    assert reasons_of(root, expectation=replace(EXPECTATION, nvidia_fs_version="")) == []
    assert reasons_of(root, expectation=replace(EXPECTATION, nvidia_fs_version="", rdma="peermem")) == [
        "it has no module nvidia_peermem"
    ]


@pytest.mark.parametrize(
    ("event", "release", "default", "verdicts", "keep", "alarm", "words"),
    [
        (INSTALLED, OTHER, RELEASE, [BAD_OTHER], "", False, f"kernel {OTHER} is not admitted (it has no module"),
        (INSTALLED, OTHER, RELEASE, [BAD_OTHER], "", False, f"{RELEASE} stays the boot default"),
        (INSTALLED, OTHER, OTHER, [BAD_OTHER, GOOD], RELEASE, False, f"{RELEASE} becomes the boot default again"),
        (INSTALLED, OTHER, "", [BAD_OTHER, GOOD], RELEASE, False, "the current default is unknown"),
        (INSTALLED, OTHER, RELEASE, [GOOD_OTHER], "", False, "has good modules, but the lock names " + RELEASE),
        (INSTALLED, OTHER, OTHER, [BAD_OTHER, BAD], "", True, "comes up without GPUDirect Storage"),
        (INSTALLED, RELEASE, OTHER, [GOOD], RELEASE, False, "becomes the boot default"),
        (INSTALLED, RELEASE, RELEASE, [GOOD], "", False, "its modules are good"),
        (INSTALLED, RELEASE, OTHER, [BAD], "", False, f"until then {OTHER} boots by default"),
        (INSTALLED, RELEASE, RELEASE, [BAD, GOOD_OTHER], OTHER, True, "has no good modules"),
        (INSTALLED, RELEASE, RELEASE, [BAD], "", True, "waits for its modules"),
        (REMOVED, RELEASE, "6.12.117", [Verdict("6.12.117", False, ["x"]), GOOD_OTHER], OTHER, False,
         f"the locked kernel {RELEASE} was removed; {OTHER} becomes the boot default again"),
        (REMOVED, RELEASE, OTHER, [BAD_OTHER], "", True, "provision this host before it reboots"),
        (REMOVED, OTHER, RELEASE, [], "", False, f"kernel {OTHER} was removed; {RELEASE} stays the boot default"),
    ],
)  # fmt: skip
def test_decisions(
    event: str, release: str, default: str, verdicts: list[Verdict], keep: str, alarm: bool, words: str
) -> None:
    answer = decide(event, release, EXPECTATION, default, verdicts)
    assert (answer.keep, answer.alarm) == (keep, alarm)
    assert words in answer.says


def run(root: Root, *words: str) -> int:
    path = root.path / "expectation.json"
    path.write_text(EXPECTATION.to_json())
    return program.main(["guard", *words, "--expectation", str(path)])


def test_status_names_every_kernel_and_why_not(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, "status", "--json", "--root", str(root.path)) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["locked"], result["default"], result["ok"]) == (RELEASE, RELEASE, True)
    assert {entry["release"]: entry["admitted"] for entry in result["kernels"]} == {RELEASE: True, OTHER: False}
    (root.path / "boot/grub/grubenv").write_text("# GRUB Environment Block\nnext_entry=1>2\n#####")
    assert run(root, "status", "--root", str(root.path)) == 1
    out = capsys.readouterr().out.splitlines()
    assert f"{OTHER} (next): not admitted: it has no module nvidia and no module nvidia_fs" in out
    assert f"{RELEASE} (locked, default): admitted" in out


def test_status_without_a_boot_loader_says_so(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    (root.path / "boot/grub/grub.cfg").unlink()
    assert run(root, "status", "--root", str(root.path)) == 1
    assert "the boot default cannot be told" in capsys.readouterr().out


def test_a_hook_never_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["guard", "hook", "install", "9.9", "--expectation"]
    assert program.main([*words, str(tmp_path / "none.json")]) == 0
    (tmp_path / "bad.json").write_text("{")
    assert program.main([*words, str(tmp_path / "bad.json")]) == 0
    output = capsys.readouterr().err.splitlines()
    assert len(output) == 2
    assert all(line.startswith("gdsdeploy: cannot tell whether kernel 9.9 may boot by default: ") for line in output)


def test_the_hook_judges_no_more_than_it_has_to(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit of the locked kernel takes long on a slow machine, and provision has made it."""
    questions: list[str] = []
    judge = guard.judge

    def noted(release: str, *rest: object) -> Verdict:
        questions.append(release)
        return judge(release, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(guard, "judge", noted)
    answer = guard.respond(INSTALLED, OTHER, EXPECTATION, str(root.path))
    assert (answer.keep, questions) == ("", [OTHER])


def test_a_default_that_lost_its_modules_is_not_replaced_by_nothing(root: Root) -> None:
    for file in root.modules.rglob("nvidia*.ko"):
        file.unlink()
    (root.path / "boot/grub/grubenv").write_text("# GRUB Environment Block\n")
    answer = guard.respond(REMOVED, "6.12.117", replace(EXPECTATION, kernel_release="6.12.117"), str(root.path))
    assert answer.keep == ""
    assert answer.alarm


class TestBootLoaderSpecification:
    """RHEL's way, on a root folder; GRUB's own editor changes the environment."""

    NEW = "5.14.0-570.el9.x86_64"
    OLD = "5.14.0-427.el9.x86_64"
    MACHINE = "0123456789abcdef0123456789abcdef"

    @pytest.fixture
    def bls(self, tmp_path: Path) -> Path:
        folder = tmp_path / "boot/loader/entries"
        folder.mkdir(parents=True)
        for release in (self.OLD, self.NEW, "0-rescue-" + self.MACHINE):
            text = f"title Linux ({release})\nversion {release}\nlinux /vmlinuz-{release}\n"
            (folder / f"{self.MACHINE}-{release}.conf").write_text(text)
        (tmp_path / "boot/grub2").mkdir()
        block = "# GRUB Environment Block\nsaved_entry=gone\nkernelopts=root=/dev/vda1\n"
        (tmp_path / "boot/grub2/grubenv").write_text(block.ljust(1024, "#"))
        return tmp_path

    def test_the_newest_kernel_boots_where_nothing_fits(self, bls: Path) -> None:
        assert loader(str(bls)).kernels()["default"] == self.NEW

    def test_the_default_is_set_by_id_and_nothing_else_is_lost(self, bls: Path) -> None:
        before = (bls / "boot/grub2/grubenv").read_text()
        assert loader(str(bls)).default(self.OLD, check=True)["changed"]
        assert (bls / "boot/grub2/grubenv").read_text() == before
        result = loader(str(bls)).default(self.OLD)
        assert result["entry"] == f"{self.MACHINE}-{self.OLD}"
        assert loader(str(bls)).kernels()["default"] == self.OLD
        assert "kernelopts=root=/dev/vda1" in (bls / "boot/grub2/grubenv").read_text()
        assert loader(str(bls)).default(self.OLD)["changed"] is False

    #: What grub2-mkconfig writes for GRUB_DEFAULT=saved, and for a number.
    CONFIG = (
        'if [ "${{next_entry}}" ] ; then\n   set default="${{next_entry}}"\nelse\n   set default="{}"\nfi\nblscfg\n'
    )

    def test_a_fixed_default_is_read_and_not_changed_in_vain(self, bls: Path) -> None:
        (bls / "boot/grub2/grub.cfg").write_text(self.CONFIG.format("1"))
        (bls / "boot/grub2/grubenv").write_text(f"# GRUB Environment Block\nsaved_entry={self.MACHINE}-{self.NEW}\n")
        assert loader(str(bls)).kernels()["default"] == self.OLD
        with pytest.raises(BootError, match="always boots the entry '1'") as error:
            loader(str(bls)).default(self.NEW)
        assert "GRUB_DEFAULT=saved" in error.value.hint
        (bls / "boot/grub2/grub.cfg").write_text(self.CONFIG.format("${saved_entry}"))
        assert loader(str(bls)).kernels()["default"] == self.NEW

    def test_an_environment_that_is_missing_is_made(self, bls: Path) -> None:
        (bls / "boot/grub2/grubenv").unlink()
        (bls / "boot/grub2/grub.cfg").write_text(self.CONFIG.format("${saved_entry}"))
        assert loader(str(bls)).kernels()["default"] == self.NEW
        loader(str(bls)).default(self.OLD)
        assert loader(str(bls)).kernels()["default"] == self.OLD

    def test_an_entry_may_be_saved_by_its_title(self, bls: Path) -> None:
        (bls / "boot/grub2/grubenv").write_text(f"# GRUB Environment Block\nsaved_entry=Linux ({self.OLD})\n")
        assert loader(str(bls)).kernels()["default"] == self.OLD

    def test_a_cloned_image_keeps_entries_of_another_machine(self, bls: Path) -> None:
        entry = f"title Linux\nversion {self.OLD}\nlinux /vmlinuz-{self.OLD}\n"
        other = "f" * 32
        (bls / f"boot/loader/entries/{other}-{self.OLD}.conf").write_text(entry)
        (bls / "etc").mkdir()
        for machine in (self.MACHINE, other):
            (bls / "etc/machine-id").write_text(machine + "\n")
            assert loader(str(bls)).default(self.OLD, check=True)["entry"] == f"{machine}-{self.OLD}"

    def add(self, bls: Path, name: str, release: str, options: str) -> None:
        text = f"title {name}\nversion {release}\nlinux /vmlinuz-{release}\noptions {options}\n"
        (bls / f"boot/loader/entries/{self.MACHINE}-{release}{name}.conf").write_text(text)

    @pytest.mark.parametrize("custom", ["~custom", "-0-debugsite"])
    def test_the_packages_own_entry_is_taken(self, bls: Path, custom: str) -> None:
        self.add(bls, "", self.OLD, "root=UUID=1 ro")
        self.add(bls, custom, self.OLD, "root=UUID=1 ro debug")
        assert loader(str(bls)).entry_of(self.OLD).ident == f"{self.MACHINE}-{self.OLD}"

    def test_an_administrators_entry_of_the_kernel_stays(self, bls: Path) -> None:
        self.add(bls, "", self.OLD, "root=UUID=1 ro")
        self.add(bls, "~custom", self.OLD, "root=UUID=1 ro fips=1")
        self.add(bls, "~shell", self.OLD, "root=UUID=1 ro init=/bin/bash")
        self.add(bls, "~other", self.OLD, "root=UUID=2 ro")
        for name, stays in (("~custom", True), ("~shell", False), ("~other", False)):
            block = f"# GRUB Environment Block\nsaved_entry={self.MACHINE}-{self.OLD}{name}\n"
            (bls / "boot/grub2/grubenv").write_text(block)
            assert loader(str(bls)).default(self.OLD, check=True)["changed"] is not stays

    def test_the_image_says_what_boots_not_the_version(self, bls: Path) -> None:
        text = f"title x\nversion {self.OLD}\nlinux /vmlinuz-{self.NEW}\n"
        (bls / f"boot/loader/entries/{self.MACHINE}-{self.OLD}.conf").write_text(text)
        with pytest.raises(BootError, match="no entry for kernel"):
            loader(str(bls)).entry_of(self.OLD)

    def test_the_earlier_default_comes_back_unless_somebody_has_set_another(self, bls: Path) -> None:
        environment = bls / "boot/grub2/grubenv"
        before = environment.read_bytes()
        self.add(bls, "~custom", self.NEW, "root=UUID=1 ro fips=1")
        loader(str(bls)).default(self.OLD)
        loader(str(bls)).default(self.NEW)
        assert loader(str(bls)).undo_default(check=True)["changed"]
        loader(str(bls)).undo_default()
        assert sorted(environment.read_bytes().split(b"\n")) == sorted(before.split(b"\n"))
        assert not (bls / "var/lib/gdsdeploy/boot-default.json").exists()
        loader(str(bls)).default(self.OLD)
        mine = environment.read_text().replace(f"saved_entry={self.MACHINE}-{self.OLD}", "saved_entry=mine")
        environment.write_text(mine)
        assert not loader(str(bls)).undo_default()["changed"]
        assert environment.read_text() == mine

    def test_a_kernel_with_large_pages_has_an_entry_of_its_own(self, bls: Path) -> None:
        large = "5.14.0-570.73.1.el9_6.aarch64+64k"
        text = f"title Linux\nversion {large}\nlinux /vmlinuz-{large}\n"
        (bls / f"boot/loader/entries/{self.MACHINE}-{large}.conf").write_text(text)
        small = large.partition("+")[0]
        (bls / f"boot/loader/entries/{self.MACHINE}-{small}.conf").write_text(text.replace(large, small))
        for release in (large, small):
            loader(str(bls)).default(release)
            assert loader(str(bls)).kernels()["default"] == release

    def test_a_kernel_without_an_entry_is_an_error_that_lists_the_others(self, bls: Path) -> None:
        with pytest.raises(BootError, match=f"no entry for kernel 9.9; it has: {self.NEW}, {self.OLD}"):
            loader(str(bls)).default("9.9")
