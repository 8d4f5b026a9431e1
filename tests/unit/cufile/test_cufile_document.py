"""The dialect, case by case, as each library from 1.4.0 to 1.20.0 was seen to take it; tests/cufile asks them."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, strategies as st

from gdsdeploy.cufile.document import DEEPEST, DocumentInvalid, Place, read
from tests.cufile.effective import plain


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"{}", {}),
        (b" \t\r\n{ } \n", {}),
        (b"{}x", {}),
        (b"{}\0", {}),
        (b'{"a":1}\xff{', {"a": 1}),
        (b"// x\n{}", {}),
        (b"//x\r{}", {}),
        (b"/**/{/*c*/}/*", {}),
        (b'{"a":/*c*/1/*c*/,//\n"b"://x\r\n2}', {"a": 1, "b": 2}),
        (b'{"a":[1/*c*/,/*c*/2]}', {"a": [1, 2]}),
        (b'{"a":1 /*x*/ true "b":2}', {"a": 1, "b": 2}),
        (b'{"a":1 /*x*/ ? "b":2}', {"a": 1, "b": 2}),
        (b'{"":1,}', {"": 1}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'{"a":{"b":1},"a":{"c":1}}', {"a": {"c": 1}}),
        (b'{"a":007,"b":-,"c":-0,"d":1.,"e":-.5,"f":1.e2}', {"a": 7, "b": 0, "c": 0, "d": 1.0, "e": -0.5, "f": 100.0}),
        (b'{"a":18446744073709551615}', {"a": 2**64 - 1}),
        (b'{"a":18446744073709551616}', {"a": 2.0**64}),
        (b'{"a":-9223372036854775808}', {"a": -(2**63)}),
        (b'{"a":' + b"0" * 9000 + b"5}", {"a": 5}),
        (b'{"a":"x\ny\\u00e9\\/\\ud83d\\ude00\\ud800\\u0041"}', {"a": "x\nyé/\U0001f600\U00010041"}),
        (b"null", None),
        (b'"x"', "x"),
        (b"[]", []),
    ],
)
def test_what_the_parser_takes(text: bytes, value: object) -> None:
    assert plain(read(text).root) == value


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (b"", (1, 1), "the text ends here; expected a value"),
        (b"\n\n ", (3, 2), "the text ends here; expected a value"),
        (b"\xef\xbb\xbf{}", (1, 1), "this is a byte-order mark; save the file as UTF-8 without one"),
        (b"\xff{}", (1, 1), "the text ends here"),
        (b"\x7fELF\x02\0", (1, 1), "expected a value (found '\\x7f')"),
        (b"{\0}", (1, 2), "NUL ends the text here"),
        (b'{\r\n  "a": 1,\r\n}', (3, 1), "the comma before '}' is one too many"),
        (b'{"a":[1,]}', (1, 9), "the comma before ']' is one too many"),
        (b'{"a":[/*c*/]}', (1, 12), "expected a value"),
        (b'{"a"/*c*/:1}', (1, 5), "expected ':' after 'a'; no comment is allowed here"),
        (b'{"a" 1}', (1, 6), "expected ':' after 'a' (found '1')"),
        (b'{"a":1 "b":2}', (1, 8), "expected ',' or '}' (found"),
        (b"{a:1}", (1, 2), "expected a name in double quotes or '}' (found 'a')"),
        (b"{'a':1}", (1, 2), "expected a name in double quotes"),
        (b'{"a":True}', (1, 6), "expected a value (found 'True')"),
        (b'{"a":.5}', (1, 6), "expected a value"),
        (b'{"a":1e}', (1, 6), "not a number: '1e'"),
        (b'{"a":1e999}', (1, 6), "too large a number"),
        (b'{"a":0x10}', (1, 7), "expected ',' or '}' (found 'x10')"),
        (b'{"a":"x', (1, 6), "this text has no closing quote"),
        (b'{"a":"\xc3\xa9\\x"}', (1, 8), "\\x isn't an escape sequence"),
        (b'{"a":"\\u12"}', (1, 7), "\\u takes four hexadecimal digits"),
        (b'{"a":"\\ud800"}', (1, 7), "the second half of a surrogate pair is missing"),
        (b'{"a":1 /* un }', (1, 8), "this comment does not end"),
        (b'{"properties":{\n', (2, 1), "{ is not closed"),
        (b"{/* x /", (1, 8), "the text ends here; expected a name in double quotes or '}': { is not closed"),
    ],
)
def test_what_it_refuses_and_where(text: bytes, place: tuple[int, int], message: str) -> None:
    with pytest.raises(DocumentInvalid) as refused:
        read(text)
    assert refused.value.place == Place(*place)
    assert message in refused.value.message
    assert not refused.value.aborts


def test_values_that_lie_too_deep_end_the_process_and_not_ours() -> None:
    assert read(b"[" * DEEPEST + b"]" * DEEPEST).root.kind == "array"
    for text in (b"[" * (DEEPEST + 1), b"[" * 1_000_000, b'{"a":' * (DEEPEST + 1)):
        with pytest.raises(DocumentInvalid) as refused:
            read(text)
        assert refused.value.aborts


def test_every_value_has_its_place() -> None:
    document = read('{ // ä\n  "a": {"é": [1, "x"]},\n  "a": {"b": true}\n}\n rest'.encode())
    outer = document.root.last("a")
    assert outer is not None
    inner = outer.value.last("b")
    assert inner is not None
    assert outer.value.last("é") is None
    assert document.place(outer.start) == (3, 3)
    assert document.place(inner.value.start) == (3, 14)
    first = document.root.members[0]
    assert document.place(first.value.members[0].value.items[1].start) == (2, 18)


@pytest.mark.parametrize(
    ("text", "rest"),
    [(b"{} // x\n/* y */\n ", None), (b"{}x", "x"), (b"{} // x\n }", "}"), (b"{} /* y", "/* y"), (b"{}", None)],
)
def test_text_after_the_end_is_found(text: bytes, rest: str | None) -> None:
    ignored = read(text).ignored
    assert (None if ignored is None else text[ignored:].decode()) == rest


@given(st.binary(max_size=60) | st.text(alphabet='{}[]",:/*\\\n 0-eu.tfn\0', max_size=60).map(str.encode))
def test_anything_is_read_or_refused_at_a_place_in_it(data: bytes) -> None:
    document, place = None, Place(1, 1)
    try:
        document = read(data)
    except DocumentInvalid as refused:
        place = refused.place
    assert 1 <= place.line <= len(data.split(b"\n"))
    assert place.column >= 1
    if document is not None:
        assert 0 <= document.root.start < (len(data) if document.ignored is None else document.ignored) <= len(data)


def test_the_time_grows_with_the_length_and_no_faster() -> None:
    digits = random.Random(1)
    text = b"{" + b",".join(b'"k%d": [%d, "\\n"] // x\n' % (n, digits.randrange(2**64)) for n in range(20_000)) + b"}"
    begin = time.process_time()
    assert len(read(text).root.members) == 20_000
    assert time.process_time() - begin < 10
