"""Names of hosts folded: expanding gives the same names back, and no name that wasn't there."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from gdsdeploy.model.hostnames import MOST, expand, fold, grouped, natural, split, words

#: Few letters and numbers, so that names often differ in one number or two.
NAMES = st.sets(
    st.from_regex(r"\A(gpu|n|)(0{0,2}[0-9]|[0-9]{1,3})((\.rack|-|x)(0?[0-9]|1[0-9]))?(\.example)?\Z")
    | st.from_regex(r"\A[a-z0-9]([a-z0-9._-]{0,6}[a-z0-9])?\Z"),
    max_size=40,
)


@given(NAMES)
def test_expanding_gives_the_same_names_back(names: set[str]) -> None:
    text = fold(names)
    assert sorted(expand(text) if names else []) == sorted(names)
    assert fold(sorted(names, reverse=True)) == text


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("node1 node2 node3 node7", "node[1-3,7]"),
        ("node9 node10 node2", "node[2,9-10]"),
        ("node08 node09 node10 node11", "node[08-11]"),
        ("node1 node01 node2 node02", "node[01-02,1-2]"),
        ("n098 n099 n100", "n[098-100]"),
        ("gpu1.rack2.example gpu3.rack2.example gpu2.rack2.example", "gpu[1-3].rack2.example"),
        ("gpu1.rack1 gpu2.rack2", "gpu1.rack1, gpu2.rack2"),
        ("gpu1.rack1 gpu2.rack1 gpu1.rack2 gpu2.rack2", "gpu[1-2].rack[1-2]"),
        ("gpu1.rack1 gpu2.rack1 gpu1.rack2", "gpu[1-2].rack1, gpu1.rack2"),
        ("login build1 gpu1 gpu2", "build1, gpu[1-2], login"),
        ("1 2 3", "[1-3]"),
        ("a", "a"),
        ("", ""),
    ],
)
def test_fold(names: str, text: str) -> None:
    assert fold(names.split()) == text


def test_the_number_that_leaves_fewer_groups_is_folded_first() -> None:
    ragged = [f"gpu{gpu}.rack{rack}" for rack in range(1, 11) for gpu in range(1, 9) if gpu != rack % 3 + 1]
    by_rack = [f"rack{rack}-gpu{gpu}" for rack in range(1, 11) for gpu in range(1, 9) if gpu != rack % 3 + 1]
    assert len(split(fold(ragged))) == len(split(fold(by_rack))) == 3


def test_brackets_that_are_a_shell_pattern_stay() -> None:
    assert expand("gpu[12],n[a-c],gpu[1-2]x*") == ["gpu[12]", "n[a-c]", "gpu1x*", "gpu2x*"]


@pytest.mark.parametrize("text", [f"n[1-{MOST + 1}]", "n[0-999]m[0-999]", "a," * MOST + "a"])
def test_too_many_names(text: str) -> None:
    with pytest.raises(ValueError, match="more than 100000 names"):
        expand(text)


def test_words_are_capped_at_a_width() -> None:
    odd = [f"n{number}" for number in range(1, 1000, 2)]
    text = words(odd, 40)
    first, rest = text.split(" and ")
    assert len(first) <= 40
    assert rest == f"{500 - len(expand(first))} more"
    assert expand(first) == odd[: len(expand(first))]
    assert expand(words(odd, 0)) == odd
    assert words(["a-name-that-is-longer", "b"], 5) == "a-name-that-is-longer and 1 more"


def test_groups_come_by_size() -> None:
    assert list(grouped([("a", 1), ("b", 2), ("c", 2), ("d", 3)]).items()) == [(2, ["b", "c"]), (1, ["a"]), (3, ["d"])]


def test_natural_order() -> None:
    assert sorted(["r10", "r9", "r09", "r", "9", "a9b10", "a9b2"], key=natural) == [
        "a9b2", "a9b10", "r", "r09", "r9", "r10", "9",
    ]  # fmt: skip
