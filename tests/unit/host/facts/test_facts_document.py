"""Evidence of any shape gives answers, and absence is never confused with ignorance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdsdeploy.host.facts import UndecidedError, Unknown, as_dict, facts_from, require
from gdsdeploy.host.facts.document import LOGGED, Document, Ran
from gdsdeploy.host.facts.unknown import when_known, why_not

HOSTS = Path(__file__).parents[3] / "evidence" / "hosts"


def test_three_answers_are_kept_apart() -> None:
    document = Document({"files": {"/a": "x", "/b": {"error": "ENOENT"}, "/c": {"error": "EACCES"}, "/e": None}})
    assert document.text("/a") == "x"
    assert document.text("/b") is None
    assert document.text("/c") == Unknown("/c could not be read: EACCES")
    assert document.text("/d") == Unknown("/d was not looked at")
    assert isinstance(document.text("/e"), Unknown)


def test_what_was_cut_is_not_known() -> None:
    document = Document({"files": {"/a": {"error": "longer than 4 bytes", "text": "abcd"}}})
    assert document.text("/a") == Unknown("/a could not be read: longer than 4 bytes")


def test_a_relative_link_is_made_absolute() -> None:
    document = Document({"links": {"/sys/dev/block/8:1": "../../devices/x/sda/sda1"}})
    assert document.link("/sys/dev/block/8:1") == "/sys/devices/x/sda/sda1"


def test_a_program_that_hung_or_is_not_there_says_nothing() -> None:
    run = {"argv": [], "status": 0, "stdout": "a", "stderr": "", "seconds": 1}
    commands = {
        "good": run,
        "hung": {**run, "status": 124},
        "none": {**run, "status": 127, "stderr": "x: No such file\n"},
        "cut": {**run, "error": "longer than 9 bytes"},
        "odd": {**run, "status": "0"},
        **{f"without {part}": {key: run[key] for key in run if key != part} for part in ("status", "stdout", "stderr")},
    }
    document = Document({"commands": commands})
    output = document.ran("good")
    assert not isinstance(output, Unknown)
    assert output.stdout == "a"
    for name in ("other", *set(commands) - {"good"}):
        assert isinstance(document.ran(name), Unknown), name
    assert not isinstance(document.attempted("hung"), Unknown)


def test_an_unknown_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match="this is not known: because"):
        bool(Unknown("because"))
    with pytest.raises(UndecidedError, match="because"):
        require(Unknown("because"))
    assert require(0) == 0
    assert when_known(Unknown("x"), bool) == Unknown("x")
    assert when_known(3, lambda number: number > 2) is True
    assert why_not(None, "nothing") == Unknown("nothing")
    assert why_not(Unknown("x"), "nothing") == Unknown("x")


def test_facts_become_json() -> None:
    value = json.dumps(as_dict(facts_from({})))
    assert '"unknown"' in value
    for path in HOSTS.glob("*vm-*.json"):
        json.dumps(as_dict(facts_from(json.loads(path.read_text()))))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**12) | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_a_document_of_any_shape_is_read(value: Any) -> None:
    facts_from(value)


@pytest.mark.parametrize("name", ["dmesg", *LOGGED])
@pytest.mark.parametrize("part", ["status", "stdout", "stderr", "log"])
def test_a_record_without_a_part_is_no_empty_output(name: str, part: str) -> None:
    run = {"status": 0, "stdout": "", "stderr": "", "log": ""}
    assert isinstance(Document({"commands": {name: run}}).attempted(name), Ran)
    del run[part]
    optional = name == "dmesg" and part == "log"
    assert isinstance(Document({"commands": {name: run}}).attempted(name), Unknown) is not optional


def test_a_status_is_a_number() -> None:
    run = {"status": True, "stdout": "", "stderr": ""}
    assert isinstance(Document({"commands": {"dmesg": run}}).ran("dmesg"), Unknown)


BARE = json.loads((HOSTS / "lab-vm-bare.json").read_text())
PLACES = [(section, key) for section, entries in BARE.items() if isinstance(entries, dict) for key in entries]


@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=6))
def test_a_real_document_with_anything_in_it_is_read(changes: list[tuple[tuple[str, str], Any]]) -> None:
    document = {section: dict(entries) if isinstance(entries, dict) else entries for section, entries in BARE.items()}
    for (section, key), value in changes:
        document[section][key] = value
    json.dumps(as_dict(facts_from(document)))


@given(st.lists(st.tuples(st.sampled_from([place for place in PLACES if place[0] == "files"]), st.text()), max_size=4))
def test_a_real_document_with_any_text_in_its_files_is_read(changes: list[tuple[tuple[str, str], str]]) -> None:
    document = {**BARE, "files": dict(BARE["files"])}
    for (_, key), value in changes:
        document["files"][key] = value
    facts_from(document)
