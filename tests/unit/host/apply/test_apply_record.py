"""What a path was before: written down first, kept over runs, and never guessed when it is damaged."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from gdsdeploy.host.apply import record
from gdsdeploy.host.apply.file_resource import restore
from gdsdeploy.host.apply.files import File
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.record import Record
from gdsdeploy.host.errors import ApplyError
from tests.unit.host.apply.apply_tree import FILES, DesiredFiles, Some, apply

PLACE = record.PATH.lstrip("/")


def recorded_paths(root: Path) -> dict[str, object]:
    return json.loads((root / PLACE).read_text())["paths"]


def test_it_is_written_before_the_path_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    replace = os.replace
    monkeypatch.setattr(
        os, "replace", lambda old, new, **folders: (order.append(Path(new).name), replace(old, new, **folders))[1]
    )
    apply(tmp_path, Some(), DesiredFiles([File.of("/etc/x.conf", "x\n")]))
    assert order == ["before.json", "before.json", "x.conf"]
    assert recorded_paths(tmp_path) == {"/etc": None, "/etc/x.conf": None}
    assert (tmp_path / PLACE).stat().st_mode & 0o777 == 0o600


def test_only_the_first_state_counts(tmp_path: Path) -> None:
    place = tmp_path / "etc/some.conf"
    place.parent.mkdir()
    place.write_bytes(b"\xff before")
    place.chmod(0o640)
    apply(tmp_path, Some(), DesiredFiles(FILES))
    place.write_text("edited")
    apply(tmp_path, Some(), DesiredFiles(FILES))
    Some().revert(ManagedHost(root=str(tmp_path)))
    assert place.read_bytes() == b"\xff before"
    assert place.stat().st_mode & 0o777 == 0o640
    assert recorded_paths(tmp_path) == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"version": 2, "paths": {}}', '{"version": 1, "paths": []}', "[" * 100_000]
)
def test_a_damaged_record_stops_everything(tmp_path: Path, text: str) -> None:
    (tmp_path / PLACE).parent.mkdir(parents=True)
    (tmp_path / PLACE).write_text(text)
    for attempt in (
        lambda: apply(tmp_path, Some(), DesiredFiles(FILES)),
        lambda: Some().revert(ManagedHost(root=str(tmp_path))),
    ):
        with pytest.raises(ApplyError, match="the record of what was here before can't be read") as caught:
            attempt()
        assert f"mv {tmp_path / PLACE}" in caught.value.hint
    assert (tmp_path / PLACE).read_text() == text
    assert not (tmp_path / "etc").exists()


def test_what_could_not_be_written_down_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ManagedHost(root=str(tmp_path))

    def full(place: str, content: bytes, mode: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "replace", full)
    with pytest.raises(ApplyError) as caught:
        host.write(File.of("/etc/x.conf", "x\n"))
    assert caught.value.kind == "no-space"
    assert host.record.paths == {}
    assert not (tmp_path / "etc").exists()


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/etc/modprobe.d/gdsdeploy.conf", "# by name\n"),
        ("/etc/gdsdeploy/expectation.json", "{}"),
        ("/etc/apt/keyrings/gdsdeploy-cuda.gpg", "key"),
        ("/etc/cufile.json", "// Rendered by gdsdeploy 0.1; do not edit\n{}"),
        ("/etc/dkms/nvidia-fs.conf", "# Rendered by gdsdeploy; changes here are overwritten.\n"),
    ],
)
def test_what_an_older_version_left_is_not_brought_back(tmp_path: Path, path: str, content: str) -> None:
    place = tmp_path / path.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text(content)
    record = Record(str(tmp_path))
    record.remember(path)
    assert record.paths == {path: None}


def test_what_is_too_large_for_a_record_is_not_changed(tmp_path: Path) -> None:
    place = tmp_path / "etc/x.conf"
    place.parent.mkdir()
    place.write_bytes(b"x" * ((4 << 20) + 1))
    with pytest.raises(ApplyError, match="4194305 bytes is too large for a configuration file"):
        apply(tmp_path, Some(), DesiredFiles([File.of("/etc/x.conf", "x\n")]))
    assert place.stat().st_size == (4 << 20) + 1


def test_a_path_where_nothing_was_is_forgotten_for_good(tmp_path: Path) -> None:
    record = Record(str(tmp_path))
    record.remember("/etc/new.conf")
    record.forget("/etc/new.conf")
    assert Record(str(tmp_path)).paths == {}


def acl(*entries: tuple[int, int, int]) -> bytes:
    """An ACL as the kernel stores it: tags, permissions, ids."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def test_acls_and_extended_attributes_come_back(tmp_path: Path) -> None:
    """Of a file, of its folder, and after an undo; a file without any gets none from its folder."""
    nobody = 0xFFFFFFFF
    own = acl((1, 6, nobody), (2, 6, 1000), (4, 4, nobody), (16, 6, nobody), (32, 4, nobody))
    folder, plain = tmp_path / "etc", tmp_path / "etc/plain"
    folder.mkdir()
    plain.write_text("plain")
    file = folder / "cufile.json"
    file.write_text("{}")
    os.setxattr(file, "user.site", b"managed")
    os.setxattr(file, "system.posix_acl_access", own)
    os.setxattr(folder, "system.posix_acl_default", own)

    def state() -> list[object]:
        places = (folder, plain, file)
        return [
            (place.stat().st_mode, {name: os.getxattr(place, name) for name in os.listxattr(place)}) for place in places
        ]

    before = state()
    for path in ("/etc/cufile.json", "/etc/plain"):
        host = ManagedHost(root=str(tmp_path))
        host.write(File.of(path, "{1}"))
        assert state() != before
        host.undo()
        assert state() == before
        ManagedHost(root=str(tmp_path)).write(File.of(path, "{1}"))
        assert [change.subject for change in restore(ManagedHost(root=str(tmp_path)), [path])] == [path]
        assert state() == before
