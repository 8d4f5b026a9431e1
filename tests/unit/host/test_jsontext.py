"""JSON of strangers: what is refused before it costs anything, and what comes out of the rest."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, strategies as st

from gdsdeploy.host.io import jsontext
from gdsdeploy.host.io.jsontext import LIMIT, loads

REFUSED = {
    "not JSON": ("{", "not JSON: Expecting"),
    "nothing": ("", "not JSON: Expecting"),
    "larger": (" " * (LIMIT + 1), "more than 8388608 characters"),
    "deeper": ("[" * 65 + "]" * 65, "nested more than 64 deep"),
    "deeper by objects": ('{"a":' * 65 + "1" + "}" * 65, "nested more than 64 deep"),
    "as deep as crashes": ("[" * 90_000 + "]" * 90_000, "nested more than 64 deep"),
    "many small items": ("[" + "[]," * 2_000_000 + "0]", "too many items"),
    "digits": ("[" + "9" * 5000 + "]", "a number has 5000 digits"),
    "not a number": ("[NaN]", "NaN is no number"),
    "infinite": ("[1e999]", "1e999 is no number"),
    "more than one": ("{} {}", "not JSON: more after"),
    "a key twice": ('{"a": 1, "a": 2}', "a key twice"),
    "a key twice in the end": (r'{"\ud800": 1, "\udfff": 2}', "a key twice"),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        loads(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[" * 64 + "]" * 64, None),
        ('{"a": [1, 2.5, null, true, "x"]}', {"a": [1, 2.5, None, True, "x"]}),
        ("[18446744073709551615, -9223372036854775808]", [2**64 - 1, -(2**63)]),
        (r'{"\udcff": "\ud800"}', {"\ufffd": "\ufffd"}),
        ('"\udcff"', "\ufffd"),
        (r'"\ud83d\ude00 \\ud800"', "\U0001f600 \\ud800"),
    ],
)
def test_what_is_read(text: str, value: object) -> None:
    assert value is None or loads(text) == value


def test_the_caller_may_have_other_bounds() -> None:
    assert loads("[[1]]", limit=5, items=2) == [[1]]
    assert loads(" [[1]] and more", more=True) == [[1]]
    for bounds in ({"limit": 4}, {"items": 1}):
        with pytest.raises(ValueError, match=r"more than|too many"):
            loads("[[1]]", **bounds)


SCALARS = st.none() | st.booleans() | st.integers(-(10**19), 10**19) | st.floats(-1e300, 1e300) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)


@given(OBJECTS, OBJECTS, st.sampled_from([None, 1]), st.integers(1, 9))
def test_members_are_those_of_the_whole(
    head: dict[str, object], hosts: dict[str, object], indent: int | None, size: int
) -> None:
    """However small the pieces are in which a text is read."""
    text = json.dumps({**head, "hosts": hosts}, indent=indent)
    pieces = io.StringIO(text)
    read = list(jsontext.members(lambda _: pieces.read(size), "hosts"))
    whole = jsontext.loads(text)
    inside = {("hosts", name): value for name, value in whole.pop("hosts").items()}
    assert dict(read) == {**{(name,): value for name, value in whole.items()}, **inside}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,}', '{"a":1}x', '{"a":1 "b":2}',
                                  "{1:2}", '{"a":1,"a":2}', '{"hosts":{"a":1,"a":2}}', '{"hosts":{"a":1}',
                                  '{"a":1e999}', '{"a":' + "[" * 70 + "]" * 70 + "}",
                                  '{"a":"' + "x" * LIMIT + '"}', '{"a":[' + "[]," * 2_000_000 + "0]}"])  # fmt: skip
def test_members_of_what_is_refused_in_a_whole(text: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|twice|number|deep|characters|items"):
        dict(jsontext.members(io.StringIO(text).read, "hosts"))
