"""A fix that can destroy rests on declared facts, says what is lost, and comes last."""

from __future__ import annotations

import importlib
import json
from fnmatch import fnmatchcase
from functools import reduce

import pytest

from tests.unit.host import destroying

SIGNS = json.loads((destroying.HOST / "data" / "log_signs.json").read_text())


@pytest.mark.parametrize("ident", destroying.fixes())
def test_it_says_what_is_lost_and_comes_last(ident: str) -> None:
    fix = destroying.fixes()[ident]
    assert destroying.LOSES.search(fix), "say what is lost: drain the host, end the programs, or erases"
    last = max(match.end() for match in destroying.VERB.finditer(fix))
    assert not destroying.BEHIND.search(fix[last:]), "what destroys nothing comes first"


def test_every_one_has_a_row() -> None:
    ids = set(destroying.fixes()).union(*(destroying.named([fix]) for fix in destroying.fixes().values()))
    rows = {row for row in destroying.DECLARED if any(fnmatchcase(ident, row) for ident in ids)}
    assert rows == set(destroying.DECLARED), "rows of tests/cases/destroying.yml without a fix"


@pytest.mark.parametrize("ident", destroying.DECLARED)
def test_its_facts_exist_and_its_signs_are_declared(ident: str) -> None:
    row = destroying.DECLARED[ident]
    assert row["rests"]
    for name in row["rests"]:
        page, *names = name.split(".")
        assert reduce(getattr, names, importlib.import_module(f"gdsdeploy.host.subjects.{page}"))
    leading = [sign["id"] for sign in SIGNS if fnmatchcase(_cause(sign), ident)]
    assert sorted(row.get("signs", [])) == sorted(leading)


def _cause(sign: dict[str, object]) -> str:
    cause = sign.get("cause")
    return cause if isinstance(cause, str) else ""


@pytest.mark.parametrize("text", ["Format the disk", "then reboot it", "Seat the card again", "umount it", "wipefs -a"])
def test_a_new_one_needs_a_row(text: str) -> None:
    with pytest.raises(AssertionError, match="has no row"):
        destroying.named([text])
    assert (
        destroying.named(["a host that works until the next reboot", "Provision it again and let it reboot"]) == set()
    )
