from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from gdsdeploy.cufile.model import NEWEST, OLDEST, Problem, check, known_keys, release_of
from gdsdeploy.host.libcufile import p2pdma


def messages(document: dict[str, Any], release: str) -> list[str]:
    return [f"{p.key}: {p.message}" for p in check(document, release_of(release))]


@pytest.mark.parametrize(
    ("version", "release"),
    [("1.9.1.3", (1, 9)), ("1.20.0.107", (1, 20)), ("1.4", (1, 4)), ("1.4.0.31~11.8.0-5", (1, 4))],
)
def test_release_of_a_version(version: str, release: tuple[int, int]) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize("text", ["", "1", "x.4", "one.two"])
def test_release_of_something_else(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        release_of(text)


def test_the_data_holds_together() -> None:
    for name, key in known_keys().items():
        assert OLDEST <= release_of(key.since) <= NEWEST, name
        if key.until:
            assert release_of(key.since) <= release_of(key.until), name
        for by_release in (key.defaults, key.limits_from):
            assert by_release is None or min(map(release_of, by_release)) == release_of(key.since), name
        for minor in range(OLDEST[1], NEWEST[1] + 1):
            default = key.default_for((1, minor)) if key.read_by((1, minor)) else None
            if default is not None:
                document: dict[str, Any] = {}
                section = document
                *path, last = name.split(".")
                for part in path:
                    section = section.setdefault(part, {})
                section[last] = default
                relation = "may not exceed" if last == "per_buffer_cache_size_kb" else "entries"
                assert [m for m in messages(document, f"1.{minor}") if relation not in m] == [], (name, minor)


def test_what_is_written_has_to_work_under_newer_releases_and_for_known_ones() -> None:
    (message,) = messages({"properties": {"max_direct_io_size_kb": 512}}, "1.9")
    assert "per_buffer_cache_size_kb (1024) may not exceed" in message
    assert messages({}, "1.3") == [": libcufile 1.3 is older than 1.4, the oldest one whose keys are known"]


def test_every_problem_is_reported_at_once() -> None:
    problems = check({"properties": {"io_batchsize": 0, "poll_mode_max_size_kb": 5}, "loging": {}}, (1, 9))
    assert [problem.key for problem in problems] == [
        "properties.io_batchsize",
        "properties.poll_mode_max_size_kb",
        "loging",
    ]
    assert problems[0] == Problem("properties.io_batchsize", "must be 1 to 256 (found 0)")


_NAMES = st.sampled_from(sorted({part for name in known_keys() for part in name.split(".")})) | st.text(max_size=5)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(_NAMES, _VALUES, max_size=5), st.integers(min_value=0, max_value=30))
def test_any_document_is_judged_and_never_breaks_the_check(document: dict[str, Any], minor: int) -> None:
    for problem in check(document, (1, minor)):
        assert problem.message


def test_the_table_of_p2pdma_keys_and_keys_yml_agree() -> None:
    """Hosts have the table, and the controller also keys.yml."""
    name = ".use_pci_p2pdma"
    expected = {key.key: release_of(key.since) for key in known_keys().values() if key.key.endswith(name)}
    assert {p2pdma.GLOBAL: (1, 13), **{row.name: row.since for row in p2pdma.storage_keys()}} == expected
    assert min(row.since for row in p2pdma.storage_keys()) == p2pdma.OWN_KEYS_SINCE
    assert p2pdma.keys_for((1, 15)) == ()
    assert {row.storage for row in p2pdma.storage_keys()} - {row.storage for row in p2pdma.keys_for((1, 18))} == {
        "raid1",
        "raid10",
        "panfs",
    }
