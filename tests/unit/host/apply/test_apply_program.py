"""The program as a resource: the zipapp that runs is what is put in place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gdsdeploy.host.apply import program
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.program import Desired, Program
from gdsdeploy.host.errors import ApplyError
from tests.unit.host.apply.apply_tree import apply, check


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sent.pyz"
    # More than a record would keep.
    path.write_bytes(b"#!/usr/bin/env python3\nPK" + b"x" * (5 << 20))
    running = program.running
    monkeypatch.setattr(program, "running", lambda: running(SimpleNamespace(archive=str(path))))
    return path


def test_it_is_put_in_place_and_replaced(tmp_path: Path, archive: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    changes = apply(root, Program(), Desired())
    assert [(change.kind, change.subject) for change in changes] == [
        *(("make", path) for path in program.FOLDERS),
        ("write", program.PATH),
    ]
    place = Path(f"{root}{program.PATH}")
    assert place.read_bytes() == archive.read_bytes()
    assert place.stat().st_mode & 0o777 == 0o755
    assert check(root, Program(), Desired()).changes == []
    archive.write_bytes(b"PK, newer")
    assert [change.reason for change in check(root, Program(), Desired()).changes] == ["content"]
    apply(root, Program(), Desired())
    assert place.read_bytes() == b"PK, newer"
    assert Program().revert(ManagedHost(root=str(root)))[0].subject == program.PATH
    assert not place.exists()


def test_outside_of_a_zipapp_there_is_nothing_to_put_in_place(tmp_path: Path) -> None:
    with pytest.raises(ApplyError, match="doesn't run from a zipapp") as caught:
        apply(tmp_path, Program(), Desired())
    assert caught.value.hint.startswith("run gdsdeploy-host.pyz")
    assert check(tmp_path, Program(), Desired()).unknown == [caught.value.message]


def test_a_zipapp_that_is_gone() -> None:
    with pytest.raises(ApplyError, match=r"/nowhere/x\.pyz: No such file or directory"):
        program.running(SimpleNamespace(archive="/nowhere/x.pyz"))
