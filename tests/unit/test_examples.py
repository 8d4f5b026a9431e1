"""Every example is a fleet file that loads, for a system that is known, and says what it claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.errors import NoSolution
from gdsdeploy.load import load_fleet
from gdsdeploy.locking import resolve_fleet
from gdsdeploy.platform import StackPlatform, platform_for
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.settings import repositories

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yml"))
SERVED = {"lab", "debian-13", "debian-12", "cuda-rhel-9"}


def test_the_examples_are_there() -> None:
    assert {path.stem for path in EXAMPLES} == SERVED | {"cuda-ubuntu-24.04"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_for_a_known_system(path: Path) -> None:
    fleet = load_fleet(path)
    platforms = [platform_for(profile.os) for profile in fleet.profiles.values()]
    assert all(isinstance(platform, StackPlatform) == (path.stem in SERVED) for platform in platforms)


@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.stem not in SERVED], ids=lambda path: path.stem)
def test_an_example_that_cannot_be_locked_yet_ends_in_one_clear_error(path: Path, tmp_path: Path) -> None:
    with Fetcher(tmp_path) as fetcher, pytest.raises(NoSolution, match="cannot be locked yet") as error:
        resolve_fleet(load_fleet(path), fetcher)
    assert "\n" not in error.value.message
    assert (error.value.hint or "").startswith("Can be locked: debian-12, debian-13, ")


def test_an_example_with_its_own_mirror_asks_only_there() -> None:
    fleet = load_fleet(next(path for path in EXAMPLES if path.stem == "debian-12"))
    platform = platform_for("debian-12")
    assert isinstance(platform, StackPlatform)
    found = repositories(fleet, "gpu", platform, [])
    assert [r.uri for r in found] == ["https://mirror.example/debian", "https://mirror.example/debian-security"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_explained(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 50
    assert lines[0].startswith("# ")
