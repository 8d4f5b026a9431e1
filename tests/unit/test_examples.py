"""Every example is a fleet file that loads, for a system that is known, and says what it claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply.packages.aptsources import Source
from gdsdeploy.lock.repo_settings import repositories
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo import apt

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yml"))
SERVED = {
    *("lab", "debian-13", "debian-12", "rollout"),
    *("cuda-rhel-9", "cuda-rocky-9", "cuda-debian-13", "cuda-ubuntu-24.04", "cuda-ubuntu-24.04-arm64"),
}


def test_the_examples_are_there() -> None:
    assert {path.stem for path in EXAMPLES} == SERVED


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_for_a_system_that_can_be_locked(path: Path) -> None:
    fleet = load_fleet(path)
    assert all(stack_platform_for(profile.os).os == profile.os for profile in fleet.profiles.values())


@pytest.mark.parametrize("name", ["cuda-ubuntu-24.04", "cuda-ubuntu-24.04-arm64", "cuda-debian-13"])
def test_an_example_with_nvidias_repository_prefers_its_driver(name: str) -> None:
    fleet = load_fleet(next(path for path in EXAMPLES if path.stem == name))
    ((profile, wish),) = fleet.profiles.items()
    platform = stack_platform_for(wish.os)
    mirror = Source(("deb",), "https://mirror.example/debian", "trixie", ("main",), None)
    security = Source(("deb",), "https://mirror.example/security", "trixie-security", ("main",), None)
    first, *others = repositories(fleet, profile, platform, [mirror, security])
    assert isinstance(first, apt.Repository)
    assert (first.name, first.suites, first.components) == ("cuda", ("/",), ())
    assert [r.name for r in others] == list(platform.presets())


def test_an_example_with_its_own_mirror_asks_only_there() -> None:
    fleet = load_fleet(next(path for path in EXAMPLES if path.stem == "debian-12"))
    platform = stack_platform_for("debian-12")
    sources = repositories(fleet, "gpu", platform, [])
    assert [r.uri for r in sources] == ["https://mirror.example/debian", "https://mirror.example/debian-security"]
