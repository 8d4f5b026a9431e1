"""Input that can't be read never passes: every reader refuses it, or the audit says that it is incomplete."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import __main__ as program, process
from gdsdeploy.host.apply import modules as resource
from gdsdeploy.host.archive import key
from gdsdeploy.host.audit.audit import audit, is_undecided
from gdsdeploy.host.boot import guard
from gdsdeploy.host.errors import ElfError, HostError, KernelError, SymversError, TreeError
from gdsdeploy.host.kmod import driver, files, ofed, packaged
from gdsdeploy.host.kmod.driver import Expected
from gdsdeploy.host.kmod.files import Elf
from gdsdeploy.host.kmod.kernel import Kernel, read_symvers
from gdsdeploy.host.kmod.module import files_to_load, read_module, substitute_of
from gdsdeploy.host.secure_boot import signature
from tests.unit.host.kmod.kmod_elf import SIGNATURE, module_bytes
from tests.unit.host.kmod.kmod_root import EXPECTED, KERNEL_EXPORTS, PROVENANCE, RELEASE, TREE, VERSION, Root
from tests.unit.host.kmod.test_kmod_tree import make_tree

OWN, DRM = "kernel/fs/own.ko", "kernel/drivers/gpu/drm/drm.ko"


def zst(data: bytes) -> bytes:
    """``data`` as one zstd frame of raw blocks (RFC 8878, 3.1.1)."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + len(data).to_bytes(8, "little")
    blocks = [data[start : start + 65536] for start in range(0, len(data), 65536)] or [b""]
    for number, block in enumerate(blocks, start=1):
        frame += (len(block) << 3 | (number == len(blocks))).to_bytes(3, "little") + block
    return frame


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """Of this root, every module passes."""
    host = Root(tmp_path)
    host.nvidia(signature=SIGNATURE)
    host.nvidia_fs(signature=SIGNATURE, info=[("version", "2.28.4"), *PROVENANCE])
    assert [result["ok"] for result in look(host)] == [True, True]
    return host


@pytest.fixture
def no_zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine can't unpack zstd."""
    missing = process.Output(process.NOT_FOUND, "", "")
    monkeypatch.setattr(files, "zstd_library", lambda: None)
    monkeypatch.setattr(files.process, "pipe", lambda *_arguments, **_options: missing)


def look(root: Root, *modules: str, expected: Expected | None = None) -> list[dict[str, Any]]:
    return audit(Kernel(root.release, str(root.path)), modules, expected or Expected(VERSION, "open", TREE))


def incomplete(root: Root, *modules: str, expected: Expected | None = None) -> dict[str, str]:
    """The finding, which every result has to have."""
    results = look(root, *modules, expected=expected)
    assert results
    for result in results:
        assert result["ok"] is not True
        matches = [entry for entry in result["findings"] if entry["id"] == "input-unknown"]
        assert [entry["outcome"] for entry in matches] == ["unknown"]
        assert matches[0]["hint"]
    return matches[0]


def pack_own_modules(root: Root) -> None:
    for path in sorted(root.modules.glob("kernel/**/*.ko")):
        path.with_name(path.name + ".zst").write_bytes(zst(path.read_bytes()))
        path.unlink()


# A kernel whose modules can't be unpacked


