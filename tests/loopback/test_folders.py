"""Interrupted work is discarded, finished work is shared."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from gdsdeploy.files import folders


def test_interrupted_entry_is_discarded_and_made_anew(tmp_path: Path) -> None:
    leftover = tmp_path / "base.tmp-dead"
    (leftover / "root").mkdir(parents=True)

    def interrupt(work: Path) -> None:
        (work / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folders.cached_folder(tmp_path, "base", interrupt, what="a base")
    assert list(tmp_path.iterdir()) == [], "half an entry, an earlier one or a lock stayed"
    entry = folders.cached_folder(tmp_path, "base", lambda work: (work / "whole").write_text("whole"), what="a base")
    assert [path.name for path in entry.iterdir()] == ["whole"]
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_entry_is_made_once_by_whoever_comes_first(tmp_path: Path) -> None:
    works: list[Path] = []

    def make(work: Path) -> None:
        works.append(work)
        time.sleep(0.3)

    threads = [
        threading.Thread(target=folders.cached_folder, args=(tmp_path, "base", make), kwargs={"what": "a base"})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(works) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_lock_excludes_and_leaves_no_file(tmp_path: Path) -> None:
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        with folders.hold_lock(tmp_path / "sub" / ".lock", what="x"):
            inside += 1
            most = max(most, inside)
            time.sleep(0.05)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert list((tmp_path / "sub").iterdir()) == []


@pytest.mark.parametrize("path", ["/", "/etc", "lab/../../etc", "other/x"])
def test_nothing_outside_is_removed(tmp_path: Path, path: str) -> None:
    lab = tmp_path / "lab"
    lab.mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x").touch()
    with pytest.raises(ValueError, match="does not lie below"):
        folders.remove_tree(tmp_path / path, within=lab)
    assert (tmp_path / "other/x").exists()


def test_removal_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab/link").symlink_to(tmp_path / "precious")
    folders.remove_tree(tmp_path / "lab/link", within=tmp_path / "lab")
    folders.remove_tree(tmp_path / "lab", within=tmp_path)
    assert (tmp_path / "precious/file").exists()
    assert not (tmp_path / "lab").exists()
