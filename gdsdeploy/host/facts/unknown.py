"""The third value: what the evidence does not say.  It never counts as an answer, and asking it for one says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, TypeVar, Union

Value = TypeVar("Value")


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be established, and why."""

    reason: str

    def __bool__(self) -> bool:
        """Neither true nor false: code that forgets to ask first must fail in its tests, not in its answers."""
        raise TypeError(f"this is not known: {self.reason}")


#: A fact that may not be known.
Maybe = Union[Value, Unknown]


class UndecidedError(Exception):
    """A check met an unknown fact; the message is the reason."""


def known(value: Union[Value, Unknown]) -> Value:
    """Return ``value``; raises UndecidedError if it is unknown."""
    if isinstance(value, Unknown):
        raise UndecidedError(value.reason)
    return value


def why_not(value: object, absent: str) -> Unknown:
    """The reason why there is no value: its own if it is unknown, else ``absent``."""
    return value if isinstance(value, Unknown) else Unknown(absent)


def test(value: Union[Value, Unknown], predicate: Callable[[Value], bool]) -> Union[bool, Unknown]:
    """Whether ``predicate`` holds for ``value``; an unknown value stays unknown."""
    return value if isinstance(value, Unknown) else predicate(value)
