"""Where a host keeps the program: in a folder that only root can write to, or in memory."""

from __future__ import annotations

import errno
import io
import os
import time
import zipfile
from pathlib import Path

import pytest

from gdsdeploy.zipapp import bootstrap


def program(text: str = "print('hello')\n") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        # without an explicit time, writestr takes the clock's, and two archives of the same text differ
        archive.writestr(zipfile.ZipInfo("__main__.py"), text)
        archive.writestr(zipfile.ZipInfo("gdsdeploy/__init__.py"), "")
    return stream.getvalue()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of programs, in place of root's."""
    folder = tmp_path / "run"
    monkeypatch.setattr(bootstrap, "FOLDER", str(folder))
    return folder


def test_it_is_unpacked_once(run: Path) -> None:
    place = Path(bootstrap.unpack(str(run / "program-1"), program()))
    assert (place / "program.pyz").read_bytes() == program()
    assert place.stat().st_mode & 0o777 == 0o700
    (place / "__main__.py").write_text("compiled\n")
    assert bootstrap.unpack(str(place), program()) == str(place)
    assert (place / "__main__.py").read_text() == "compiled\n"
    assert [path.name for path in run.iterdir()] == ["program-1"]


def test_another_call_may_be_faster(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def first(source: str, target: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", rename)
            patch.setattr(os, "getpid", lambda: 1)
            bootstrap.unpack(target, program("first"))
        rename(source, target)

    monkeypatch.setattr(os, "rename", first)
    place = Path(bootstrap.unpack(str(run / "program-1"), program()))
    assert (place / "__main__.py").read_text() == "first"
    assert [path.name for path in run.iterdir()] == ["program-1"]


def test_what_finds_no_room_leaves_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: zipfile.ZipFile, place: str) -> None:
        (Path(place) / "half").write_text("a file")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(OSError, match="No space left"):
        bootstrap.unpack(str(run / "program-1"), program())
    assert list(run.iterdir()) == []


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_what_others_can_change_is_not_used(mode: int, run: Path) -> None:
    folder = run / "program-1"
    folder.mkdir(parents=True)
    (folder / "__main__.py").write_text("theirs")
    folder.chmod(mode)
    with pytest.raises(OSError, match=r"not empty|exists"):
        bootstrap.unpack(str(folder), program())
    folder.chmod(0o700)
    assert bootstrap.unpack(str(folder), program()) == str(folder)
    run.chmod(mode)
    with pytest.raises(OSError, match="can be changed by others"):
        bootstrap.unpack(str(run / "program-2"), program())


def test_a_link_is_not_used(run: Path, tmp_path: Path) -> None:
    bootstrap.unpack(str(run / "program-1"), program())
    (run / "program-2").symlink_to(run / "program-1")
    with pytest.raises(NotADirectoryError):
        bootstrap.unpack(str(run / "program-2"), program())


def test_programs_of_yesterday_go_and_locks_stay(run: Path) -> None:
    for name in ("program-old", "program-new", "apply.lock"):
        bootstrap.unpack(str(run / name), program())
    for name in ("program-old", "apply.lock"):
        os.utime(run / name, (0, time.time() - bootstrap.RETENTION - 60))
    bootstrap.unpack(str(run / "program-1"), program())
    assert sorted(path.name for path in run.iterdir()) == ["apply.lock", "program-1", "program-new"]


@pytest.mark.parametrize("uid", [0, 1000])
def test_without_the_folder_it_runs_from_memory(uid: int, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_text("no folder")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    place, code = bootstrap.locate("1", program("answer = 42\n"))
    values: dict[str, object] = {}
    exec(code, values)
    os.close(int(place.rpartition("/")[2]))
    assert (place.startswith("/proc/self/fd/"), values["answer"]) == (True, 42)
