"""Leaving out evidence of a host, good or faulty, never turns anything into a pass.

``LEFT_OUT_EXAMPLES=10000`` in the environment makes the search longer; it then takes some minutes.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsdeploy.host.facts import kernel
from gdsdeploy.host.model.finding import NOT_APPLICABLE, PASS, UNKNOWN
from tests.unit.host.cases import CaseError
from tests.unit.host.checks.changes import BARE, GOOD, Document, verdicts
from tests.unit.host.checks.faults import FAULTS

EXAMPLES = int(os.environ.get("LEFT_OUT_EXAMPLES", "60"))
SECTIONS = (
    "host", "files", "binaries", "links", "listings", "excerpts", "commands", "modules", "trees", "space", "configs",
    "processes", "modulefiles", "owners",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _one_menu_is_read_once() -> Iterator[None]:
    """Nearly all these documents have the same boot menu, whose words cost as much as all checks together."""
    read = functools.cache(kernel.menu_entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "menu_entries", lambda text: list(read(text)))
        yield


def places(document: Document) -> list[tuple[str, ...]]:
    paths: list[tuple[str, ...]] = [(section,) for section in document]
    for section in SECTIONS:
        paths += [(section, key) for key in document[section]]
        paths += [
            (section, key, inner)
            for key, value in document[section].items()
            if section in ("excerpts", "commands", "modules", "trees", "processes") and isinstance(value, dict)
            for inner in value
        ]
    return paths


def without(document: Document, removals: list[tuple[str, ...]]) -> Document:
    """A copy without some of its parts; what is not touched is shared."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    for path in sorted(removals, key=len):
        inside: Any = result
        for key in path[:-1]:
            if not isinstance(inside, dict) or key not in inside:
                break
            if isinstance(inside[key], dict):
                inside[key] = dict(inside[key])
            inside = inside[key]
        else:
            if isinstance(inside, dict):
                inside.pop(path[-1], None)
    return result


def at(document: Document, place: tuple[str, ...]) -> Any:
    """The value at a place of :func:`places`; None if there is none."""
    inside: Any = document
    for key in place:
        inside = inside.get(key) if isinstance(inside, dict) else None
    return inside


def faulty(names: list[str]) -> Document:
    document = GOOD
    for name in names:
        document = FAULTS[name].change(document)
    return document


HAVE: dict[str, Document] = {"provisioned": GOOD, "bare": BARE, **{name: faulty([name]) for name in FAULTS}}


def not_better(before: dict[str, str], after: dict[str, str], what: object) -> None:
    # Neither a pass nor "not applicable" comes from evidence that is missing.
    for name, verdict in after.items():
        if verdict in (PASS, NOT_APPLICABLE):
            assert before.get(name) == verdict, (name, what)
    # A check that falls silent must not take a failure with it.
    for name, verdict in before.items():
        if verdict != PASS and not name.startswith("storage.path"):
            assert name in after, (name, what)


@pytest.mark.parametrize("name", HAVE)
def test_leaving_out_any_piece_of_evidence_never_makes_a_pass(name: str) -> None:
    document = HAVE[name]
    before = verdicts(document)
    # Every place for the real documents; for each fault a share, what programs wrote, and what the fault changed.
    every = places(document)
    if name not in ("provisioned", "bare"):
        written = [("commands", command, "stdout") for command in document["commands"]]
        changed = [place for place in every if at(document, place) != at(GOOD, place)]
        every = list(dict.fromkeys([*random.Random(name).sample(every, 60), *written, *changed]))
    for place in every:
        not_better(before, verdicts(without(document, [place])), place)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.sampled_from(list(FAULTS)), max_size=3), st.data())
def test_leaving_out_any_pieces_of_a_faulty_host_never_makes_a_pass(names: list[str], data: st.DataObject) -> None:
    try:
        document = faulty(names)
    except CaseError:
        return  # two faults that exclude each other
    removals = data.draw(st.lists(st.sampled_from(places(document)), max_size=12))
    not_better(verdicts(document), verdicts(without(document, removals)), removals)


def test_no_evidence_at_all_is_no_verdict() -> None:
    results = verdicts({})
    assert set(results.values()) == {UNKNOWN, NOT_APPLICABLE}
    not_asked = {name for name, verdict in results.items() if verdict == NOT_APPLICABLE}
    assert {name.partition(":")[0] for name in not_asked} <= {
        "odirect.bypass",
        "peermem.errors",
        "peermem.legacy",
        "peermem.mechanism",
        "peermem.usable",
        "rdma.addresses",
        "rdma.link",
        "rdma.registration",
        "topology.distance",
        "topology.golden",
    }
