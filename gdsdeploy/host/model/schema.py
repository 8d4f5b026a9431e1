"""Typed desired state: dataclasses from JSON, with the place of every mistake; and their JSON schema.

Fields have the types str, int, float, bool, ``Literal[…]`` of strings, ``List[…]``, ``Tuple[…, ...]``,
``Dict[str, …]``, ``Mapping[str, …]``, ``Optional[…]`` and other dataclasses.
A string of a desired state is one line: it becomes part of a line of a configuration file, in which a second one would
be a setting of its own.  The content of a file is the exception, and its field has the metadata LINES.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import abc
from typing import Any, Dict, List, Literal, Mapping, Type, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import DesiredError

T = TypeVar("T")
#: Metadata of a field whose strings may have several lines.
LINES: Mapping[str, bool] = {"lines": True}
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_ONE_LINE = {"not": {"type": "string", "pattern": "[\\u0000-\\u001f\\u007f]"}}
_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def load(kind: Type[T], value: Any, place: str, *, lines: bool = False) -> T:
    """An instance of the dataclass ``kind`` from ``value``; raises DesiredError that names ``place`` and the key.

    lines: allow several lines in every string, for documents that aren't desired states.
    """
    if not isinstance(value, Mapping):
        raise DesiredError(f"{place}: an object is needed, not {_word(value)}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(map(str, value)) - set(fields))
    if unknown:
        raise DesiredError(f"{place}.{unknown[0]}: unknown key", "update gdsdeploy on the side that is older")
    hints = _hints(kind)  # type: ignore[arg-type]
    values: Dict[str, Any] = {}
    for name, field in fields.items():
        if name in value:
            several = lines or bool(field.metadata.get("lines"))
            values[name] = _value(hints[name], value[name], f"{place}.{name}", several)
        elif _is_required(field):
            raise DesiredError(f"{place}.{name}: this key is required")
    return kind(**values)


def read(kind: Type[T], value: Any, place: str) -> T:
    """The same for a document that isn't a desired state, with several lines in any string; raises ValueError."""
    try:
        return load(kind, value, place, lines=True)
    except DesiredError as error:
        raise ValueError(str(error)) from None


def schema(kind: Type[Any]) -> Dict[str, Any]:
    """The JSON schema of the dataclass ``kind``."""
    hints = _hints(kind)  # type: ignore[arg-type]
    fields = dataclasses.fields(kind)
    return {
        "type": "object",
        "properties": {field.name: _schema(hints[field.name], bool(field.metadata.get("lines"))) for field in fields},
        "required": [field.name for field in fields if _is_required(field)],
        "additionalProperties": False,
    }


@functools.lru_cache(None)
def _hints(kind: Type[Any]) -> Dict[str, Any]:
    """The types of a dataclass's fields, which take longer than to read a value."""
    return get_type_hints(kind)


def _is_required(field: Any) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _value(hint: Any, value: Any, place: str, lines: bool) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Union:
        part = next(part for part in parts if part is not type(None))
        return None if value is None else _value(part, value, place, lines)
    if origin is Literal:
        if value not in parts:
            raise DesiredError(f"{place}: one of {', '.join(parts)} is needed")
        return value
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise DesiredError(f"{place}: a list is needed, not {_word(value)}")
        return origin(_value(parts[0], entry, f"{place}[{number}]", lines) for number, entry in enumerate(value))
    if origin in (dict, abc.Mapping):
        if not isinstance(value, Mapping):
            raise DesiredError(f"{place}: an object is needed, not {_word(value)}")
        return {
            _text(str(key), place, lines): _value(parts[1], entry, f"{place}.{key}", lines)
            for key, entry in value.items()
        }
    if dataclasses.is_dataclass(hint):
        return load(hint, value, place, lines=lines)  # type: ignore[arg-type]
    right = isinstance(value, hint) or (hint is float and isinstance(value, int))
    if not right or (isinstance(value, bool) and hint is not bool):
        raise DesiredError(f"{place}: {_SCALARS[hint]} is needed, not {_word(value)}")
    return _text(value, place, lines) if isinstance(value, str) else value


def _text(value: str, place: str, lines: bool) -> str:
    if "\0" in value:
        raise DesiredError(f"{place}: has a NUL character")
    if not lines and _CONTROL.search(value):
        raise DesiredError(f"{place}: has a line end or another control character; one line is needed")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise DesiredError(f"{place}: has half of a surrogate pair, which isn't a character")
    return value


def _schema(hint: Any, lines: bool) -> Dict[str, Any]:
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Union:
        return {"anyOf": [_schema(next(p for p in parts if p is not type(None)), lines), {"type": "null"}]}
    if origin is Literal:
        return {"type": "string", "enum": list(parts)}
    if origin in (list, tuple):
        return {"type": "array", "items": _schema(parts[0], lines)}
    if origin in (dict, abc.Mapping):
        names = {} if lines else {"propertyNames": _ONE_LINE}
        return {"type": "object", "additionalProperties": _schema(parts[1], lines), **names}
    if dataclasses.is_dataclass(hint):
        return schema(hint)  # type: ignore[arg-type]
    return {"type": _SCALARS[hint], **(_ONE_LINE if hint is str and not lines else {})}


def _word(value: Any) -> str:
    names: List[Any] = [(bool, "a boolean"), (str, "a string"), ((int, float), "a number"), (list, "a list")]
    return next((word for kind, word in names if isinstance(value, kind)), "null" if value is None else "an object")
