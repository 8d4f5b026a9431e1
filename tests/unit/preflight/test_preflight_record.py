"""Records of preflights: found again for exactly the packages that were tried."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable

import pytest

from gdsdeploy.host.model.compat import (
    FITS,
    REFUSED,
    UNKNOWN,
    WARNED,
    Combination,
    Rule,
    Verdict,
    Version,
    unknown_pairs,
)
from gdsdeploy.lock import compat
from gdsdeploy.model.lock import Target
from gdsdeploy.preflight import record
from gdsdeploy.preflight.record import Answer, ModuleResult, PreflightRecord
from tests.unit.lock.test_resolve import target as resolved

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture(scope="module")
def target() -> Target:
    return resolved()


def make_record(target: Target, **changes: object) -> PreflightRecord:
    plain = PreflightRecord(
        kernel=target.kernel.release,
        driver=target.driver.version,
        flavour=target.driver.flavour,
        nvidia_fs="2.19.7",
        ingredients=compat.ingredients(target),
        builds=Answer.NOT_TRIED,
        loads=Answer.NOT_TRIED,
        modules=(
            ModuleResult("nvidia", Answer.NOT_TRIED, Answer.NOT_TRIED),
            ModuleResult("nvidia_fs", Answer.YES, Answer.YES),
        ),
        seconds=12.5,
        time="2026-11-21T07:00:00Z",
        gdsdeploy="0",
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def with_package(target: Target, part: str, **changes: str) -> Target:
    packages = [p.model_copy(update=changes) if p.part == part else p for p in target.packages]
    return target.model_copy(update={"packages": tuple(packages)})


def test_a_record_is_found_for_what_it_was_made_of(target: Target) -> None:
    assert record.find(target) is None
    stored = make_record(target, rules=({"id": "r", "says": "s", "fixed": "", "source": ""},), logs=("/a.log",))
    record.keep(stored)
    assert record.find(target) == stored


@pytest.mark.parametrize("part", ["kernel-image", "kernel-headers", "driver-source", "nvidia-fs-source"])
def test_a_changed_package_makes_it_stale(target: Target, part: str) -> None:
    record.keep(make_record(target))
    assert record.find(with_package(target, part, sha256="0" * 64)) is None


def test_what_has_no_part_in_the_modules_does_not(target: Target) -> None:
    record.keep(make_record(target))
    assert record.find(with_package(target, "libcufile", sha256="0" * 64)) is not None
    assert record.find(with_package(target, "driver-userland", version="9")) is not None


@pytest.mark.parametrize("pin", ["flavour", "mode", "rdma"])
def test_a_changed_wish_that_changes_the_build_makes_it_stale(target: Target, pin: str) -> None:
    record.keep(make_record(target))
    assert record.find(target.model_copy(update={"pins": {**target.pins, pin: "other"}})) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"format": 99}', '{"format": 2, "modules": [1]}'])
def test_a_record_that_cannot_be_read_counts_as_none(target: Target, text: str) -> None:
    path = record.keep(make_record(target))
    path.write_text(text)
    assert record.find(target) is None


def test_a_record_that_was_moved_to_another_stack_counts_as_none(target: Target) -> None:
    path = record.keep(make_record(target))
    other = with_package(target, "driver-source", sha256="1" * 64)
    place = record.keep(make_record(other))
    place.write_text(json.dumps({**json.loads(path.read_text())}))
    assert record.find(other) is None


def test_why_not_is_the_first_error(target: Target) -> None:
    finding = {"id": "symbol-crc", "severity": "error", "outcome": "error", "message": "other versions", "hint": ""}
    broken = ModuleResult("nvidia_fs", Answer.NO, Answer.NO, error="nvidia-fs does not build: no such function")
    refused = ModuleResult("nvidia_uvm", Answer.YES, Answer.NO, findings=(finding,))
    assert make_record(target, modules=(refused, broken)).error == broken.error
    assert make_record(target, modules=(refused,)).error == "nvidia_uvm: [symbol-crc] other versions"
    assert make_record(target).error == ""


@pytest.mark.parametrize("builds", list(Answer))
@pytest.mark.parametrize("loads", list(Answer))
def test_only_a_stack_that_builds_and_loads_is_ok(target: Target, builds: Answer, loads: Answer) -> None:
    stored = make_record(target, builds=builds, loads=loads)
    assert stored.ok is ((builds, loads) == (Answer.YES, Answer.YES))
    assert stored.failed is (Answer.NO in (builds, loads))


@pytest.mark.parametrize("word", ["true", '"yes, all"', "null", "[]"])
def test_an_answer_that_is_no_answer_makes_no_record(target: Target, word: str) -> None:
    path = record.keep(make_record(target))
    path.write_text(json.dumps({**json.loads(path.read_text()), "builds": json.loads(word)}))
    assert record.find(target) is None


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("", Answer.NOT_TRIED),
        ("yes,yes", Answer.YES),
        ("yes,not tried", Answer.NOT_TRIED),
        ("yes,not tried,unknown", Answer.UNKNOWN),
        ("unknown,no,yes,not tried", Answer.NO),
    ],
)
def test_a_stack_is_as_its_worst_module(answers: str, expected: Answer) -> None:
    assert Answer.worst(Answer(word) for word in answers.split(",") if word) is expected


STACK: Combination = {
    "kernel": Version(("6.12.94", "6.12.94+deb13-amd64", "6.12.94-1")),
    "driver": "550.163.01",
    "driver_origin": "debian",
    "driver_package": "550.163.01-2",
    "nvidia_fs": "2.19.7",
    "nvidia_fs_origin": "debian",
}
DOUBTS = unknown_pairs(STACK, [])


def tried(target: Target, driver: Answer, nvidia_fs: Answer, **changes: object) -> PreflightRecord:
    modules = (
        ModuleResult("nvidia", driver, driver, error="" if driver is Answer.YES else "too few arguments"),
        ModuleResult("nvidia_peermem", Answer.YES, Answer.UNKNOWN),
        ModuleResult("nvidia_fs", nvidia_fs, nvidia_fs),
    )
    told = {"driver": "550.163.01", "kernel": "6.12.94+deb13-amd64", "modules": modules, "flavour": "open"}
    packages = {"driver_package": "550.163.01-2", "driver_origin": "debian", "nvidia_fs_origin": "debian"}
    return make_record(target, **{**told, "packages": packages, **changes})


def kinds(verdicts: Iterable[Verdict]) -> dict[str, str]:
    return {"local" if verdict.rule.startswith("local-") else verdict.rule: verdict.kind for verdict in verdicts}


def test_a_stack_that_built_here_outweighs_doubts_about_its_build(target: Target) -> None:
    record.keep(tried(target, Answer.YES, Answer.YES))
    refused = Verdict("a", REFUSED, "", frozenset({"driver", "kernel"}))
    doubts = {verdict.rule: verdict.kind for verdict in DOUBTS}
    assert {"driver-kernel-unknown", "nvidia-fs-kernel-unknown", "nvidia-fs-driver-unknown"} == set(doubts)
    assert kinds(record.with_records(STACK, [*DOUBTS, refused])) == {"local": FITS, "a": REFUSED}
    elsewhere = [Verdict("b", UNKNOWN, "", frozenset({"libcufile", "nvidia_fs"}))]
    assert kinds(record.with_records(STACK, elsewhere)) == {"local": FITS, "b": UNKNOWN}


def test_a_stack_that_failed_here_is_refused_and_its_other_module_decided(target: Target) -> None:
    record.keep(tried(target, Answer.NO, Answer.YES))
    verdicts = record.with_records(STACK, DOUBTS)
    assert [(verdict.kind, "driver-kernel" in verdict.rule) for verdict in verdicts] == [
        (UNKNOWN, True),
        (REFUSED, False),
        (FITS, False),
    ]
    assert "too few arguments" in verdicts[1].words


def test_the_newest_record_counts(target: Target) -> None:
    record.keep(tried(target, Answer.NO, Answer.NO))
    record.keep(tried(target, Answer.YES, Answer.YES, ingredients="sha256:" + "0" * 64, time="2026-11-30T07:00:00Z"))
    assert kinds(record.with_records(STACK, DOUBTS)) == {"local": FITS}


@pytest.mark.parametrize(
    "other",
    [
        {"kernel": "6.12.94"},
        {"driver": "550.163.02"},
        {"driver_package": "550.163.01-4"},
        {"driver_origin": "nvidia"},
        {"driver_origin": None, "driver_package": None},
        {"flavour": "proprietary"},
    ],
)
def test_other_versions_and_other_makers_packages_have_no_record(target: Target, other: Combination) -> None:
    record.keep(tried(target, Answer.YES, Answer.YES))
    assert record.with_records({**STACK, **other}, DOUBTS) == DOUBTS


def test_another_nvidia_fs_leaves_the_drivers_record(target: Target) -> None:
    record.keep(tried(target, Answer.YES, Answer.NO))
    verdicts = record.with_records({**STACK, "nvidia_fs": "2.20.5"}, DOUBTS)
    assert kinds(verdicts) == {"local": FITS, "nvidia-fs-kernel-unknown": UNKNOWN, "nvidia-fs-driver-unknown": UNKNOWN}


def test_a_plan_warns_as_the_lock_does_until_a_proof_or_a_record_decides(target: Target) -> None:
    judged = {name: str(value) for name, value in STACK.items() if name != "kernel"}
    locked = target.model_copy(update={"judged": judged})
    rules = [Rule("w", "Careful.", "measured", "", warns={"driver": ("550",)})]
    doubts = {"driver-kernel-unknown": UNKNOWN, "nvidia-fs-kernel-unknown": UNKNOWN}
    elsewhere = {"w": WARNED, "nvidia-fs-driver-unknown": UNKNOWN}
    assert kinds(record.cautions(locked, rules)) == {**doubts, **elsewhere}
    proven = locked.model_copy(update={"proof": compat.ingredients(locked)})
    assert kinds(record.cautions(proven, rules)) == elsewhere
    record.keep(tried(locked, Answer.YES, Answer.YES))
    assert kinds(record.cautions(locked, rules)) == {"w": WARNED}
    record.keep(tried(locked, Answer.NO, Answer.YES))
    assert kinds(record.cautions(proven, rules)) == {"local": REFUSED, "w": WARNED}


def test_the_lock_of_an_older_gdsdeploy_is_about_no_pair(target: Target) -> None:
    assert record.cautions(target.model_copy(update={"judged": {}}), []) == []
