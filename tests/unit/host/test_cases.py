"""Every case of tests/cases: what is found on a host after a patch is what the case expects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.explain import as_document, explain, render
from gdsdeploy.host.facts import as_dict, facts_from, require
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, UNKNOWN
from gdsdeploy.host.subjects import filesystem, programs
from gdsdeploy.host.subjects.stack import stack
from tests.unit.host import cases, destroying, hosts
from tests.unit.host.cases import CaseError, Look
from tests.unit.host.checks.changes import EXPECTATION
from tests.unit.host.expect import differences
from tests.unit.host.patches import PatchError, patched

FILES = sorted(path.relative_to(cases.FOLDER).with_suffix("").as_posix() for path in cases.paths())


@lru_cache(maxsize=1)
def _findings(look: Look) -> dict[str, Any]:
    wanted = patched(vars(EXPECTATION), look.expectation) if look.expectation else vars(EXPECTATION)
    return {one.check: one.as_dict() for one in checks.run(facts_from(look.document), Expectation(**wanted))}


def _with_verdict(*verdicts: str) -> Callable[[Look, Any], Any]:
    return lambda look, _: sorted(n for n, one in _findings(look).items() if one["verdict"] in verdicts)


def _mounts(look: Look, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Place → the explanation of its mount alone."""
    return {place: _explained(look, place) for place in expected}


@lru_cache(maxsize=8)
def _explained(look: Look, place: str) -> Any:
    return as_document(explain(facts_from(look.document), (), place))["mounts"][0]


def _fixes(look: Look) -> set[str]:
    """What the answers that a case is about tell the operator to do."""
    hints = {one["hint"] for one in _findings(look).values()} if "failing" in look.expected else set()
    mounts = [_explained(look, place) for place in look.expected.get("mounts", ())]
    return hints | {cause["fix"] for mount in mounts for kind in cases.CAUSES for cause in mount[kind]}


def _whole(look: Look, _: Any) -> Any:
    facts = facts_from(look.document)
    return as_document(explain(facts, stack(facts)))


def _kinds(look: Look, _: Any) -> dict[str, Any]:
    return {kind["kind"]: kind for kind in _whole(look, None)["kinds"]}


def _processes(look: Look, expected: Mapping[int, Any]) -> dict[int, Any]:
    facts = facts_from(look.document)
    return {pid: programs.process_document(programs.explain_process(facts, pid)) for pid in expected}


def _conditions(look: Look, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Place → the conditions of direct I/O on its mount, by their names."""
    facts = facts_from(look.document)
    mounts = require(facts.storage.mounts)
    states = {place: filesystem.features(facts.storage, mounts[place], place) for place in expected}
    return {place: {one.name: as_dict(one) for one in every} for place, every in states.items()}


def _text(look: Look, _: Any) -> str:
    facts = facts_from(look.document)
    return render(explain(facts, stack(facts)))


#: Subject → what is found of it; a mapping of cases.SUBJECTS.
FOUND: dict[str, Callable[[Look, Any], Any]] = {
    "findings": lambda look, _: _findings(look),
    "failing": _with_verdict(FAIL),
    "undecided": _with_verdict(UNKNOWN),
    "inapplicable": _with_verdict(NOT_APPLICABLE),
    "mounts": _mounts,
    "kinds": _kinds,
    "explanation": _whole,
    "process": _processes,
    "facts": lambda look, _: as_dict(facts_from(look.document)),
    "conditions": _conditions,
    "text": _text,
}


@pytest.mark.parametrize(("file", "name"), [(file, name) for file in FILES for name in cases.read(file)])
def test_case(file: str, name: str) -> None:
    for number, look in enumerate(cases.read(file)[name].looks(), 1):
        for subject, expected in look.expected.items():
            for difference in differences(expected, FOUND[subject](look, expected), subject):
                pytest.fail(f"tests/cases/{file}.yml: {name}, look {number}: {difference}", pytrace=False)
        if file.startswith(cases.TRUTH + "/"):
            assert destroying.named(_fixes(look)) == set(look.destroys), f"tests/cases/{file}.yml: {name}"


def test_a_patch_says_what_it_changes_and_fits_its_host() -> None:
    host = {"files": {"/a": "one two"}, "listings": {"/b": ["x", "y"]}}
    after = {"files": {"/a": {"$replace": {"one": "three"}}}, "listings": {"/b": {"$remove": ["x"], "$add": ["z"]}}}
    assert patched(host, after) == {"files": {"/a": "three two"}, "listings": {"/b": ["y", "z"]}}
    assert patched(host, {"files": {"/a": None}})["files"] == {}
    for wrong in (
        {"files": {"/a": "one two"}},
        {"files": {"/c": None}},
        {"files": {"/a": {"$replace": {"four": "x"}}}},
        {"listings": {"/b": {"$remove": ["z"]}}},
        {"listings": {"/b": {"$append": "z"}}},
        {"files": {}},
    ):
        with pytest.raises(PatchError):
            patched(host, wrong)


def test_what_is_expected_is_held_against_what_is_found() -> None:
    got = {"verdict": "fail", "found": "a b", "evidence": ["x: 1", "y: 2"]}
    for good in (
        "fail",
        {"found": {"$has": ["a", "b"], "$lacks": "c"}, "evidence": {"$any": "x: 1", "$has": "y"}},
        {"evidence": ["x: 1", {"$ends": "2"}]},
    ):
        assert list(differences(good, got, "")) == []
    for bad in ("pass", {"found": "a"}, {"evidence": ["x: 1"]}, {"evidence": {"$none": "y: 2"}}, {"hint": "h"}):
        assert list(differences(bad, got, "")), bad
    assert list(differences(1, True, ""))


@pytest.mark.parametrize(
    "text", ["host: bare\ncases: {}", "cases: {a: {}}", "cases: {a: {failing: [], x: 1}}", "cases: {a: 1, a: 2}"]
)
def test_a_file_that_is_no_list_of_cases(text: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "FOLDER", tmp_path)
    (tmp_path / "bad.yml").write_text(text)
    with pytest.raises(CaseError):
        cases.read("bad")


@pytest.mark.parametrize(
    "case", ["{failing: [], undecided: []}", "{source: s, failing: []}", "{source: s, mounts: {/a: {causes: []}}}"]
)
def test_a_truth_says_its_source_and_the_whole_verdict(case: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(cases, "FOLDER", tmp_path)
    (tmp_path / "truth").mkdir()
    (tmp_path / "truth/bad.yml").write_text(f"host: bare\ncases: {{a: {case}}}")
    with pytest.raises(CaseError, match="it lacks its source"):
        cases.read("truth/bad")


def test_hosts_and_subjects_are_all_used() -> None:
    every, texts = list(cases.every()), "".join(path.read_text() for path in cases.FOLDER.rglob("*.yml"))
    named = {case.host for case in every} | set(re.findall(r"(?:\$from|from): \"?([^\"{},\n]+)", texts))
    assert named >= {*hosts.HOSTS, *hosts.PATCHED} - {"capable, with a GPU", "switches-swapped"}
    assert {subject for case in every for step in case.steps for subject in step} >= set(FOUND)
