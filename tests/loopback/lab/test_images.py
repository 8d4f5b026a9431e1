"""Base systems: which are the same, which begin with what a lock names, which are removed, and one without space."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from gdsdeploy.lock import lockfile
from gdslab import guest, images, recipe
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable

TRIXIE = guest.RELEASES["trixie"]


def test_name_changes_with_recipe_and_archive_only(mirror: Archive) -> None:
    name = recipe.debian(TRIXIE, mirror, "vm").name
    assert name == recipe.debian(TRIXIE, replace(mirror), "vm").name
    assert name.startswith("trixie-vm-")
    others = {
        recipe.debian(TRIXIE, mirror, "light").name,
        recipe.debian(guest.RELEASES["bookworm"], mirror, "vm").name,
        recipe.debian(TRIXIE, replace(mirror, uri="http://other.example/debian"), "vm").name,
        recipe.debian(TRIXIE, replace(mirror, proxy={"Acquire::http::Proxy": "http://p.example"}), "vm").name,
    }
    assert len(others) == 4
    assert name not in others


def test_hosts_begin_with_the_locked_packages_of_hosts_only() -> None:
    target = lockfile.read(Path(__file__).parents[2] / "golden/lab/gdsdeploy.lock").targets["gds"]
    names = dict(guest.image_packages(target)).keys()
    assert {"libcuda1", "libcufile0"} <= names
    assert not {"dkms", "nvidia-fs-dkms", f"linux-image-{target.kernel.release}"} & names


def test_purge_keeps_what_a_lab_uses_and_discards_leftovers(tmp_path: Path) -> None:
    for name in ("trixie-vm-1", "trixie-light-1", "trixie-light-2.tmp-abc"):
        (tmp_path / name / "root").mkdir(parents=True)
    (tmp_path / "accelerator.json").write_text("{}")
    names = images.purge(tmp_path, {tmp_path / "trixie-light-1/root"})
    assert names == [tmp_path / "trixie-light-1"]
    assert [path.name for path in tmp_path.iterdir()] == ["trixie-light-1"]
    assert images.purge(tmp_path, set()) == []
    assert not tmp_path.exists()
    assert images.purge(tmp_path, set()) == []


def test_without_space_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    disk, name = tmp_path / "disk", "full"
    disk.mkdir()
    environment = os.environ | {"GDSDEPLOY_CACHE_DIR": f"{disk}/cache", "GDSDEPLOY_STATE_DIR": f"{tmp_path}/state"}
    # What is on the disk afterwards is the only output.
    script = 'disk=$1; shift; mount -t tmpfs -o size=64m none $disk; "$@"; s=$?; find $disk ! -type d; exit $s'
    lab = [Path(sys.executable).with_name("gdsdeploy"), "lab"]
    argv = ["unshare", "--mount", "sh", "-c", script, "full", disk, *lab]
    argv += ["up", "--lab", name, "--vm", "0", "--light", "1", "--yes"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    subprocess.run([*lab, "down", "--lab", name], env=environment, check=True, capture_output=True)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == LabUnavailable.exit_code, done.stderr
    assert errors == [
        f"error: no space left for the trixie base system: {disk}/cache/lab has 64 MiB free, and it needs 1024 MiB"
    ]
    assert "GDSDEPLOY_CACHE_DIR" in done.stderr
    assert done.stdout == ""
