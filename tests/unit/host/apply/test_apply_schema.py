"""Typed desired state: every mistake is named with its place, and the JSON schema says the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Literal, Optional  # noqa: UP035 - as on Python 3.9

import jsonschema
import pytest
from hypothesis import given, strategies as st

from gdsdeploy.host.apply import registry
from gdsdeploy.host.errors import DesiredError
from gdsdeploy.host.model import schema

ONE_LINE = "has a line end or another control character; one line is needed"


@dataclass(frozen=True)
class Inner:
    name: str
    on: bool = False


@dataclass(frozen=True)
class Outer:
    text: str
    number: int = 1
    share: float = 0.5
    names: List[str] = field(default_factory=list)  # noqa: UP006
    sizes: Dict[str, int] = field(default_factory=dict)  # noqa: UP006
    inner: List[Inner] = field(default_factory=list)  # noqa: UP006
    maybe: Optional[str] = None  # noqa: UP045
    way: Literal["in", "out"] = "in"


def test_what_is_left_out_has_its_default() -> None:
    loaded = schema.load(Outer, {"text": "x", "inner": [{"name": "y"}]}, "desired")
    assert loaded == Outer("x", inner=[Inner("y")])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "desired: an object is needed, not a list"),
        ({}, "desired.text: this key is required"),
        ({"text": 1}, "desired.text: string is needed, not a number"),
        ({"text": "x", "number": True}, "desired.number: integer is needed, not a boolean"),
        ({"text": "x", "number": "1"}, "desired.number: integer is needed, not a string"),
        ({"text": "x", "names": "a"}, "desired.names: a list is needed, not a string"),
        ({"text": "x", "names": ["a", None]}, "desired.names[1]: string is needed, not null"),
        ({"text": "x", "sizes": {"a": 1.5}}, "desired.sizes.a: integer is needed, not a number"),
        ({"text": "x", "inner": [{"name": "a"}, {"name": []}]}, "desired.inner[1].name: string is needed, not a list"),
        ({"text": "x", "inner": [{"name": "a", "off": 1}]}, "desired.inner[0].off: unknown key"),
        ({"text": "a\0b"}, "desired.text: has a NUL character"),
        ({"text": "x", "sizes": {"a\0b": 1}}, "desired.sizes: has a NUL character"),
        ({"text": "a\n"}, f"desired.text: {ONE_LINE}"),
        ({"text": "a\x1b"}, f"desired.text: {ONE_LINE}"),
        ({"text": "x", "names": ["a\rb"]}, f"desired.names[0]: {ONE_LINE}"),
        ({"text": "x", "sizes": {"a\nb": 1}}, f"desired.sizes: {ONE_LINE}"),
        ({"text": "x", "inner": [{"name": "a\tb"}]}, f"desired.inner[0].name: {ONE_LINE}"),
        ({"text": "\ud800"}, "desired.text: has half of a surrogate pair, which isn't a character"),
        ({"text": "x", "colour": "red"}, "desired.colour: unknown key"),
        ({"text": "x", "way": "up"}, "desired.way: one of in, out is needed"),
        ({"text": "x", "way": ["in"]}, "desired.way: one of in, out is needed"),
    ],
)
def test_a_mistake_is_named_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(DesiredError) as caught:
        schema.load(Outer, value, "desired")
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


#: jsonschema takes 1.0 for an integer; this program doesn't.
NUMBERS = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not x.is_integer())
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["name", "on", "a"]), inner, max_size=2),
    ),
    max_leaves=4,
)
KEYS = ["text", "number", "share", "names", "sizes", "inner", "maybe", "other"]


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))
def test_the_json_schema_takes_what_the_program_takes(value: dict[str, Any]) -> None:
    accepted = True
    try:
        schema.load(Outer, value, "desired")
    except DesiredError:
        accepted = False
    valid = jsonschema.Draft202012Validator(schema.schema(Outer)).is_valid(value)
    assert accepted == valid


@pytest.mark.parametrize("name", registry.names())
def test_each_resource_has_a_valid_schema(name: str) -> None:
    resource = registry.resource(name)
    assert resource.name == name
    jsonschema.Draft202012Validator.check_schema(schema.schema(resource.desired_type))


def test_only_contents_of_files_have_several_lines() -> None:
    fields = {
        (name, key)
        for name in registry.names()
        for key, entry in schema.schema(registry.resource(name).desired_type)["properties"].items()
        if entry == {"type": "string"}
    }
    assert fields == {
        ("cufile", "content"),
        ("expectation", "expectation"),
        ("gate", "settings"),
        ("modules", "builder_key"),
        ("signing", "settings"),
    }


def test_a_parameter_of_the_driver_is_no_second_line() -> None:
    desired = {"kernel_release": "6.12", "options": {"NVreg_X": "1\ninstall nvidia /bin/sh -c 'touch /x'"}}
    with pytest.raises(DesiredError, match="one line is needed"):
        schema.load(registry.resource("driver_options").desired_type, desired, "desired")
