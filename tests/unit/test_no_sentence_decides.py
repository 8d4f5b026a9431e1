"""Sentences are for people: rewording them changes no verdict, no answer and no rendered value."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.cufile import render as fitting
from gdsdeploy.host import checks
from gdsdeploy.host.audit import audit
from gdsdeploy.host.audit.audit import objections
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.facts.document import Document, Ran
from gdsdeploy.host.kmod import module
from gdsdeploy.host.model import finding
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.subjects import condition as cause, path as paths, proof as proofs
from gdsdeploy.host.subjects.modules import AuditFacts
from gdsdeploy.model.fleet import Profile
from tests.unit.rdma_host import host as rdma_host

ROOT = Path(__file__).parents[2]
#: Names of fields and variables that hold our own sentences.  `reason` is left out: Slurm and Kubernetes have one.
SENTENCES = {"message", "found", "hint", "what", "title", "words", "means"}
TAKES_APART = {"startswith", "endswith", "partition", "rpartition", "split", "removeprefix", "removesuffix"}


@pytest.mark.parametrize("spelling", [str.upper, lambda _: "", lambda _: "compat p2pdma broken (not proven"])
def test_the_words_about_a_path_decide_nothing_of_a_cufile_json(
    spelling: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = Profile.model_validate({"os": "debian-13", "fit": {}, "storage": [{"mount": "/"}]})
    host = fitting.FitTarget("gpu1", facts_from(rdma_host()))
    before = fitting.fit(profile, host, (1, 20))
    said = vars(paths.MountPath)["description"].fget
    monkeypatch.setattr(paths.MountPath, "description", property(lambda mount: spelling(said(mount))))
    assert fitting.fit(profile, host, (1, 20)) == before


def test_the_finding_of_a_mount_has_its_path_as_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    expectation = _expectation([{"mount": "/", "path": "direct"}, {"mount": "/nowhere", "path": "direct"}])
    monkeypatch.setattr(paths.MountPath, "description", "in other words")
    by_check = {entry.check: entry for entry in checks.run(facts_from(rdma_host()), expectation)}
    assert by_check["storage.path:/nowhere"].path == paths.NONE
    assert by_check["storage.path:/"].found.startswith("in other words")
    assert by_check["storage.path:/"].path in ("", *finding.PATHS)
    assert set(finding.PATHS) == {*cause.DIRECT, cause.COMPAT, cause.BROKEN, paths.NONE}


def test_findings_of_either_age_are_read() -> None:
    original = finding.Finding("storage.path:/", finding.PASS, "t", "e", "f", path="compat")
    assert finding.Finding(**json.loads(json.dumps(original.as_dict()))) == original
    older = {key: value for key, value in original.as_dict().items() if key != "path"}
    assert finding.Finding(**older) == replace(original, path="")
    assert "path" not in replace(original, path="").as_dict()
    with pytest.raises(ValueError, match="a path is one of"):
        finding.Finding(**{**original.as_dict(), "path": "the long one"})


@pytest.mark.parametrize("ident", ["symbol-unknown", "not-decided", "renamed"])
def test_an_undecided_finding_is_one_by_its_outcome(ident: str) -> None:
    row = module.unknown_finding(ident, "words")
    assert audit._verdict([row]) is None
    assert audit._verdict([row, module.finding("x", module.ERROR, "words")]) is False
    assert objections([{"module": "m", "file": "", "ok": None, "findings": [row]}]) == ["m: words"]
    assert row["severity"] == "warning", "older programs know no other"


@pytest.mark.parametrize(
    ("recorded", "outcome"),
    [
        ({"id": "duplicate", "severity": "error"}, "unknown"),
        ({"id": "duplicate", "severity": "error", "outcome": "error"}, "error"),
        ({"id": "symbol-unknown", "severity": "warning", "outcome": "ok"}, "ok"),
        ({"id": ["odd"], "severity": {}, "outcome": []}, "unknown"),
    ],
)
def test_the_outcome_of_a_recorded_finding_decides(recorded: dict[str, Any], outcome: str) -> None:
    assert module.outcome_of(recorded) == outcome
    evidence = {"audits": {"running": {"release": "6.12", "results": [{"module": "m", "findings": [recorded]}]}}}
    read: Any = AuditFacts(Document(copy.deepcopy(evidence))).running
    assert read.modules[0].findings[0].outcome == outcome


@pytest.mark.parametrize(("status", "tried"), [(127, False), (124, True), (1, True), (-11, True)])
def test_whether_a_proof_was_tried_is_no_matter_of_words(status: int, tried: bool) -> None:
    ending = proofs._Try(Ran(status, "", "no such thing"), ())._end("where")
    assert ending.tried is tried
    reworded = proofs._Pair("read", {}, ending._replace(why="libcufile or CUDA gives up"))
    assert proofs._is_untried(reworded) is not tried


def test_no_module_takes_our_sentences_apart() -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for package in ("gdsdeploy", "lab/gdslab")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in _dissections(ast.parse(path.read_text()))
    ]
    # The first only chooses how a sentence goes on; the second splits a field of the lock's format.
    allowed = ("gdsdeploy/lock/resolve/dependencies.py", "gdsdeploy/model/lock.py")
    assert [line for line in lines if not line.startswith(allowed)] == []


def _dissections(tree: ast.AST) -> Iterator[ast.expr]:
    """Calls such as ``error.message.startswith("…")`` and comparisons such as ``"…" in item.found``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKES_APART:
            if _is_sentence(node.func.value):
                yield node
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn, ast.Eq, ast.NotEq)):
            sides = [node.left, *node.comparators]
            if any(map(_is_sentence, sides)) and any(map(_has_blank, sides)):
                yield node


def _is_sentence(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in SENTENCES


def _has_blank(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip()


def _expectation(storage: list[dict[str, str]]) -> Expectation:
    return Expectation(
        host="gpu1", profile="gds", os="debian-13", arch="x86_64", kernel_release="6.12", driver_version="550",
        driver_flavour="open", driver_tree="/usr/src/nvidia", mode="nvidia-fs", rdma="none", nvidia_fs_version="2.19.7",
        libcufile_version="1.13", cufile_path="/etc/cufile.json", cufile_sha256="0", storage=storage,
    )  # fmt: skip
