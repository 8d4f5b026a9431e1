"""A file is replaced whole or not at all; where the names of files lead."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy import atomic
from gdsdeploy.paths import locate


def test_failed_write_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lab.json"
    atomic.write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        atomic.write(path, "new \ud800")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        atomic.write(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["lab.json"]


@pytest.mark.parametrize(
    ("before", "mode", "umask", "after"),
    [
        (None, None, 0o022, 0o644),
        (None, None, 0o077, 0o600),
        (None, 0o755, 0o077, 0o755),
        (0o640, None, 0o077, 0o640),
        (0o640, 0o600, 0o022, 0o600),
    ],
)
def test_permissions(tmp_path: Path, before: int | None, mode: int | None, umask: int, after: int) -> None:
    path = tmp_path / "key"
    if before is not None:
        path.touch()
        path.chmod(before)
    was = os.umask(umask)
    try:
        atomic.write(path, b"secret", mode=mode)
    finally:
        os.umask(was)
    assert path.stat().st_mode & 0o777 == after
    assert path.read_bytes() == b"secret"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays_but_of_a_file_that_is_this_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.touch()
    os.chown(path, 1234, 4321)
    atomic.write(path, "new")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)
    atomic.write(path, "secret", mode=0o600)
    assert (path.stat().st_uid, path.stat().st_gid) == (os.geteuid(), os.getegid())


def test_links_stay_and_lead_to_the_new_content(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    target, link, dangling = tmp_path / "shared" / "lock", tmp_path / "lock", tmp_path / "new"
    target.write_text("old")
    (tmp_path / "between").symlink_to("shared/lock")
    link.symlink_to(tmp_path / "between")
    dangling.symlink_to("shared/new")
    atomic.write(link, "new")
    atomic.write(dangling, "new")
    assert (link.is_symlink(), dangling.is_symlink()) == (True, True)
    assert (target.read_text(), (tmp_path / "shared" / "new").read_text()) == ("new", "new")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["between", "lock", "lock", "new", "new", "shared"]
    link.unlink()
    link.symlink_to("lock")
    with pytest.raises(OSError, match="Too many levels"):
        atomic.write(link, "new")


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    pipe, output = tmp_path / "pipe", tmp_path / "output"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    atomic.write(pipe, (part for part in ("a", "b")), mode=0o600)
    assert os.read(reader, 10) == b"ab"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)
    device = "null" if os.geteuid() == 0 else "/dev/null"
    if os.geteuid() == 0:
        os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    atomic.write(tmp_path / device, "lost")
    assert stat.S_ISCHR((tmp_path / device).stat().st_mode)
    with pytest.raises(OSError, match="No space left"):
        atomic.write(Path("/dev/full"), "lost")
    with pytest.raises(IsADirectoryError):
        atomic.write(tmp_path, "lost")
    # Behind what was written there, and what is written then is behind it.
    with output.open("wb", buffering=0) as file:
        file.write(b"1")
        (tmp_path / "stdout").symlink_to(f"/dev/fd/{file.fileno()}")
        atomic.write(tmp_path / "stdout", "2")
        file.write(b"3")
    assert output.read_text() == "123"


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's files are made by root")
def test_nothing_of_another_user_is_followed_in_a_folder_for_all(tmp_path: Path) -> None:
    """As the kernel has it (protected_symlinks), which a rename goes round."""
    folder, target = tmp_path / "all", tmp_path / "target"
    folder.mkdir()
    folder.chmod(0o1777)
    target.write_text("old")
    link, file = folder / "link", folder / "file"
    link.symlink_to(target)
    file.touch()
    for path in (link, file):
        os.chown(path, 1234, 1234, follow_symlinks=False)
        with pytest.raises(PermissionError, match="another user's"):
            atomic.write(path, "new")
        os.chown(path, os.geteuid(), -1, follow_symlinks=False)
        atomic.write(path, "new")
    assert target.read_text() == "new"
    # The folder's owner may put there what he likes.
    for path in (folder, file):
        os.chown(path, 1234, 1234)
    atomic.write(file, "newer")
    assert file.read_text() == "newer"


def test_parts_are_written_as_they_come_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    atomic.write(path, (part for part in ("é", "", "ü")))
    assert path.read_bytes() == "éü".encode()

    def broken() -> Iterator[str]:
        yield "half"
        assert path.read_bytes() == "éü".encode()
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        atomic.write(path, broken())
    assert path.read_bytes() == "éü".encode()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("keys/a.pub", "/fleet/keys/a.pub"),
        ("/etc/a.pub", "/etc/a.pub"),
        ("~/a.pub", "/home/me/a.pub"),
        ("~no-such-user/a.pub", "/fleet/~no-such-user/a.pub"),
    ],
)
def test_where_a_name_leads(name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert locate(Path("/fleet"), name) == Path(expected)
