"""What the real libcufile of five releases did with real configurations, on a machine without a GPU."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.facts import Unknown
from gdsdeploy.host.facts.cufile import ACCEPTED, REJECTED, CufileFacts, cufile_facts, refusal, without_comments
from gdsdeploy.host.facts.document import Document

FOLDER = Path(__file__).parents[3] / "evidence" / "cufile-open"
RUNS: dict[str, dict[str, Any]] = {}
for file in FOLDER.glob("*.json"):
    RUNS.update(json.loads(file.read_text()))
GOOD = ("shipped", "no-file", "shipped, no libcuda")


def facts(commands: dict[str, Any], text: str | None = None) -> CufileFacts:
    files = {"/etc/cufile.json": {"error": "ENOENT"} if text is None else text}
    return cufile_facts(Document({"commands": commands, "files": files}))


@pytest.mark.parametrize("name", sorted(RUNS))
def test_verdict_of_every_recorded_run(name: str) -> None:
    release, _, case = name.partition(" ")
    # The library before 1.13 did not hold per_buffer_cache_size_kb against max_direct_io_size_kb.
    good = case in GOOD or (case == "upgrade-trap" and release in ("1.4.0", "1.9.1"))
    assert facts(RUNS[name]).acceptance == (ACCEPTED if good else REJECTED)


def test_the_recordings_cover_what_they_should() -> None:
    releases = {name.partition(" ")[0] for name in RUNS}
    assert releases == {"1.4.0", "1.9.1", "1.13.1", "1.15.1", "1.20.0"}
    assert len(RUNS) == 5 * 9


def test_a_refusal_is_quoted_in_the_librarys_own_words() -> None:
    opened = facts(RUNS["1.9.1 wrong-type"]).opened
    assert not isinstance(opened, Unknown)
    assert refusal(opened)[:2] == [
        "json type mismatch, config read failed for json field properties.use_poll_mode",
        "error reading config properties.use_poll_mode",
    ]
    assert opened.error == -22


def test_the_error_after_an_accepted_configuration_is_kept() -> None:
    opened = facts(RUNS["1.9.1 shipped"]).opened
    assert not isinstance(opened, Unknown)
    assert (opened.error, opened.cuda_error, opened.hung) == (5011, 100, False)


def test_a_library_that_never_returns_has_still_accepted() -> None:
    result = facts(RUNS["1.20.0 shipped"])
    assert not isinstance(result.opened, Unknown)
    assert (result.opened.error, result.opened.hung) == (None, True)
    assert result.acceptance == ACCEPTED


def test_without_a_control_nothing_is_accepted() -> None:
    run = {"cufile-open": RUNS["1.9.1 shipped"]["cufile-open"]}
    assert isinstance(facts(run).acceptance, Unknown)
    # A control that ends as the first run did shows that no configuration was read.
    same = {**run, "cufile-open-control": run["cufile-open"]}
    acceptance = facts(same).acceptance
    assert isinstance(acceptance, Unknown)
    assert "before it reads its configuration" in acceptance.reason


def test_a_library_that_dies_has_not_accepted() -> None:
    run = json.loads(json.dumps(RUNS["1.9.1 shipped"]))
    run["cufile-open"].update(status=-6, stdout="gdsdeploy: loaded /x/libcufile.so.1.9.1\n", stderr="oops\n", log="")
    acceptance = facts(run).acceptance
    assert isinstance(acceptance, Unknown)
    assert acceptance.reason == "libcufile died: oops"
    run["cufile-open"]["stderr"] = "terminate called after throwing: LargestUInt out of UInt range\n"
    assert facts(run).acceptance == REJECTED


def test_no_library_is_not_a_refusal() -> None:
    out = "gdsdeploy: not loaded: libcufile.so.0: cannot open shared object file: No such file or directory\n"
    run = {"argv": [], "status": 3, "stdout": out, "stderr": "", "seconds": 0.1, "log": ""}
    acceptance = facts({"cufile-open": run, "cufile-open-control": run}).acceptance
    assert isinstance(acceptance, Unknown)
    assert "libcufile was not loaded" in acceptance.reason


def test_the_version_of_the_library_is_in_its_file_name() -> None:
    assert facts(RUNS["1.9.1 shipped"]).library == "1.9.1"


def test_the_digest_is_of_the_bytes() -> None:
    text = '{"properties": {"use_pci_p2pdma": true}} // é\n'
    result = facts({}, text)
    assert result.digests["/etc/cufile.json"] == hashlib.sha256(text.encode()).hexdigest()
    assert facts({}).digests["/etc/cufile.json"] is None
    assert isinstance(facts({}, "\ufffd").digests["/etc/cufile.json"], Unknown)


def test_a_setting_and_its_default() -> None:
    result = facts({}, '// a\n{"properties": /* b */ {"allow_compat_mode": false, "x": "// no comment"}} rest')
    assert result.setting("properties", "allow_compat_mode", True) is False
    assert result.setting("properties", "x", "") == "// no comment"
    assert result.setting("denylist", "drivers", []) == []
    assert facts({}).setting("properties", "allow_compat_mode", True) is True
    assert isinstance(facts({}, "{").setting("properties", "allow_compat_mode", True), Unknown)


def test_comments_in_texts_stay() -> None:
    assert json.loads(without_comments('{"a": "http://x/*y*/", /* b */ "c": 1} // d')) == {"a": "http://x/*y*/", "c": 1}
