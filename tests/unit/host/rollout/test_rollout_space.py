"""Whether sizes fit: real filesystems, their numbers made up where the result depends on them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import __main__ as program
from gdsdeploy.host.errors import RolloutError
from gdsdeploy.host.io import space

MB = 1_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("boot", "lib/modules", "var"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def left(
    monkeypatch: pytest.MonkeyPatch, size: int = 100 * MB, inodes: int = 1000, boot: str = "/", var: str = "/"
) -> None:
    """What the host has: /lib/modules is on /, the others where they are said to be."""
    mounts = {"/": "/", "/lib/modules": "/", "/boot": boot, "/var": var}
    rows = {folder: {"bytes": size, "inodes": inodes, "mount": mount} for folder, mount in mounts.items()}
    monkeypatch.setattr(space, "free", lambda root="/": rows)


def test_what_is_free_is_what_the_kernel_says(root: Path) -> None:
    filesystems = space.free(str(root))
    assert set(filesystems) == set(space.FOLDERS)
    real = os.statvfs(root)
    assert abs(filesystems["/boot"]["bytes"] - real.f_bfree * real.f_frsize) < 100 * MB, "others write meanwhile"
    assert len({entry["mount"] for entry in filesystems.values()}) == 1
    assert root.is_relative_to(filesystems["/"]["mount"])
    (root / "boot").rmdir()
    assert "/boot" not in space.free(str(root))


@pytest.mark.parametrize(
    ("need", "fits"),
    [
        ({"/boot": 83 * MB}, True),
        ({"/boot": 84 * MB}, False),  # 16 MiB are always to be left
        ({"/boot": {"bytes": MB, "inodes": 1000}}, True),
        ({"/boot": {"bytes": MB, "inodes": 1001}}, False),
        ({"/boot": 0}, True),
    ],
)
def test_a_margin_is_left(monkeypatch: pytest.MonkeyPatch, need: dict[str, Any], fits: bool) -> None:
    left(monkeypatch)
    assert space.fits(need)["fits"] is fits


def test_a_share_counts_where_it_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    left(monkeypatch, size=1000 * MB)
    assert space.fits({"/var": 905 * MB})["fits"]
    assert not space.fits({"/var": 915 * MB})["fits"]
    assert space.fits({"/var": 915 * MB}, margin=0.01)["fits"]


def test_folders_of_one_filesystem_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    need = {"/boot": 50 * MB, "/var": 50 * MB}
    left(monkeypatch, boot="/boot")
    assert space.fits(need)["fits"]
    left(monkeypatch)
    result = space.fits(need)
    assert not result["fits"]
    assert [row["folders"] for row in result["filesystems"]] == [["/boot", "/var"]]
    assert result["filesystems"][0]["bytes"] == 0


def test_a_filesystem_without_a_limit_of_inodes(monkeypatch: pytest.MonkeyPatch) -> None:
    left(monkeypatch, inodes=-1)
    result = space.fits({"/var": {"bytes": MB, "inodes": 10**9}})
    assert result["fits"]
    assert "any number of inodes" in result["filesystems"][0]["says"]


@pytest.mark.parametrize(
    "need",
    [[], {}, {"/home": 1}, {"/boot": -1}, {"/boot": "1"}, {"/boot": True}, {"/boot": {"size": 1}}, {"/var": None}],
)
def test_what_is_no_need_is_refused(need: Any) -> None:
    with pytest.raises(RolloutError) as caught:
        space.fits(need)
    assert caught.value.kind == "usage"


def test_a_need_for_what_is_not_there_is_refused(root: Path) -> None:
    (root / "boot").rmdir()
    with pytest.raises(RolloutError, match="there is no /boot"):
        space.fits({"/boot": 1}, root=str(root))


def test_the_command_ends_with_30_where_it_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left(monkeypatch)
    file = tmp_path / "need.json"
    file.write_text(json.dumps({"/boot": 90 * MB}))
    assert program.main(["rollout", "space", "--need", str(file), "--json"]) == 30
    assert json.loads(capsys.readouterr().out)["fits"] is False
    file.write_text(json.dumps({"/boot": 9 * MB}))
    assert program.main(["rollout", "space", "--need", str(file)]) == 0
    assert "needs 26 MB with its margin" in capsys.readouterr().out
    file.write_text("nonsense")
    assert program.main(["rollout", "space", "--need", str(file)]) == 2
    assert "is not a need" in capsys.readouterr().err