def test_packed_kernels_are_read_without_the_program(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_by_program", lambda *_arguments: pytest.fail("the program was asked"))
    pack_own_modules(root)
    assert [result["ok"] for result in look(root)] == [True, True]


@pytest.mark.usefixtures("no_zstd")
def test_a_packed_kernel_that_cannot_be_unpacked_is_no_builder(root: Root) -> None:
    pack_own_modules(root)
    assert not Kernel(RELEASE, str(root.path)).is_headers_only
    entry = incomplete(root)
    assert "is zstd-compressed, and zstd isn't installed" in entry["message"]
    assert entry["hint"] == "install the package zstd"
    assert is_undecided(look(root))


@pytest.mark.usefixtures("no_zstd")
def test_no_gate_admits_it(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    pack_own_modules(root)
    assert program.main(["kmod", "audit", "--root", str(root.path), "--kernel", RELEASE, "--json"]) == 3
    assert {result["ok"] for result in json.loads(capsys.readouterr().out)} == {None}
    verdict = guard.judge(RELEASE, EXPECTED, str(root.path))
    assert not verdict.admitted
    assert "the audit is incomplete" in verdict.why()
    source = make_tree(root.path / "usr/src/nvidia-550.163.01")
    desired = resource.Desired(resource.BUILD, RELEASE, VERSION, "open", f"/usr/src/{source.name}", "nvidia")
    objections = resource.objections(Kernel(RELEASE, str(root.path)), desired)["objections"]
    assert "input-unknown" in {entry["id"] for entry in objections}


def test_no_gate_admits_an_unsigned_module_where_the_boot_menu_cannot_be_read(root: Root) -> None:
    root.nvidia()
    root.nvidia_fs(signature=SIGNATURE)
    assert guard.judge(RELEASE, EXPECTED, str(root.path)).admitted
    (root.path / "boot/grub/grub.cfg").mkdir(parents=True)
    assert [result["ok"] for result in look(root)] == [None, True]
    verdict = guard.judge(RELEASE, EXPECTED, str(root.path))
    assert not verdict.admitted
    assert "/boot/grub/grub.cfg" in verdict.why()


def test_a_builder_without_the_kernels_modules_is_judged_by_its_headers(root: Root) -> None:
    for path in (OWN, DRM):
        (root.modules / path).unlink()
    folder = root.path / f"usr/src/linux-headers-{RELEASE}"
    (folder / "include/generated").mkdir(parents=True)
    (folder / "include/generated/utsrelease.h").write_text(f'#define UTS_RELEASE "{RELEASE}"\n')
    (folder / ".config").write_text(
        "CONFIG_SMP=y\nCONFIG_PREEMPT=y\nCONFIG_MODULE_UNLOAD=y\nCONFIG_MODVERSIONS=y\nCONFIG_MODULE_SIG=y\n"
    )
    assert Kernel(RELEASE, str(root.path)).is_headers_only
    assert "input-unknown" not in json.dumps(look(root))


def test_a_kernel_without_a_dependency_is_found_out_beside_unreadable_modules(root: Root) -> None:
    (root.modules / DRM).unlink()
    (root.modules / OWN).write_bytes(b"\x7fELF")
    assert "dependency-missing" in {entry["id"] for entry in look(root)[0]["findings"]}


@pytest.mark.usefixtures("no_zstd")
def test_not_all_of_thousands_are_tried(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        (root.modules / f"kernel/fs/m{number}.ko.zst").write_bytes(b"")
        os.truncate(root.modules / f"kernel/fs/m{number}.ko.zst", 100_000)
    opened: list[str] = []
    unpack = files.open_plain
    monkeypatch.setattr("gdsdeploy.host.kmod.module.open_plain", lambda path: opened.append(path) or unpack(path))
    kernel = Kernel(RELEASE, str(root.path))
    assert kernel.own_module is None
    assert len(opened) == 10


# Each reader, with input that it can't read


def damage(path: Path, how: str) -> None:
    content = path.read_bytes() if path.is_file() else b"x" * 200
    if path.exists():
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes({"truncated": content[: len(content) // 2], "garbage": b"\xff\0\x01" * 99, "empty": b""}[how])


DAMAGE = ["folder", "pipe", "truncated", "garbage", "empty"]


@pytest.mark.parametrize("suffix", ["", ".zst", ".xz", ".gz"])
@pytest.mark.parametrize("how", DAMAGE)
def test_files_and_modules(tmp_path: Path, how: str, suffix: str) -> None:
    path = tmp_path / f"a.ko{suffix}"
    path.write_bytes(zst(module_bytes()) if suffix == ".zst" else module_bytes())
    damage(path, how)
    with pytest.raises(ElfError, match=r"a\.ko"):
        read_module(str(path))


def test_files_have_their_bound_unpacked_or_not(tmp_path: Path) -> None:
    for name, data in (("a", b"x" * 101), ("a.zst", zst(b"x" * 300_000))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ElfError, match="more than 100 bytes"), files.open_plain(str(tmp_path / name), limit=100):
            pass


def test_zstd_frames_follow_each_other(tmp_path: Path) -> None:
    content = os.urandom(700_000)
    (tmp_path / "a.zst").write_bytes(zst(content) + zst(b"") + zst(b"end"))
    with files.open_plain(str(tmp_path / "a.zst")) as plain:
        assert plain.read() == content + b"end"


@pytest.mark.parametrize("size", [3, 9, 300_000, -1])
def test_zstd_data_may_end_nowhere_else(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.zst").write_bytes(zst(os.urandom(600_000))[:size])
    with pytest.raises(ElfError, match=r"a\.zst: damaged zstd data"):
        files.open_plain(str(tmp_path / "a.zst"))


class Broken(io.BytesIO):
    """A disk that fails after the first bytes."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > 0:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(size)


def test_elf() -> None:
    with pytest.raises(ElfError, match=r"a\.ko: cannot be read: Input/output error"):
        Elf(Broken(module_bytes()), "a.ko")


@pytest.mark.parametrize("how", DAMAGE)
def test_a_module_that_the_audited_one_needs(root: Root, how: str) -> None:
    damage(root.modules / DRM, how)
    assert "drm.ko" in incomplete(root)["message"]


@pytest.mark.parametrize("how", DAMAGE)
def test_kernel(root: Root, how: str) -> None:
    root.nvidia(signature=SIGNATURE, imports={"kfree": KERNEL_EXPORTS["kfree"]}, depends="")
    for path in (OWN, DRM):
        damage(root.modules / path, how)
    assert ".ko: " in incomplete(root)["message"]


@pytest.mark.parametrize("how", ["folder", "truncated", "garbage", "pipe"])
def test_symvers(root: Root, how: str) -> None:
    damage(root.path / f"usr/src/linux-headers-{RELEASE}/Module.symvers", how)
    with pytest.raises(KernelError) as caught:
        look(root)
    assert caught.value.hint
    assert guard.judge(RELEASE, EXPECTED, str(root.path)).reasons == [caught.value.message]


@pytest.mark.usefixtures("no_zstd")
def test_packed_symvers_name_the_program(root: Root) -> None:
    root.remove_headers()
    (root.modules / "symvers.zst").write_bytes(zst(b""))
    with pytest.raises(KernelError) as caught:
        look(root)
    assert caught.value.hint == "install the package zstd"


@pytest.mark.parametrize("line", ["0x1\ta\tvmlinux\tEXPORT_SYMBOL_G\n", "0x1\ta\tvmlinux\tEXPORT_SYMBOL"])
def test_a_line_of_symvers_that_was_cut_loses_no_gpl_only(tmp_path: Path, line: str) -> None:
    (tmp_path / "Module.symvers").write_text(line)
    with pytest.raises(SymversError, match=r"Module\.symvers:1"):
        read_symvers(str(tmp_path / "Module.symvers"))


@pytest.mark.parametrize("place", ["etc/depmod.d/a.conf", "etc/modprobe.d/a.conf", f"boot/config-{RELEASE}"])
def test_configuration(root: Root, place: str) -> None:
    (root.path / f"usr/src/linux-headers-{RELEASE}/.config").unlink()
    damage(root.path / place, "folder")
    assert place in incomplete(root)["message"]


@pytest.mark.parametrize("name", ["depmod.d", "modprobe.d"])
def test_a_file_in_the_place_of_a_configuration_folder(root: Root, name: str) -> None:
    damage(root.path / "etc" / name, "empty")
    assert f"etc/{name}: cannot be read" in incomplete(root)["message"]


def test_depmod(root: Root) -> None:
    damage(root.modules / "modules.dep", "folder")
    assert "modules.dep: cannot be read" in incomplete(root)["message"]


def test_a_folder_of_modules_that_cannot_be_listed(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in it could take the place of another one."""
    hidden = root.modules / "updates/vendor"
    hidden.mkdir()
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if os.fspath(path) == str(hidden):
            raise PermissionError(errno.EACCES, "Permission denied", str(hidden))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert f"{hidden}: cannot be read: Permission denied" in incomplete(root)["message"]


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("place", ["updates/dkms/nvidia.ko", "kernel/drivers/video/nvidia-current.ko"])
def test_driver(root: Root, how: str, place: str) -> None:
    (root.modules / "updates/dkms/nvidia.ko").unlink()
    damage(root.modules / place, how)
    driver = look(root, "nvidia")[0]
    assert ("missing" if how == "folder" else "unreadable") in {entry["id"] for entry in driver["findings"]}
    # Another one's audit alone doesn't pass without the driver either.
    assert Path(place).name in incomplete(root, "nvidia_fs")["message"]


def test_what_is_replaced_need_not_be_readable(root: Root, tmp_path: Path) -> None:
    """Otherwise nothing could repair it."""
    good = root.modules / "updates/dkms/nvidia.ko"
    built = tmp_path / "built" / "nvidia.ko"
    built.parent.mkdir()
    built.write_bytes(good.read_bytes())
    damage(good, "truncated")
    assert [result["ok"] for result in look(root, str(built))] == [True]


def test_hooks(root: Root) -> None:
    root.nvidia_fs(signature=SIGNATURE, texts=["nvme_v1_register_nvfs_dma_ops", "nvme_v1_unregister_nvfs_dma_ops"])
    damage(root.modules / "kernel/drivers/nvme/host/nvme.ko", "garbage")
    expected = Expected(storage=("nvme",))
    assert "nvme.ko" in incomplete(root, expected=expected)["message"]
    assert "hook-missing" not in json.dumps(look(root, expected=expected))


def ofed_tree(root: Root) -> Path:
    folder = root.path / "usr/src/ofa_kernel" / RELEASE
    folder.mkdir(parents=True)
    names = "".join(f"0x00000001\t{name}\tib_core\tEXPORT_SYMBOL\t\n" for name in ofed.SYMBOLS)
    (folder / "Module.symvers").write_text(names)
    return folder


@pytest.mark.parametrize("how", DAMAGE)
def test_ofed(root: Root, how: str) -> None:
    kernel = Kernel(RELEASE, str(root.path))
    ofed_tree(root)
    assert ofed.search(kernel).tree is not None
    damage(root.modules / "updates/ib_core.ko", how)
    kernel = Kernel(RELEASE, str(root.path))
    if how != "folder":
        assert ofed.search(kernel).tree is None
        assert "ib_core.ko" in ofed.search(kernel).why_not()
        with pytest.raises(HostError, match=r"ib_core\.ko"):
            key.ofed_digest(kernel)
    assert "ib_core.ko" in next(iter(kernel.inputs.unread))


def test_an_ofed_tree_that_cannot_be_read(root: Root) -> None:
    folder = ofed_tree(root)
    damage(folder / "configure.mk.kernel", "folder")
    assert "configure.mk.kernel cannot be read" in ofed.search(Kernel(RELEASE, str(root.path))).why_not()
    damage(folder / "Module.symvers", "truncated")
    assert "cannot be read" in ofed.search(Kernel(RELEASE, str(root.path))).why_not()


LOG = f"var/lib/dkms/nvidia-fs/2.28.4/{RELEASE}/x86_64"


@pytest.mark.parametrize("what", ["nothing", "the log", "the source", "the copy"])
def test_origin(root: Root, what: str) -> None:
    """DKMS's log says what was built against; without it, or without that source, nothing does."""
    source = make_tree(root.path / "usr/src/nvidia-550.163.01")
    file = root.nvidia_fs(info=[("version", "2.28.4")], build_id=b"\x01" * 20)
    (root.path / LOG / "log").mkdir(parents=True)
    (root.path / LOG / "module").mkdir()
    (root.path / LOG / "module/nvidia-fs.ko").write_bytes(file.read_bytes())
    (root.path / LOG / "log/make.log").write_text("NVIDIA_SRC_DIR=/usr/src/nvidia-550.163.01/nvidia\n")
    actions: dict[str, Callable[[], None]] = {
        "nothing": lambda: None,
        "the log": lambda: damage(root.path / LOG / "log/make.log", "folder"),
        "the source": lambda: replace_folder(source / "nvidia-peermem"),
        "the copy": lambda: damage(root.path / LOG / "module/nvidia-fs.ko", "garbage"),
    }
    actions[what]()
    kernel = Kernel(RELEASE, str(root.path))
    assert (driver.origin(kernel, read_module(str(file))) is None) == (what != "nothing")
    result = look(root, "nvidia_fs", expected=Expected())[0]
    assert result["ok"] is (True if what == "nothing" else None)


def replace_folder(path: Path) -> None:
    """A file in the place of the folder."""
    for entry in path.iterdir():
        entry.unlink()
    path.rmdir()
    path.touch()


def test_tree(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "nvidia-550.163.01")
    one = files.expect(str(source))
    replace_folder(source / "nvidia-peermem")
    with pytest.raises(TreeError, match="nvidia-peermem: cannot be read: Not a directory") as caught:
        files.digest(one)
    assert caught.value.hint
    with pytest.raises(TreeError, match="gone: cannot be read"):
        files.digest_files(str(source), ["gone"])
    damage(source / "Kbuild", "folder")
    with pytest.raises(TreeError, match="is not a driver source tree"):
        files.expect(str(source))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"modules": [1]}', b"[" * 100_000])
def test_vouch(root: Root, content: bytes) -> None:
    manifest = root.modules / packaged.FOLDER / packaged.MANIFEST
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(content)
    kernel = Kernel(RELEASE, str(root.path))
    assert packaged.installed_manifest(kernel) == {}
    assert packaged.vouched_files(kernel) == set()
    assert packaged.received_parts(kernel) == {}


def test_vouch_without_a_readable_module(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(RELEASE, str(root.path))
    build = packaged.identity(kernel)
    assert packaged.is_same_build(kernel, build) is True
    manifest = {"kernel_build": build, "modules": [{"file": "nvidia.ko", "sha256": "0" * 64}]}
    folder = root.modules / packaged.FOLDER
    folder.mkdir(parents=True)
    (folder / "nvidia.ko").touch()
    (folder / packaged.MANIFEST).write_text(json.dumps(manifest))

    def fail(path: str) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(packaged, "sha256", fail)
    assert packaged.is_same_build(kernel, build) is None
    assert packaged.vouched_files(kernel) == set()
    with pytest.raises(KernelError, match=r"own\.ko: cannot be read"):
        packaged.identity(kernel)


def test_a_signature_that_cannot_be_read(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_file: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(signature, "_end_of", fail)
    assert "Input/output error" in incomplete(root)["message"]


@pytest.mark.parametrize(
    "shown", ["", "\0\xff", "modprobe: FATAL: Module nvidia not found", "insmod", "install nvidia"]
)
def test_modprobe(shown: str) -> None:
    """Words that are no answer name no file; the facts and the boot then know none."""
    assert files_to_load(shown) == []
    assert substitute_of(shown) == ""
