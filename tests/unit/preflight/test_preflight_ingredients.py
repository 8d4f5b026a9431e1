"""The layers of a throwaway root: in which order, and which packages are fetched for them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from gdsdeploy.errors import LockStale
from gdsdeploy.preflight import trial
from gdsdeploy.repo.fetch import MissingFile
from tests.repos.stack import TRIXIE, package, without
from tests.unit.lock.test_resolve import target, universe
from tests.unit.preflight.test_preflight_choice import DEBIAN, TOOLS

STANZAS = [*without(TRIXIE, "gcc-14"), package("gcc-14", "14"), *TOOLS]


class Packages:
    """A repository whose files are named by their sha256; ``is_empty``: it no longer has any."""

    def __init__(self, is_empty: bool = False) -> None:
        self.is_empty, self.fetches = is_empty, list[str]()

    def find_cached(self, sha256: str, _size: int) -> Path | None:
        return Path(sha256) if sha256 in self.fetches else None

    def file(self, uri: str, *, sha256: str, size: int) -> Path:
        if self.is_empty:
            raise MissingFile(f"{uri} ({size} bytes)")
        self.fetches.append(sha256)
        return Path(sha256)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Path]]:
    """What is in a layer → its packages, in the order in which they are unpacked."""
    contents: dict[str, list[Path]] = {}

    def layer(packages: list[Path], *, what: str) -> str:
        contents[what] = packages
        return what

    monkeypatch.setattr(trial, "layer", layer)
    return contents


def layers(packages: Packages) -> list[str]:
    locked = target(STANZAS)
    index = SimpleNamespace(repository="debian", suite="trixie", uri="https://mirror.example")
    locked = locked.model_copy(update={"indices": (index,)})
    return trial.layers(locked, DEBIAN, universe(STANZAS), packages)  # type: ignore[arg-type]


def test_the_drivers_source_is_on_top_and_each_package_is_fetched_once(unpacked: dict[str, list[Path]]) -> None:
    packages = Packages()
    names = layers(packages)
    locked = target(STANZAS)
    sources = [f"the source of driver {locked.driver.version}", "nvidia-fs's source"]
    assert names == [*sources, f"kernel {locked.kernel.release}", "the compiler"]
    assert {str(path) for paths in unpacked.values() for path in paths} == set(packages.fetches)
    before = list(packages.fetches)
    assert layers(packages) == names
    assert packages.fetches == before


def test_a_package_that_left_the_repository_makes_the_lock_stale(unpacked: dict[str, list[Path]]) -> None:
    with pytest.raises(LockStale, match=r"https://mirror\.example"):
        layers(Packages(is_empty=True))
    assert not unpacked
