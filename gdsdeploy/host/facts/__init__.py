"""The facts of a host, read from its evidence.  Everything here is pure: a document in, frozen values out.

A fact that the evidence doesn't decide is Unknown, with the reason, and never a guess.

Each kind of facts has its module.  The names here are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .host_facts import HostFacts, facts_from
    from .unknown import Maybe, UndecidedError, Unknown, as_dict, require

__all__ = ["HostFacts", "Maybe", "UndecidedError", "Unknown", "as_dict", "facts_from", "require"]

_UNKNOWN = ("Maybe", "UndecidedError", "Unknown", "as_dict", "require")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".unknown" if name in _UNKNOWN else ".host_facts", __name__), name)
