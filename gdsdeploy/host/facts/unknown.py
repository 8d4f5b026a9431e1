"""The third value: a fact that the evidence doesn't decide.  It never counts as an answer.

Such a fact raises UndecidedError where it is asked for.  Unknown is for what has to be kept or shown beside others.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, TypeVar, Union, cast

from ..errors import UndecidedError as UndecidedError

if TYPE_CHECKING:
    from .document import Document

Value = TypeVar("Value")
Result = TypeVar("Result")

Self = TypeVar("Self", bound="Facts")


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be established, and why."""

    reason: str

    def __bool__(self) -> bool:
        """Neither true nor false: code that doesn't check first must fail in its tests, not give a wrong answer."""
        raise TypeError(f"this is not known: {self.reason}")


#: A fact that may not be known.
Maybe = Union[Value, Unknown]


def known(function: Callable[[], Maybe[Value]]) -> Maybe[Value]:
    """What ``function`` returns, or why that isn't known."""
    try:
        return function()
    except UndecidedError as error:
        return Unknown(str(error))


def if_known(function: Callable[[], Maybe[Value]], default: Result) -> Union[Value, Result]:
    """What ``function`` returns, or ``default`` where that isn't known: for what is shown, never for a verdict."""
    return or_else(known(function), default)


def or_else(value: Maybe[Value], default: Result) -> Union[Value, Result]:
    """A value that was kept, or ``default`` where it isn't known."""
    return default if isinstance(value, Unknown) else value


def require(value: Maybe[Value]) -> Value:
    """A value that was kept; raises UndecidedError if it isn't known."""
    if isinstance(value, Unknown):
        raise UndecidedError(value.reason)
    return value


def any_of(answers: Iterable[Maybe[bool]]) -> bool:
    """Whether one is true, whatever the others are; raises UndecidedError where none is, and one isn't known."""
    kept = tuple(answers)
    return True in kept or any(map(require, kept))


class _Fact:
    """A property that is computed once: its value is kept, or the reason why it isn't known."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function, self.__doc__ = function, function.__doc__

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, facts: Any, _owner: object = None) -> Any:
        if facts is None:
            return self
        decided, document = vars(facts).setdefault("_decided", {}), facts.document
        if self._name not in decided:
            compute = functools.partial(known, functools.partial(self._function, facts))
            decided[self._name] = document.watching(compute)
        value, reads = decided[self._name]
        if document.frames is not None:
            document.frames[-1].update(reads)
        return require(value)


if TYPE_CHECKING:
    fact = property
else:
    fact = _Fact


#: What facts are made of.
GIVEN = ("document", "rules")


def given(read: Callable[[Document], Value]) -> Value:
    """A fact of one expression: what ``read`` makes of the document."""
    return cast("Value", _Fact(lambda facts: read(facts.document)))


def follows(read: Callable[[Any], Value]) -> Value:
    """A fact of one expression: what ``read`` makes of the facts that it is one of."""
    return cast("Value", _Fact(read))


class Facts:
    """What is known of one subject.  A ``@fact`` is computed when it is first asked for, and may raise UndecidedError.

    ``as_dict`` has the facts and the attributes, but for those of ``GIVEN``.
    """

    def __init__(self, document: Document) -> None:
        self.document = document

    def but(self: Self, **others: object) -> Self:
        """The same with other facts, or Unknown in their place; what follows from them is computed again."""
        view = copy.copy(self)
        vars(view)["_decided"] = {name: (value, {}) for name, value in others.items() if _is_fact(view, name)}
        vars(view).update({name: value for name, value in others.items() if not _is_fact(view, name)})
        return view


def _is_fact(facts: Facts, name: str) -> bool:
    return isinstance(getattr(type(facts), name, None), _Fact)


def as_dict(value: Any) -> Any:
    """Facts as JSON values; an unknown one becomes ``{"unknown": reason}``."""
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    if isinstance(value, Facts):
        shown = [name for name in vars(value) if name not in GIVEN and name[0] != "_"]
        shown += [name for kind in reversed(type(value).__mro__) for name in vars(kind) if _is_fact(value, name)]
        return {name: as_dict(known(functools.partial(getattr, value, name))) for name in shown}
    from dataclasses import fields, is_dataclass

    if is_dataclass(value):
        return {entry.name: as_dict(getattr(value, entry.name)) for entry in fields(value) if entry.repr}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): as_dict(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_dict(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted(as_dict(entry) for entry in value)
    return value
