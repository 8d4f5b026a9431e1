"""A file is replaced whole or not at all; where the names of files lead."""

from __future__ import annotations

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
    monkeypatch.setattr(atomic.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        atomic.write(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["lab.json"]


@pytest.mark.parametrize(
    ("before", "mode", "after"), [(None, None, 0o644), (0o640, None, 0o640), (0o640, 0o600, 0o600)]
)
def test_permissions(tmp_path: Path, before: int | None, mode: int | None, after: int) -> None:
    path = tmp_path / "key"
    if before is not None:
        path.touch()
        path.chmod(before)
    atomic.write(path, b"secret", mode=mode)
    assert path.stat().st_mode & 0o777 == after
    assert path.read_bytes() == b"secret"


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
