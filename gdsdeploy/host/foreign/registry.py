"""One recognizer for each kind, registered by existing in a module of this package."""

from __future__ import annotations

from typing import Callable, Dict, List, Optional, Tuple

from ..facts.foreign import ForeignFacts
from ..facts.unknown import UndecidedError
from ..model.discovery import import_modules
from .model import ForeignInstall, Locked, kinds

#: Returns None where the host has nothing of the kind; raises UndecidedError where that isn't known.
Recognizer = Callable[[ForeignFacts, Locked], Optional[ForeignInstall]]

RECOGNIZERS: Dict[str, Recognizer] = {}


def recognizer(ident: str) -> Callable[[Recognizer], Recognizer]:
    """Register a function for the kind ``ident``; raises ValueError for a second one."""

    def register(function: Recognizer) -> Recognizer:
        if ident in RECOGNIZERS:
            raise ValueError(f"two recognizers are for {ident}")
        RECOGNIZERS[ident] = function
        return function

    return register


def findings(facts: ForeignFacts, locked: Locked) -> Tuple[Tuple[ForeignInstall, ...], Tuple[str, ...]]:
    """What is on the host, in the order of the table; and why some kinds are unknown, each reason once."""
    import_modules(__name__.rpartition(".")[0])
    installs: List[ForeignInstall] = []
    reasons: Dict[str, None] = {}
    for ident in kinds():
        try:
            result = RECOGNIZERS[ident](facts, locked)
        except UndecidedError as undecided:
            reasons[str(undecided)] = None
            continue
        if result is not None and result.traces:
            installs.append(result)
    return tuple(installs), tuple(reasons)
