"""Untrusted JSON, with bounds on size, nesting and numbers that hold before it is parsed.  Pure."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, Iterable, List, Tuple

#: Characters.  The evidence of a host has less than a tenth of it.
LIMIT = 8 * 1024 * 1024
#: Items for which there is always room, and characters for each beyond: small items take more memory than their text.
_ITEMS, _SPARSE = 100_000, 8
#: Digits of what 64 bits hold.
_DIGITS = 20
#: Where half of a surrogate pair may be, which no program can write again.
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


class NotJsonError(ValueError):
    """A text that isn't JSON at all."""


def loads(text: str, *, depth: int = 64, limit: int = LIMIT, items: int = 0, more: bool = False) -> Any:
    """The value that the JSON ``text`` is; half of a surrogate pair becomes U+FFFD.

    depth: of lists and objects in each other.  limit: in characters.  items: at most; 0: as its size allows.
    more: something else may follow the value.
    Raises ValueError: larger or deeper, with a number of more than 64 bits, or with a key twice; NotJsonError.
    """
    if len(text) > limit:
        raise ValueError(f"it has more than {limit} characters")
    if sum(map(text.count, ",[{")) > (items or max(_ITEMS, len(text) // _SPARSE)):
        raise ValueError("it has too many items for its size")
    text = text.lstrip()
    try:
        value, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        raise NotJsonError(f"not JSON: {error}") from None
    except RecursionError:
        too_deep = True
    else:
        too_deep = _is_deeper(value, depth)
    if too_deep:
        raise ValueError(f"it is nested more than {depth} deep")
    if not more and text[end:].strip():
        raise NotJsonError(f"not JSON: more after character {end}")
    return _without_surrogates(value) if _HALF.search(text) else value


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > _DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _fraction(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_DIGITS]} is no number that can be used")
    return value


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether a list or an object lies in ``depth`` others."""
    level = [value]
    for _ in range(depth):
        level = [inner for value_inside in level for inner in _children(value_inside)]
    return any(isinstance(value_inside, (dict, list)) for value_inside in level)


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _without_surrogates(value: Any) -> Any:
    """``value`` with every string as one that can be written."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return _object([(_without_surrogates(key), _without_surrogates(inner)) for key, inner in value.items()])
    return [_without_surrogates(inner) for inner in value] if isinstance(value, list) else value


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a key twice")
    return members


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_fraction, parse_constant=_fraction
)
