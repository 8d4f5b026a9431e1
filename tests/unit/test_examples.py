"""Every example is a fleet file that loads, for a system that is known; those for CI are YAML with good commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply.packages.aptsources import Source
from gdsdeploy.lock.repo_settings import repositories
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo import apt
from tests.unit.docs_commands import Shown, _in_line, problem

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


CI = sorted((Path(__file__).parents[2] / "examples" / "ci").glob("*.yml"))


def scripts(value: Any) -> Iterator[str]:
    """Every text below ``run`` and ``script``."""
    if isinstance(value, dict):
        for key, below in value.items():
            if key in ("run", "script"):
                yield from below if isinstance(below, list) else [below]
            else:
                yield from scripts(below)
    elif isinstance(value, list):
        for below in value:
            yield from scripts(below)


@pytest.mark.parametrize("path", CI, ids=lambda path: path.name)
def test_commands_of_an_example_parse(path: Path) -> None:
    lines = [line for text in scripts(yaml.safe_load(path.read_text())) for line in text.splitlines()]
    commands = [words for line in lines for words in _in_line(line.strip())]
    assert len(commands) >= 2
    assert {words: problem(Shown(1, words, is_whole=True)) for words in commands} == dict.fromkeys(commands, "")


@pytest.mark.parametrize("path", CI, ids=lambda path: path.name)
def test_no_text_of_an_event_becomes_a_word_of_the_shell(path: Path) -> None:
    """An expression in a script is replaced before the shell reads it: the title of a pull request could run there."""
    assert [text for text in scripts(yaml.safe_load(path.read_text())) if "${{" in text] == []
