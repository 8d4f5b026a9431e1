"""What a case expects, held against what is found; tests/cases/README.md has the operators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.unit.host.patches import OPERATOR

#: Of a mapping that is expected to be one word: the entry that the word is.
MAIN = ("verdict", "id", "path", "unknown")


def differences(expected: Any, got: Any, where: str) -> Iterator[str]:
    """How ``got`` isn't what is expected: a part of it, or an operator; see tests/cases/README.md."""
    if isinstance(expected, Mapping) and any(OPERATOR.fullmatch(str(key)) for key in expected):
        for operator, operand in expected.items():
            yield from _operator(operator, operand, got, where)
    elif isinstance(expected, Mapping):
        for key, inner in expected.items():
            if not isinstance(got, Mapping) or key not in got:
                yield f"{where}/{key} isn't there: {_short(got)}"
            else:
                yield from differences(inner, got[key], f"{where}/{key}")
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for position, (one, other) in enumerate(zip(expected, got, strict=True)):
            yield from differences(one, other, f"{where}[{position}]")
    elif isinstance(expected, str) and isinstance(got, Mapping):
        yield from differences(expected, next((got[key] for key in MAIN if key in got), None), where)
    elif type(expected) is not type(got) or expected != got:
        yield f"{where} is {_short(got)}, expected is {_short(expected)}"


def _operator(operator: str, operand: Any, got: Any, where: str) -> Iterator[str]:
    texts = got if isinstance(got, list) else [got]

    def among(matcher: Any) -> bool:
        return any(not list(differences(matcher, one, "")) for one in texts)

    holds = {
        "$has": lambda: all(any(word in text for text in texts) for word in _words(operand)),
        "$lacks": lambda: not any(word in text for text in texts for word in _words(operand)),
        "$starts": lambda: str(got).startswith(operand),
        "$ends": lambda: str(got).endswith(operand),
        "$matches": lambda: re.search(operand, str(got)) is not None,
        "$not": lambda: got != operand,
        "$first": lambda: bool(texts) and not list(differences(operand, texts[0], "")),
        "$any": lambda: among(operand),
        "$all": lambda: all(among(matcher) for matcher in operand),
        "$none": lambda: not among(operand),
    }
    if operator not in holds:
        raise ValueError(f"{where}: there is no operator {operator}")
    if not holds[operator]():
        yield f"{where} is {_short(got)}, expected is {operator} {_short(operand)}"


def _words(operand: Any) -> list[str]:
    words = [operand] if isinstance(operand, str) else operand
    if not words or not all(words):
        raise ValueError(f"nothing is in everything: {operand!r}")
    return list(words)


def _short(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)[:1500]
