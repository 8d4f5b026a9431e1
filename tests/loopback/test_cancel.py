"""Work that is stopped: programs with all that they started, and folders that are made or removed."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from gdsdeploy import cancel, run
from gdsdeploy.cancel import Stop
from gdsdeploy.errors import Interrupted
from gdsdeploy.files import folders
from tests.patience import SURELY


def wished_in(stop: Stop, seconds: float) -> None:
    threading.Timer(seconds, stop.request).start()


def test_a_program_is_ended_with_all_that_it_started() -> None:
    stop, lines = Stop(), []
    script = "import subprocess, sys; print('up', flush=True); subprocess.run(['sleep', '600'])"

    def line(text: str) -> None:
        lines.append(text)
        wished_in(stop, 0.1)

    begin = time.monotonic()
    with pytest.raises(Interrupted), stop.scope():
        run.stream([sys.executable, "-c", script], doing="wait", line=line)
    assert lines[0] == "up"
    assert time.monotonic() - begin < SURELY


def test_a_pause_ends() -> None:
    stop = Stop()
    wished_in(stop, 0.1)
    begin = time.monotonic()
    with pytest.raises(Interrupted), stop.scope():
        cancel.current().wait(600)
    assert time.monotonic() - begin < SURELY


def test_nothing_begins_after_the_wish() -> None:
    stop = Stop()
    stop.request()
    with pytest.raises(Interrupted), stop.scope():
        pytest.fail("the block was entered")


def test_outside_of_a_scope_nobody_stops() -> None:
    stop = Stop()
    stop.request()
    cancel.current().check()
    assert run.stream([sys.executable, "-c", "pass"], doing="try", line=lambda _: None) == 0


# -- Interrupted work is discarded, finished work is shared.


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
