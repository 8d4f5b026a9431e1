"""JSON of strangers: what is refused before it costs anything, and what comes out of the rest."""

from __future__ import annotations

import pytest

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
    assert loads("[[1]]", depth=2, limit=5, items=2) == [[1]]
    assert loads(" [[1]] and more", more=True) == [[1]]
    for bounds in ({"depth": 1}, {"limit": 4}, {"items": 1}):
        with pytest.raises(ValueError, match=r"more than|too many"):
            loads("[[1]]", **bounds)
