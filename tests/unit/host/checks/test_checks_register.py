"""The register of checks."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from gdsdeploy.host.checks import listed
from gdsdeploy.host.checks.registry import SUBJECTS, check, passed
from gdsdeploy.host.model.expectation import Expectation


def test_ids_are_words_under_a_subject_and_in_its_order() -> None:
    ids = [entry.id for entry in listed()]
    assert all(re.fullmatch(r"[a-z-]+\.[a-z0-9-]+", ident) for ident in ids)
    assert [*dict.fromkeys(ident.split(".")[0] for ident in ids)] == list(SUBJECTS)


def test_every_check_says_what_it_asserts_expects_and_prevents() -> None:
    names = {field.name for field in fields(Expectation)}
    for entry in listed():
        assert all((entry.title, entry.expects, entry.prevents, entry.unknown_hint))
        assert set(re.findall(r"\{(\w+)\}", entry.expects)) <= names
        assert not entry.title.endswith(".")


def test_an_id_is_taken_once() -> None:
    with pytest.raises(ValueError, match=re.escape("two checks have the id os.release")):
        check("os.release", "x", expects="x", prevents="x")(lambda _facts, _expectation: passed("x"))
