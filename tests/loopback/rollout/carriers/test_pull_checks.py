"""The play that begins every pull, run here and alone: it changes nothing, and only the lock that is meant passes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from gdsdeploy.cli import group
from gdsdeploy.lock import lockfile

LAB = Path(__file__).parents[3] / "golden" / "lab"
BIN = Path(sys.executable).parent
DIGEST = lockfile.read(LAB / "gdsdeploy.lock").digest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("pull")
    value = yaml.safe_load((LAB / "fleet.yml").read_text())
    del value["builders"], value["profiles"]["gds"]["builder"]
    (path / "fleet.yml").write_text(yaml.safe_dump(value))
    shutil.copy(LAB / "gdsdeploy.lock", path)
    (path / "other.lock").write_text((LAB / "gdsdeploy.lock").read_text() + "# edited\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDSDEPLOY_CACHE_DIR", str(path / "cache"))
        argv = ["rollout", "render", str(path / "fleet.yml"), str(path / "checkout"), "--for", "pull"]
        done = CliRunner().invoke(group, argv)
        assert done.exit_code == 0, done.output
        yield path


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("", 2, "name the lock by its digest"),
        ("gds_lock=http://files.example/gdsdeploy.lock", 2, "give an absolute file name or an https:// address"),
        (f"gds_lock_digest={DIGEST[:-1]}x", 2, f"it was rendered from the lock {DIGEST}, but"),
        ("gds_lock={folder}/other.lock", 2, "it was rendered from another lock than the expected one"),
        (
            f"gds_lock={{folder}}/gdsdeploy.lock gds_lock_digest={DIGEST}",
            0,
            "The checkout is complete and from that lock",
        ),
    ],
)
def test_only_the_lock_that_is_meant_passes(folder: Path, words: str, status: int, message: str) -> None:
    checkout = folder / "checkout"
    # Of no role: what is left is what always runs.
    argv = ["-i", "inventory/hosts.yml", "--tags", "none", "--limit", "gpu1", "local.yml"]
    env = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default", "LC_ALL": "C.UTF-8"}
    extra = ["--extra-vars", f"ansible_python_interpreter={sys.executable} {words.format(folder=folder)}"]
    done = subprocess.run(
        [BIN / "ansible-playbook", *argv, *extra], cwd=checkout, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, message in " ".join(done.stdout.split())) == (status, True), done.stdout + done.stderr
    assert "changed=0" in done.stdout
