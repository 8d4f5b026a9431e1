"""Evidence that is not there: whatever is left out, nothing crashes and no mount comes closer to the direct path."""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsdeploy.host.explain import DIRECT, NoSuchMountError, as_document, explain
from gdsdeploy.host.explain.text import WIDTH, render
from gdsdeploy.host.facts import Unknown, facts_from, kernel
from tests.unit.host import hosts
from tests.unit.host.explain.capable_host import BARE, H100, PROVISIONED, Document, capable, with_gpu
from tests.unit.host.explain.faults import FALLING_BACK, FAULTS


@pytest.fixture(autouse=True, scope="module")
def _one_menu_is_read_once() -> Iterator[None]:
    """Nearly all these documents have the same boot menu, whose words cost as much as all checks together."""
    read = functools.cache(kernel.menu_entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "menu_entries", lambda text: list(read(text)))
        yield


def paths(document: Any) -> dict[str, str]:
    explanation = explain(facts_from(document), ())
    return {
        entry.mount.mount_point: "not proven" if isinstance(entry.path.path, Unknown) else entry.path.path
        for entry in explanation.mounts
    }


def places(document: Document) -> list[tuple[str, ...]]:
    """Every section, every entry of one, and every part of an entry."""
    keys: list[tuple[str, ...]] = []
    for section, entries in document.items():
        keys.append((section,))
        for key, value in entries.items() if isinstance(entries, dict) else ():
            keys.append((section, key))
            keys += [(section, key, inner) for inner in value] if isinstance(value, dict) else []
    return keys


def without(document: Document, removals: list[tuple[str, ...]]) -> Document:
    result = copy.deepcopy(document)
    for path in sorted(removals, key=len, reverse=True):
        inside: Any = result
        for key in path[:-1]:
            inside = inside[key]
        inside.pop(path[-1], None)
    return result


def no_closer(before: dict[str, str], after: dict[str, str], what: object) -> None:
    for mount, path in after.items():
        if path in DIRECT:
            assert before.get(mount) in DIRECT, (mount, what)


@pytest.mark.parametrize("name", FALLING_BACK)
def test_a_fault_that_is_not_seen_leaves_no_direct_path(name: str) -> None:
    document = FAULTS[name].document()
    before = paths(document)
    every = places(document)
    # All that the fault itself is seen by, and a share of the rest.
    own_places = [place for place in every if "kallsyms" in place[-1] or place[0] in ("environment", "inodes", "opens")]
    for place in [*own_places, *random.Random(name).sample(every, 12)]:
        no_closer(before, paths(without(document, [place])), place)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(FAULTS)), st.data())
def test_leaving_out_any_pieces_brings_no_mount_closer(name: str, data: st.DataObject) -> None:
    document = FAULTS[name].document()
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


@pytest.mark.parametrize(
    "document", [BARE, PROVISIONED, H100, capable()], ids=["bare", "provisioned", "h100", "capable"]
)
def test_the_text_is_narrow_and_obeyed_by_no_terminal(document: Document) -> None:
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
