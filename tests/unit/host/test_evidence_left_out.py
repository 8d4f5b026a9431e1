"""Evidence that is left out, of hosts good and faulty: nothing crashes, passes or comes closer to the direct path.

``LEFT_OUT_EXAMPLES=10000`` in the environment makes the search longer; it then takes some minutes.
"""

from __future__ import annotations

import functools
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from gdsdeploy.host.boot import grub
from gdsdeploy.host.checks import Memory
from gdsdeploy.host.explain import WIDTH, NoSuchMountError, as_document, explain, render
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.model.finding import NOT_APPLICABLE, PASS, UNKNOWN
from gdsdeploy.host.subjects.condition import DIRECT
from tests.unit.host import hosts
from tests.unit.host.cases import CaseError
from tests.unit.host.checks.changes import BARE, GOOD, Document, verdicts
from tests.unit.host.checks.faults import FAULTS
from tests.unit.host.explain import faults as of_paths
from tests.unit.host.explain.capable_host import capable, with_gpu

EXAMPLES = int(os.environ.get("LEFT_OUT_EXAMPLES", "60"))


@pytest.fixture(autouse=True, scope="module")
def _one_menu_is_read_once() -> Iterator[None]:
    """Nearly all these documents have the same boot menu, whose words cost as much as all checks together."""
    read = functools.cache(grub.menu_entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grub, "menu_entries", lambda text: list(read(text)))
        yield


def places(document: Document) -> list[tuple[str, ...]]:
    """Every section, every entry of one, and every part of an entry.

    Of a load and of the environment, an entry that isn't there says that none was asked for, or set.
    """
    keys: list[tuple[str, ...]] = []
    for section, entries in document.items():
        keys.append((section,))
        for key, value in (
            entries.items() if isinstance(entries, dict) and section not in ("load", "environment") else ()
        ):
            keys.append((section, key))
            keys += [(section, key, inner) for inner in value] if isinstance(value, dict) else []
    return keys


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
    # Only the checks that read the place are judged again; checks/test_memory.py shows that this changes no finding.
    memory = Memory()
    before = verdicts(document, memory=memory)
    # Every place for the real documents; for each fault a share, what programs wrote, and what the fault changed.
    every = places(document)
    if name not in ("provisioned", "bare"):
        written = [("commands", command, "stdout") for command in document["commands"]]
        changed = [place for place in every if at(document, place) != at(GOOD, place)]
        every = list(dict.fromkeys([*random.Random(name).sample(every, 60), *written, *changed]))
    for place in every:
        not_better(before, verdicts(without(document, [place]), memory=memory), place)


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


def paths(document: Any) -> dict[str, str]:
    explanation = explain(facts_from(document), ())
    return {
        entry.mount.mount_point: "not proven" if isinstance(entry.path.path, Unknown) else entry.path.path
        for entry in explanation.mounts
    }


def no_closer(before: dict[str, str], after: dict[str, str], what: object) -> None:
    for mount, path in after.items():
        if path in DIRECT:
            assert before.get(mount) in DIRECT, (mount, what)


@pytest.mark.parametrize("name", of_paths.FALLING_BACK)
def test_a_fault_that_is_not_seen_leaves_no_direct_path(name: str) -> None:
    document = of_paths.FAULTS[name].document()
    before = paths(document)
    every = places(document)
    # All that the fault itself is seen by, and a share of the rest.
    own_places = [place for place in every if "kallsyms" in place[-1] or place[0] in ("environment", "inodes", "opens")]
    for place in [*own_places, *random.Random(name).sample(every, 12)]:
        no_closer(before, paths(without(document, [place])), place)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(of_paths.FAULTS)), st.data())
def test_leaving_out_any_pieces_brings_no_mount_closer(name: str, data: st.DataObject) -> None:
    document = of_paths.FAULTS[name].document()
    removals = data.draw(st.lists(st.sampled_from(places(document)), max_size=12, unique=True))
    no_closer(paths(document), paths(without(document, removals)), removals)


def test_what_a_direct_path_rests_on_is_missed() -> None:
    """Each kind of evidence without which a direct path cannot be told."""
    document = with_gpu(capable())
    assert paths(document)["/mnt/nvme"] == "nvidia-fs"
    for section in ("environment", "inodes", "opens", "excerpts", "listings", "files", "links", "commands"):
        assert paths(without(document, [(section,)])).get("/mnt/nvme") not in DIRECT, section


@pytest.mark.parametrize(
    "document", [{}, [], None, {"files": 1}, {"files": {"/proc/self/mountinfo": "x\n- -\n"}}, {"files": {}}]
)
def test_evidence_of_any_shape_is_explained(document: Any) -> None:
    explanation = explain(facts_from(document), ())
    json.dumps(as_document(explanation))
    assert explanation.mounts == ()
    assert "no mount that may hold data" in render(explanation)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_evidence_with_anything_in_it_is_explained(data: st.DataObject) -> None:
    document = hosts.fresh("p2pdma")
    anything = st.one_of(st.none(), st.integers(), st.text(max_size=30), st.lists(st.text(max_size=5), max_size=3))
    for path in data.draw(st.lists(st.sampled_from(places(document)), max_size=6, unique=True)):
        inside: Any = document
        for key in path[:-1]:
            inside = inside[key] if isinstance(inside, dict) and key in inside else {}
        if isinstance(inside, dict):
            inside[path[-1]] = data.draw(anything)
    explanation = explain(facts_from(document), ())
    json.dumps(as_document(explanation))
    render(explanation)


@pytest.mark.parametrize("name", ["bare, as recorded", "provisioned, as recorded", "h100, as recorded", "capable"])
def test_the_text_is_narrow_and_obeyed_by_no_terminal(name: str) -> None:
    document = hosts.named(name)
    hostile = json.loads(json.dumps(document).replace("/mnt/nvme", "/mnt/\\u001b[2J\\u009bnvme"))
    for value in (document, hostile):
        text = render(explain(facts_from(value), (("kernel", "6\x1b[1m"),)))
        assert not [letter for letter in text if (ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160]
        assert [line for line in text.splitlines() if len(line) > WIDTH and " " in line.strip()] == []


def test_nothing_is_mounted_there() -> None:
    document = capable()
    lines = document["files"]["/proc/self/mountinfo"].splitlines(keepends=True)
    document["files"]["/proc/self/mountinfo"] = "".join(line for line in lines if " / / " not in line)
    with pytest.raises(NoSuchMountError, match="nothing is mounted at or above /srv/x"):
        explain(facts_from(document), (), "/srv/x")
