"""``--root DIR``: which options it needs, and which it excludes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from gdsdeploy.cli import provision
from gdsdeploy.errors import HostUnfit

LAB = Path(__file__).parents[2] / "golden" / "lab"
VERBS = {"plan": provision.plan, "provision": provision.provision_hosts, "remove": provision.remove_hosts}


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    for name in ("fleet.yml", "gdsdeploy.lock"):
        shutil.copyfile(LAB / name, tmp_path / name)
    return tmp_path / "fleet.yml"


def result(verb: str, *words: str | Path) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(VERBS[verb], [str(word) for word in words])
    return done.exit_code, done.output, done.exception


@pytest.mark.parametrize("verb", ["plan", "provision"])
def test_an_image_gets_the_state_of_one_host(verb: str, fleet: Path, tmp_path: Path) -> None:
    status, output, _ = result(verb, fleet, "--root", tmp_path)
    assert (status, "--root needs --limit HOST" in output) == (2, True)
    status, output, _ = result(verb, fleet, "--root", tmp_path, "--limit", "*")
    assert (status, "--limit names 2: build1, gpu1" in output) == (2, True)


@pytest.mark.parametrize("verb", ["provision", "remove"])
def test_flags_of_ansible_have_no_effect_on_an_image(verb: str, fleet: Path, tmp_path: Path) -> None:
    status, output, _ = result(verb, fleet, "--root", tmp_path, "--limit", "gpu1", "--check")
    assert (status, "without flags for ansible-playbook" in output) == (2, True)


@pytest.mark.parametrize("verb", list(VERBS))
def test_a_folder_that_is_no_image_is_refused(verb: str, fleet: Path, tmp_path: Path) -> None:
    error = result(verb, fleet, "--root", tmp_path / "nowhere", "--limit", "gpu1")[2]
    assert isinstance(error, HostUnfit)
