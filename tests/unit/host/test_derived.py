"""What programs made of files: when it has to be made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gdsdeploy.host import derived
from gdsdeploy.host.derived import PATH, Thing, in_this_boot, is_due, remaking, settle

CONF = "/etc/a.conf"
IMAGE = Thing("image", (CONF, "/etc/missing.conf"))


def write(root: Path, path: str, text: str) -> None:
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def test_a_thing_is_due_from_before_the_change_until_it_was_made_of_what_is_there(tmp_path: Path) -> None:
    root = str(tmp_path)
    write(tmp_path, CONF, "1")
    assert not is_due(IMAGE, root), "it was never ours"
    with remaking([IMAGE], root):
        assert is_due(IMAGE, root)
        write(tmp_path, CONF, "2")
    assert not is_due(IMAGE, root)
    write(tmp_path, CONF, "3")
    assert is_due(IMAGE, root), "whoever has changed it"
    write(tmp_path, CONF, "2")
    assert not is_due(IMAGE, root)
    write(tmp_path, "/etc/missing.conf", "")
    assert is_due(IMAGE, root)
    with pytest.raises(SystemExit), remaking([IMAGE], root):
        raise SystemExit(143)
    assert is_due(IMAGE, root)
    settle([IMAGE], root, keep=False)
    assert not is_due(IMAGE, root)
    assert not (tmp_path / PATH[1:]).exists()


@pytest.mark.timeout(600)
def test_a_pipe_in_a_sources_place_is_a_change_and_nothing_waits_for_its_writer(tmp_path: Path) -> None:
    write(tmp_path, CONF, "1")
    settle([IMAGE], str(tmp_path))
    (tmp_path / CONF[1:]).unlink()
    os.mkfifo(tmp_path / CONF[1:])
    assert is_due(IMAGE, str(tmp_path))


def test_a_reboot_settles_what_lasts_no_longer_than_a_boot(tmp_path: Path) -> None:
    root = str(tmp_path)
    write(tmp_path, "/proc/sys/kernel/random/boot_id", "one\n")
    derived.outdate([in_this_boot("a.service", [CONF], root)], root)
    assert is_due(in_this_boot("a.service", [CONF], root), root)
    write(tmp_path, "/proc/sys/kernel/random/boot_id", "two\n")
    assert not is_due(in_this_boot("a.service", [CONF], root), root)
    derived.outdate([IMAGE], root)
    assert derived.names("", root) == ["image"]


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 2, "made": {}}', '{"version": 1, "made": []}', "[" * 9999])
def test_with_a_damaged_record_everything_is_due(tmp_path: Path, text: str) -> None:
    write(tmp_path, PATH, text)
    assert is_due(IMAGE, str(tmp_path))
    settle([IMAGE], str(tmp_path))
    assert not is_due(IMAGE, str(tmp_path))
