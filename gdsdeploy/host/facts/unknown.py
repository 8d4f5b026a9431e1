"""The third value: a fact that the evidence doesn't decide.  It never counts as an answer."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Callable, Iterable, List, Mapping, Tuple, TypeVar, Union, cast

Value = TypeVar("Value")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be established, and why."""

    reason: str

    def __bool__(self) -> bool:
        """Neither true nor false: code that doesn't check first must fail in its tests, not give a wrong answer."""
        raise TypeError(f"this is not known: {self.reason}")


#: A fact that may not be known.
Maybe = Union[Value, Unknown]


class UndecidedError(Exception):
    """A check met an unknown fact; the message is the reason.  hint: the next step; empty: the check's own."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


def require(value: Union[Value, Unknown]) -> Value:
    """Return ``value``; raises UndecidedError if it is unknown."""
    if isinstance(value, Unknown):
        raise UndecidedError(value.reason)
    return value


def decided(function: Function) -> Function:
    """``function``, whose result is unknown where it requires something that is unknown."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except UndecidedError as error:
            return Unknown(str(error))

    return cast("Function", wrapper)


def why_not(value: object, absent: str) -> Unknown:
    """The reason why there is no value: its own if it is unknown, else ``absent``."""
    return value if isinstance(value, Unknown) else Unknown(absent)


def when_known(value: Union[Value, Unknown], function: Callable[[Value], Result]) -> Union[Result, Unknown]:
    """``function`` of ``value``; an unknown value stays unknown."""
    return value if isinstance(value, Unknown) else function(value)


def if_known(value: Union[Value, Unknown], default: Result) -> Union[Value, Result]:
    """``value``, or ``default`` where it is unknown: for what is shown, never for a verdict."""
    return default if isinstance(value, Unknown) else value


def if_present(
    value: Union[Value, Unknown, None], function: Callable[[Value], Union[Result, Unknown, None]]
) -> Union[Result, Unknown, None]:
    """``function`` of ``value``; an unknown value stays unknown, and None stays None."""
    return value if value is None or isinstance(value, Unknown) else function(value)


def all_known(values: Iterable[Union[Value, Unknown]]) -> Union[Tuple[Value, ...], Unknown]:
    """All values, or the first unknown one."""
    known_values: List[Value] = []
    for value in values:
        if isinstance(value, Unknown):
            return value
        known_values.append(value)
    return tuple(known_values)


def with_default(value: Union[Value, Unknown, None], default: Value) -> Union[Value, Unknown]:
    """``value``, or ``default`` where it is None."""
    return default if value is None else value


def as_dict(value: Any) -> Any:
    """Facts as JSON values; an unknown one becomes ``{"unknown": reason}``."""
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    if is_dataclass(value):
        return {entry.name: as_dict(getattr(value, entry.name)) for entry in fields(value) if entry.repr}
    if isinstance(value, Mapping):
        return {str(key): as_dict(entry) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_dict(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return sorted(as_dict(entry) for entry in value)
    return value
