"""Files and folders of resources: compared, written at once, put back."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.apply import files
from gdsdeploy.host.apply.files import ABSENT, FOLDER, File, PathState
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.errors import ApplyError, CannotTellError
from tests.unit.host.apply.apply_tree import DesiredFiles, Some, apply, check

TEXT = File.of("/etc/x.conf", "x\n")
DIGEST = "73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac"


@pytest.mark.parametrize(
    ("file", "state", "change"),
    [
        (TEXT, PathState("file", 0o644, 0, 0, DIGEST), None),
        (TEXT, None, ("write", "", f"sha256:{DIGEST}", "missing")),
        (TEXT, PathState("file", 0o644, 0, 0, "1"), ("write", "sha256:1", f"sha256:{DIGEST}", "content")),
        (TEXT, PathState("file", 0o600, 0, 0, DIGEST), ("write", "0600", "0644", "mode")),
        (TEXT, PathState("file", 0o644, 1, 2, DIGEST), ("write", "1:2", "0:0", "owner")),
        (TEXT, PathState("folder", 0o755, 0, 0), ("write", "folder", f"sha256:{DIGEST}", "kind")),
        (File("/etc/x.d", FOLDER, mode=0o1777), PathState("folder", 0o755, 0, 0), ("make", "0755", "1777", "mode")),
        (File("/etc/x.d", FOLDER, mode=0o755), None, ("make", "", "0755", "missing")),
        (File("/etc/x.conf", ABSENT), None, None),
        (File("/etc/x.conf", ABSENT), PathState("file", 0o644, 0, 0, "1"), ("delete", "sha256:1", "", "not-wanted")),
    ],
)
def test_what_differs(file: File, state: PathState | None, change: tuple[str, str, str, str] | None) -> None:
    changes = [(one.kind, one.before, one.after, one.reason) for one in files.compare(file, state)]
    assert changes == ([] if change is None else [change])


@pytest.mark.parametrize(
    ("file", "make", "message"),
    [
        (TEXT, lambda place: place.mkdir(), "/etc/x.conf: is a folder; a file is needed"),
        (TEXT, os.mkfifo, "/etc/x.conf: is neither a file nor a folder; a file is needed"),
        (File("/etc/x.conf", FOLDER), lambda place: place.touch(), "/etc/x.conf: is a file; a folder is needed"),
    ],
)
def test_something_else_in_the_way_is_refused_before_anything_is_changed(
    tmp_path: Path, file: File, make: Any, message: str
) -> None:
    (tmp_path / "etc").mkdir()
    make(tmp_path / "etc/x.conf")
    desired = DesiredFiles([File.of("/etc/first", "first\n"), file])
    assert [refusal.message for refusal in check(tmp_path, Some(), desired).refusals] == [message]
    with pytest.raises(ApplyError, match=message) as caught:
        apply(tmp_path, Some(), desired)
    assert (caught.value.kind, caught.value.hint) == ("refused", "move it away: mv /etc/x.conf /etc/x.conf.aside")
    assert not (tmp_path / "etc/first").exists()
    with pytest.raises(ApplyError, match=message):
        ManagedHost(root=str(tmp_path)).write(file)


def test_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "target").write_text("target\n")
    (tmp_path / "etc/x.conf").symlink_to("/target")
    apply(tmp_path, Some(), DesiredFiles([TEXT]))
    assert (tmp_path / "etc/x.conf").read_text() == "x\n"
    assert not (tmp_path / "etc/x.conf").is_symlink()
    assert (tmp_path / "target").read_text() == "target\n"


def test_a_link_to_a_folder_stays_and_the_folder_gets_the_mode(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "log").symlink_to("/data")
    apply(tmp_path, Some(), DesiredFiles([File("/log", FOLDER, mode=0o1777)]))
    assert (tmp_path / "log").readlink() == Path("/data")
    assert (tmp_path / "data").stat().st_mode & 0o7777 == 0o1777
    assert check(tmp_path, Some(), DesiredFiles([File("/log", FOLDER, mode=0o1777)])).changes == []


def test_a_killed_run_leaves_nothing_that_the_next_one_does_not_take(tmp_path: Path) -> None:
    place = tmp_path / "etc/x.conf"
    place.parent.mkdir()
    left = place.with_name(".x.conf.0123456789abcdef.gdsdeploy-new")
    left.write_text("half of ")
    files.replace(str(place), b"x\n", 0o644)
    assert [path.name for path in place.parent.iterdir()] == ["x.conf"]
    left.write_text("half of ")
    files.put_back(str(place), None)
    assert list(place.parent.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    place = tmp_path / "etc/x.conf"
    place.parent.mkdir()
    place.write_text("before\n")
    host = ManagedHost(root=str(tmp_path))
    host.record.remember("/etc/x.conf")

    def fsync(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", fsync)
    with pytest.raises(ApplyError) as caught:
        host.write(TEXT)
    monkeypatch.undo()
    assert caught.value.kind == ("no-space" if number in (errno.ENOSPC, errno.EDQUOT) else "io")
    assert caught.value.message.startswith("/etc/x.conf: ")
    assert place.read_text() == "before\n"
    assert [path.name for path in place.parent.iterdir()] == ["x.conf"]


def test_what_cannot_be_read_is_not_taken_for_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(path: str) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files.os, "stat", stat)
    with pytest.raises(CannotTellError, match=r"/etc/x.conf: Permission denied"):
        files.entry(str(tmp_path / "x"), "/etc/x.conf")


def test_links_that_lead_round_in_a_circle_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/x.conf").symlink_to("x.conf")
    assert [change.reason for change in apply(tmp_path, Some(), DesiredFiles([TEXT]))] == ["kind"]
    assert (tmp_path / "etc/x.conf").read_text() == "x\n"
