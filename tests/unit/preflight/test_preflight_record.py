"""Records of preflights: found again for exactly the packages that were tried."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from gdsdeploy.model.lock import Target
from gdsdeploy.preflight import record
from gdsdeploy.preflight.record import ModuleResult, PreflightRecord
from tests.unit.lock.test_resolve import target as resolved


@pytest.fixture(scope="module")
def target() -> Target:
    return resolved()


def make_record(target: Target, **changes: object) -> PreflightRecord:
    plain = PreflightRecord(
        kernel=target.kernel.release,
        driver=target.driver.version,
        flavour=target.driver.flavour,
        nvidia_fs="2.19.7",
        mode="quick",
        ingredients=record.ingredients(target),
        builds=True,
        loads=True,
        modules=(ModuleResult("nvidia_fs", builds=True, loads=True),),
        seconds=12.5,
        time="2026-11-21T07:00:00Z",
        gdsdeploy="0",
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def with_package(target: Target, part: str, **changes: str) -> Target:
    packages = [p.model_copy(update=changes) if p.part == part else p for p in target.packages]
    return target.model_copy(update={"packages": tuple(packages)})


def test_a_record_is_found_for_what_it_was_made_of(target: Target, tmp_path: Path) -> None:
    assert record.find(target, folder=tmp_path) is None
    stored = make_record(target, rules=({"id": "r", "says": "s", "fixed": "", "source": ""},), logs=("/a.log",))
    record.keep(stored, tmp_path)
    assert record.find(target, folder=tmp_path) == stored
    assert record.find(target, target.kernel.release, target.driver.version, tmp_path) == stored
    assert record.find(target, "6.1.0-50-amd64", folder=tmp_path) is None
    assert record.find(target, driver="535.261.03", folder=tmp_path) is None
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("part", ["kernel-image", "kernel-headers", "driver-source", "nvidia-fs-source"])
def test_a_changed_package_makes_it_stale(target: Target, tmp_path: Path, part: str) -> None:
    record.keep(make_record(target), tmp_path)
    assert record.find(with_package(target, part, sha256="0" * 64), folder=tmp_path) is None


def test_what_has_no_part_in_the_modules_does_not(target: Target, tmp_path: Path) -> None:
    record.keep(make_record(target), tmp_path)
    assert record.find(with_package(target, "libcufile", sha256="0" * 64), folder=tmp_path) is not None
    assert record.find(with_package(target, "driver-userland", version="9"), folder=tmp_path) is not None


@pytest.mark.parametrize("pin", ["flavour", "mode", "rdma"])
def test_a_changed_wish_that_changes_the_build_makes_it_stale(target: Target, tmp_path: Path, pin: str) -> None:
    record.keep(make_record(target), tmp_path)
    assert record.find(target.model_copy(update={"pins": {**target.pins, pin: "other"}}), folder=tmp_path) is None


def test_a_full_record_is_preferred(target: Target, tmp_path: Path) -> None:
    record.keep(make_record(target), tmp_path)
    record.keep(make_record(target, mode="full", loads=False), tmp_path)
    loaded = record.find(target, folder=tmp_path)
    assert loaded is not None
    assert (loaded.mode, loaded.ok) == ("full", False)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 99}', '{"format": 1, "modules": [1]}'])
def test_a_record_that_cannot_be_read_counts_as_none(target: Target, tmp_path: Path, text: str) -> None:
    path = record.keep(make_record(target), tmp_path)
    path.write_text(text)
    assert record.find(target, folder=tmp_path) is None


def test_a_record_that_was_moved_to_another_stack_counts_as_none(target: Target, tmp_path: Path) -> None:
    path = record.keep(make_record(target), tmp_path)
    other = with_package(target, "driver-source", sha256="1" * 64)
    place = record.keep(make_record(other), tmp_path)
    place.write_text(json.dumps({**json.loads(path.read_text())}))
    assert record.find(other, folder=tmp_path) is None


def test_why_not_is_the_first_error(target: Target) -> None:
    finding = {"id": "symbol-crc", "severity": "error", "message": "other versions", "hint": ""}
    broken = ModuleResult("nvidia_fs", builds=False, loads=False, error="nvidia-fs does not build: no such function")
    refused = ModuleResult("nvidia_uvm", builds=True, loads=False, findings=(finding,))
    assert make_record(target, modules=(refused, broken)).error == broken.error
    assert make_record(target, modules=(refused,)).error == "nvidia_uvm: [symbol-crc] other versions"
    assert make_record(target).error == ""
    assert make_record(target, loads=None).ok is False
