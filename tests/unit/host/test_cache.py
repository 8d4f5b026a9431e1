"""What the host program stores of the files it has read: never an answer that the files no longer give."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.audit.audit import audit
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.io import cache
from gdsdeploy.host.kmod import module as modules
from gdsdeploy.host.kmod.driver import Expected
from gdsdeploy.host.kmod.kernel import Kernel, _symvers_of
from gdsdeploy.host.subjects import kernel as evidence
from tests.unit.host.kmod.kmod_root import P2P, TREE, VERSION, Root


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of entries."""
    folder = tmp_path / "entries"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(cache, "folder", lambda: str(folder))
    return folder


def refuse() -> Any:
    raise AssertionError("it was read again")


def test_a_file_that_is_the_same_is_not_read_again(entries: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    assert cache.of_file("text", str(path), path.read_text) == "one"
    assert cache.of_file("text", str(path), refuse) == "one"
    assert cache.of_file("size", str(path), lambda: 3) == 3, "another kind is another entry"


def rewrite(path: Path) -> None:
    """Equal size and times, but the one that no call sets."""
    status = path.stat()
    path.write_text("two")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    status = path.stat()
    other = path.with_name("other")
    other.write_text("two")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize("change", [rewrite, replace])
def test_a_file_that_changed_is_read_again(entries: Path, tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    cache.of_file("text", str(path), path.read_text)
    change(path)
    assert cache.of_file("text", str(path), path.read_text) == "two"


def test_a_file_that_changes_while_it_is_read_is_not_stored(entries: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")

    def read() -> str:
        text = path.read_text()
        path.write_text("others")
        return text

    assert cache.of_file("text", str(path), read) == "one"
    assert list(entries.iterdir()) == []


def test_an_error_is_not_stored(entries: Path, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")

    def fail() -> str:
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        cache.of_file("text", str(path), fail)
    assert cache.of_file("text", str(path), path.read_text) == "one"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"of": [], "value": "two"}'])
def test_a_damaged_entry_is_read_again(entries: Path, tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    cache.of_file("text", str(path), path.read_text)
    (entry,) = entries.iterdir()
    entry.write_bytes(damage)
    assert cache.of_file("text", str(path), path.read_text) == "one"
    assert cache.of_file("text", str(path), refuse) == "one"


def test_nothing_of_proc_is_stored(entries: Path) -> None:
    answers = iter(("one", "two"))
    assert cache.of_file("text", "/proc/self/status", lambda: next(answers)) == "one"
    assert cache.of_file("text", "/proc/self/status", lambda: next(answers)) == "two"
    assert list(entries.iterdir()) == []


def test_several_files_and_folders_decide_together(entries: Path, tmp_path: Path) -> None:
    """A folder counts with what is in it."""
    folder, one = tmp_path / "folder", tmp_path / "one"
    folder.mkdir()
    answers = iter(range(20))
    inputs = cache.Inputs((str(folder), str(one)), ("word",))

    def ask() -> Any:
        return cache.of("answer", inputs, lambda: next(answers))

    steps: list[Callable[[], object]] = [
        one.touch,
        lambda: (folder / "new").write_text("one"),
        lambda: (folder / "new").write_text("other"),
        lambda: (folder / "new").rename(folder / "renamed"),
        lambda: (folder / "masked").symlink_to(os.devnull),
        (folder / "below").mkdir,
        one.unlink,
    ]
    for number, step in enumerate(steps):
        assert [ask(), ask()] == [number, number]
        step()
    assert ask() == len(steps)
    inputs = inputs._replace(words=("other",))
    assert ask() == len(steps) + 1
    assert len(list(entries.iterdir())) == 1, "a later answer takes the place"


@pytest.mark.parametrize("target", ["/proc/self/status", "/sys/kernel", "/dev/zero"])
def test_what_may_change_unseen_is_no_input(entries: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "link").symlink_to(target)
    answers = iter(range(9))
    for paths in ([target], [str(tmp_path / "link")], [str(tmp_path)]):
        assert len({cache.of("answer", cache.Inputs(paths), lambda: next(answers)) for _ in range(2)}) == 2
    assert list(entries.iterdir()) == []


def test_no_value_is_not_stored(entries: Path, tmp_path: Path) -> None:
    assert cache.of("answer", cache.Inputs([str(tmp_path / "x")]), lambda: None) is None
    assert cache.of("answer", cache.Inputs([str(tmp_path / "x")]), lambda: "one") == "one"


def test_only_a_program_in_a_folder_of_roots_alone_stores_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder() -> str | None:
        cache.folder.cache_clear()
        return cache.folder()

    assert folder() is None, "a checkout"
    program = tmp_path / "program-1"
    program.mkdir(mode=0o700)
    monkeypatch.setattr(cache, "PROGRAMS", f"{tmp_path}/program-")
    monkeypatch.setattr(cache, "__file__", f"{program}/gdsdeploy/host/io/cache.py")
    assert folder() == f"{program}/cache"
    assert (program / "cache").stat().st_mode & 0o777 == 0o700
    (program / "cache").chmod(0o770)
    assert folder() is None, "a group can write there"
    (program / "cache").rmdir()
    (program / "cache").symlink_to(tmp_path)
    assert folder() is None, "a link"
    (program / "cache").unlink()
    program.chmod(0o777)
    assert folder() is None, "the program itself can be changed"
    program.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert folder() is None, "another user"
    cache.folder.cache_clear()


#: What an audit reads, changed one at a time.
CHANGES: dict[str, Callable[[Root], object]] = {
    "the driver": lambda root: root.nvidia(exports={**P2P, "nvidia_p2p_get_pages": (1, True)}),
    "nvidia-fs": lambda root: root.nvidia_fs(vermagic="6.1.0-1-amd64 SMP preempt mod_unload modversions "),
    "the kernel's symbols": lambda root: next(root.path.rglob("Module.symvers")).write_text(
        "0x00000001\tkfree\tvmlinux\tEXPORT_SYMBOL\t\n"
    ),
    "no driver": lambda root: next(root.modules.rglob("nvidia.ko")).unlink(),
    "another nvidia-fs beside it": lambda root: root.nvidia_fs("extra/nvidia-fs.ko"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_an_audit_sees_every_change(entries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    root = Root(tmp_path / "root")
    root.nvidia()
    root.nvidia_fs()
    root.lists()

    def look(folder: str | None) -> Any:
        modules._read_once.cache_clear()
        _symvers_of.cache_clear()
        monkeypatch.setattr(cache, "folder", lambda: folder)
        return audit(Kernel(root.release, str(root.path)), (), Expected(VERSION, "open", TREE))

    before = look(str(entries))
    assert list(entries.iterdir()), "something was stored"
    assert look(str(entries)) == look(None) == before
    CHANGES[name](root)
    after = look(None)
    assert after != before
    assert look(str(entries)) == after


def test_symbols_of_the_running_kernel_are_read_again_after_a_change(entries: Path, tmp_path: Path) -> None:
    """A module came; the kernel was booted again; a module is used by one more, which changes nothing."""
    files = {
        "/proc/sys/kernel/random/boot_id": "one\n",
        "/proc/modules": "nvme 65536 1 - Live 0xffffffffc0100000\n",
        "/proc/kallsyms": "0 T pci_p2pdma_one\n",
    }

    def write(path: str, text: str) -> None:
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def symbols() -> Any:
        recorder = Recorder(60, root=str(tmp_path))
        recorder.excerpt("/proc/kallsyms", evidence.SYMBOLS, evidence._symbols_of(recorder))
        return recorder.document["excerpts"]["/proc/kallsyms"]["lines"]

    for path, text in files.items():
        write(path, text)
    assert symbols() == ["0 T pci_p2pdma_one"]
    write("/proc/kallsyms", "0 T pci_p2pdma_two\n")
    write("/proc/modules", "nvme 65536 2 nvme_fabrics, Live 0xffffffffc0100000\n")
    assert symbols() == ["0 T pci_p2pdma_one"]
    write("/proc/modules", files["/proc/modules"] + "nvidia 65536 0 - Live 0xffffffffc0200000 (OE)\n")
    assert symbols() == ["0 T pci_p2pdma_two"]
    (tmp_path / "proc/modules").unlink()
    write("/proc/kallsyms", "0 T pci_p2pdma_monolith\n")
    assert symbols() == ["0 T pci_p2pdma_monolith"]
    write("/proc/modules", "nvme 65536 1 - Live 0xffffffffc0100000\n")
    write("/proc/kallsyms", "0 T pci_p2pdma_three\n")
    write("/proc/sys/kernel/random/boot_id", "two\n")
    assert symbols() == ["0 T pci_p2pdma_three"]


def test_the_configuration_of_the_running_kernel_is_read_once_a_boot(entries: Path, tmp_path: Path) -> None:
    def write(boot: str, option: str) -> None:
        (tmp_path / "proc/sys/kernel/random").mkdir(parents=True, exist_ok=True)
        (tmp_path / "proc/sys/kernel/random/boot_id").write_text(boot)
        (tmp_path / "proc/config.gz").write_bytes(gzip.compress(option.encode()))

    def options() -> Any:
        recorder = Recorder(60, root=str(tmp_path))
        evidence.configuration(recorder)
        return recorder.document["excerpts"]["/proc/config.gz"]["lines"]

    write("one\n", "CONFIG_PCI_P2PDMA=y\n")
    assert options() == ["CONFIG_PCI_P2PDMA=y"]
    write("one\n", "")
    assert options() == ["CONFIG_PCI_P2PDMA=y"], "no kernel does that"
    write("two\n", "# CONFIG_PCI_P2PDMA is not set\n")
    assert options() == ["# CONFIG_PCI_P2PDMA is not set"]
