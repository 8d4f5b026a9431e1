"""rpm's relations: plain ones, and boolean ("rich") ones as groups of alternatives.

``(a if b)`` becomes "a, or not b", and so on down to a conjunction of groups, which is what a solver takes.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import Final

from gdsdeploy.host.apply.packages.versions import rpm
from gdsdeploy.repo.candidate import Group, Relation
from gdsdeploy.repo.order import RPM, RPM_RELATIONS

#: Groups that one expression may become; the largest in distributions become a handful.
MAX_GROUPS: Final = 64
#: Expressions inside one another.
MAX_DEPTH: Final = 20

_OPERATORS: Final = ("and", "or", "if", "unless", "else", "with", "without")
# A name may hold balanced parentheses (libc.so.6(GLIBC_2.34)(64bit)), so they end a word only where unbalanced.
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class _Node:
    """``operator`` over ``parts``; without an operator, one relation."""

    operator: str
    parts: tuple[_Node, ...] = ()
    leaf: Relation | None = None


def relation(name: str, sign: str = "", version: str = "") -> Relation:
    """One plain relation; raises ValueError for a sign or a version that rpm does not have."""
    if sign and sign not in RPM_RELATIONS:
        raise ValueError(f"not a relation: {name} {sign} {version}")
    if sign:
        rpm(version)
    return Relation(name, sign, version, order=RPM)


def groups(expression: str, *, negate: bool = False) -> tuple[Group, ...]:
    """What a boolean dependency asks for, all of it; each group is satisfied by any of its relations.

    negate: what it asks for when it is a conflict.  Raises ValueError naming what cannot be read.
    """
    node, end = _expression(expression, 0, 0)
    if expression[end:].strip():
        raise ValueError(f"not a boolean dependency: {expression!r}")
    return tuple(dict.fromkeys(_conjunction(node, negate, expression)))


def _expression(text: str, start: int, depth: int) -> tuple[_Node, int]:
    """The parenthesised expression at ``start``, and where it ends."""
    if depth > MAX_DEPTH:
        raise ValueError(f"too deep: {text[:80]!r}")
    at = _skip(text, start)
    if text[at : at + 1] != "(":
        return _leaf(text, at)
    operand, at = _expression(text, at + 1, depth + 1)
    parts, operators = [operand], list[str]()
    while True:
        at = _skip(text, at)
        if text[at : at + 1] == ")":
            return _node(parts, operators, text), at + 1
        operator, at = _word(text, at)
        if operator not in _OPERATORS:
            raise ValueError(f"not a boolean dependency: {text!r}")
        operand, at = _expression(text, at, depth + 1)
        operators.append(operator)
        parts.append(operand)


def _node(parts: list[_Node], operators: list[str], text: str) -> _Node:
    if not operators:
        return parts[0]
    if operators in (["if", "else"], ["unless", "else"]) or (len(operators) == 1 and operators[0] != "else"):
        return _Node(operators[0], tuple(parts))
    if len(set(operators)) == 1 and operators[0] in ("and", "or", "with"):
        return _Node(operators[0], tuple(parts))
    raise ValueError(f"operators cannot be mixed: {text!r}")


def _leaf(text: str, start: int) -> tuple[_Node, int]:
    name, at = _word(text, start)
    sign, after = _word(text, _skip(text, at))
    if not name or name in _OPERATORS:
        raise ValueError(f"a name is missing: {text!r}")
    if sign in RPM_RELATIONS:
        version, at = _word(text, _skip(text, after))
        return _Node("", leaf=relation(name, sign, version)), at
    return _Node("", leaf=relation(name)), at


def _word(text: str, start: int) -> tuple[str, int]:
    depth = 0
    for at in range(start, len(text)):
        if text[at] == "(":
            depth += 1
        elif text[at] == ")":
            if depth == 0:
                return text[start:at], at
            depth -= 1
        elif text[at].isspace() and depth == 0:
            return text[start:at], at
    return text[start:], len(text)


def _skip(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return match.end() if match else start


def _conjunction(node: _Node, negate: bool, text: str) -> list[Group]:
    """``node``, or its negation, as groups that all have to hold."""
    if node.leaf is not None:
        return [(replace(node.leaf, negated=negate),)]
    parts = node.parts
    if node.operator in ("with", "without"):
        return [(replace(_with(node, text), negated=negate),)]
    if node.operator in ("if", "unless"):
        # (a if b else c): b gives a, its absence gives c; "unless" is that with the absence of b.
        absent = node.operator == "if"
        conjunction = _any([(parts[0], negate), (parts[1], absent)], text)
        if len(parts) == 3:
            return conjunction + _any([(parts[2], negate), (parts[1], not absent)], text)
        # Without "else" an "if" that does not apply is true and an "unless" that does not apply false.
        return conjunction if absent is not negate else conjunction + _conjunction(parts[1], not absent, text)
    if (node.operator == "and") is not negate:
        return [group for part in parts for group in _conjunction(part, negate, text)]
    return _any([(part, negate) for part in parts], text)


def _any(parts: list[tuple[_Node, bool]], text: str) -> list[Group]:
    choices = [_conjunction(part, negate, text) for part, negate in parts]
    conjunction: list[Group] = []
    for picked in itertools.product(*choices):
        if len(conjunction) == MAX_GROUPS:
            raise ValueError(f"too many combinations: {text[:80]!r}")
        conjunction.append(tuple(dict.fromkeys(relation for group in picked for relation in group)))
    return conjunction


def _with(node: _Node, text: str) -> Relation:
    """One package that has all of it: relations on one another's package."""
    leaves = []
    for number, part in enumerate(node.parts):
        if part.leaf is None:
            raise ValueError(f"{node.operator} needs plain names: {text!r}")
        leaves.append(replace(part.leaf, negated=number > 0 and node.operator == "without"))
    return replace(leaves[0], also=tuple(leaves[1:]))
