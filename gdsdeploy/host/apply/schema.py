"""Typed desired state: dataclasses from JSON, with the place of every mistake; and their JSON schema.

Fields have the types str, int, float, bool, ``List[…]``, ``Dict[str, …]``, ``Optional[…]`` and other dataclasses.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Type, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import DesiredError

T = TypeVar("T")
_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def load(kind: Type[T], value: Any, place: str) -> T:
    """An instance of the dataclass ``kind`` from ``value``; raises DesiredError that names ``place`` and the key."""
    if not isinstance(value, Mapping):
        raise DesiredError(f"{place}: an object is needed, not {_word(value)}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(map(str, value)) - set(fields))
    if unknown:
        raise DesiredError(f"{place}.{unknown[0]}: unknown key", "update gdsdeploy on the side that is older")
    hints = get_type_hints(kind)
    given: Dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            given[name] = _value(hints[name], value[name], f"{place}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DesiredError(f"{place}.{name}: this key is required")
    return kind(**given)


def schema(kind: Type[Any]) -> Dict[str, Any]:
    """The JSON schema of the dataclass ``kind``."""
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)
    required = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return {
        "type": "object",
        "properties": {field.name: _schema(hints[field.name]) for field in fields},
        "required": required,
        "additionalProperties": False,
    }


def _value(hint: Any, value: Any, place: str) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Union:
        return None if value is None else _value(next(part for part in parts if part is not type(None)), value, place)
    if origin is list:
        if not isinstance(value, (list, tuple)):
            raise DesiredError(f"{place}: a list is needed, not {_word(value)}")
        return [_value(parts[0], item, f"{place}[{number}]") for number, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, Mapping):
            raise DesiredError(f"{place}: an object is needed, not {_word(value)}")
        return {_text(str(key), place): _value(parts[1], item, f"{place}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return load(hint, value, place)  # type: ignore[arg-type]
    right = isinstance(value, hint) or (hint is float and isinstance(value, int))
    if not right or (isinstance(value, bool) and hint is not bool):
        raise DesiredError(f"{place}: {_SCALARS[hint]} is needed, not {_word(value)}")
    return _text(value, place) if isinstance(value, str) else value


def _text(value: str, place: str) -> str:
    if "\0" in value:
        raise DesiredError(f"{place}: has a NUL character")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise DesiredError(f"{place}: has half of a surrogate pair, which isn't a character")
    return value


def _schema(hint: Any) -> Dict[str, Any]:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Union:
        return {"anyOf": [_schema(next(p for p in parts if p is not type(None))), {"type": "null"}]}
    if origin is list:
        return {"type": "array", "items": _schema(parts[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(parts[1])}
    if dataclasses.is_dataclass(hint):
        return schema(hint)  # type: ignore[arg-type]
    return {"type": _SCALARS[hint]}


def _word(value: Any) -> str:
    names: List[Any] = [(bool, "a boolean"), (str, "a string"), ((int, float), "a number"), (list, "a list")]
    return next((word for kind, word in names if isinstance(value, kind)), "null" if value is None else "an object")
