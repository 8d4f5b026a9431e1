"""What a trial is made of, and what a build's and an audit's documents come to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gdsdeploy.errors import GdsError, LockStale
from gdsdeploy.preflight import trial
from gdsdeploy.preflight.record import Answer
from gdsdeploy.repo.fetch import MissingFile
from tests.repos.stack import TRIXIE, package, without
from tests.unit.lock.test_resolve import target, universe
from tests.unit.preflight.test_prove import DEBIAN, TOOLS

STUB = {"id": "peermem-stub", "severity": "warning", "outcome": "warning", "message": "is a stub", "hint": ""}
NOTE = {"id": "unsigned", "severity": "note", "outcome": "ok", "message": "is unsigned", "hint": ""}


def built_module(name: str, ok: bool | None, *findings: dict[str, str]) -> dict[str, Any]:
    return {"name": name, "audit": {"module": name, "ok": ok, "findings": list(findings)}}


def outcome(module: str, *files: dict[str, Any], error: str = "", ident: str = "") -> dict[str, Any]:
    failed = {"id": ident, "message": error, "hint": "", "rules": []} if error else None
    return {"module": module, "files": list(files), "error": failed}


def test_each_of_the_drivers_modules_has_its_own_answer() -> None:
    results = trial.modules_of(outcome("driver", built_module("nvidia", True, NOTE), built_module("nvidia_uvm", None)))
    assert [(m.module, m.builds, m.loads) for m in results] == [
        ("nvidia", Answer.YES, Answer.YES),
        ("nvidia_uvm", Answer.YES, Answer.UNKNOWN),
    ]
    assert results[0].findings == (NOTE,)


def test_what_does_not_build_does_not_load() -> None:
    error = "nvidia-fs does not build: too few arguments"
    (results,) = trial.modules_of(outcome("nvidia-fs", error=error, ident="unbuildable"))
    assert (results.builds, results.loads) == (Answer.NO, Answer.NO)
    assert results.error.endswith("too few arguments")


def test_peermem_without_ofed_was_not_tried() -> None:
    (results,) = trial.modules_of(outcome("nvidia-peermem", error="in any words", ident="peermem-stub"))
    assert (results.module, results.builds, results.loads) == (trial.PEERMEM, Answer.NOT_TRIED, Answer.UNKNOWN)


def test_what_the_machine_lacked_decides_nothing() -> None:
    (results,) = trial.modules_of(outcome("driver", error="no space left in /tmp: too few arguments"))
    assert (results.builds, results.loads) == (Answer.UNKNOWN, Answer.UNKNOWN)


def test_an_error_that_only_speaks_of_a_stub_is_a_failed_build() -> None:
    error = "nvidia-peermem for kernel 6 would be a stub that fails"
    (results,) = trial.modules_of(outcome("nvidia-fs", error=error, ident="unbuildable"))
    assert (results.builds, results.loads) == (Answer.NO, Answer.NO)


@pytest.mark.parametrize(("wants_peermem", "expected"), [(False, Answer.YES), (True, Answer.UNKNOWN)])
def test_a_stub_counts_only_where_peermem_is_wanted(wants_peermem: bool, expected: Answer) -> None:
    modules = trial.modules_of(
        outcome("driver", built_module("nvidia", True), built_module("nvidia_peermem", True, STUB))
    )
    assert modules[1].loads is Answer.UNKNOWN
    needed = trial.required(modules, wants_peermem=wants_peermem)
    assert Answer.worst(module.loads for module in needed) is expected


def test_a_peermem_that_would_not_load_counts_always() -> None:
    modules = trial.modules_of(outcome("driver", built_module("nvidia_peermem", False)))
    assert trial.required(modules, wants_peermem=False) == modules


REPORT = {"driver_modules": ["nvidia", "nvidia-peermem", "nvidia-uvm"]}


def test_a_whole_build_leaves_none_untried() -> None:
    names = ("nvidia", "nvidia_peermem", "nvidia_uvm")
    assert trial.untried(REPORT, trial.modules_of(outcome("driver", *(built_module(n, True) for n in names)))) == []
    assert trial.untried(REPORT, trial.modules_of(outcome("driver", error="nv-pci.c:237: too few arguments"))) == []


def test_another_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trial.require_machine(target())
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(GdsError, match="for x86_64, and this machine is aarch64"):
        trial.require_machine(target())


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
