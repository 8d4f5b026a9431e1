"""The register of causes: a module of this package adds a rule, and the rank of the rule decides its place.

See docs/guides/extend.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, Optional, Tuple, TypeVar

from ..facts import HostFacts
from ..facts.storage import Mount
from ..model.discovery import import_modules
from .cause import NVIDIA_FS, P2PDMA, Condition

#: Subjects of rules.  If USABLE fails, every cuFile call fails; both direct paths need DIRECT.
#: A rule about these, or about NVIDIA_FS or P2PDMA alone, takes facts and a mount, and yields conditions.  The mount is
#: None for a kind of storage: the rule then yields what the host needs, whatever the mount.
USABLE, DIRECT = "usable", "direct"
#: Advice on a mount: takes facts and a mount, and yields causes.
NOTES = "notes"
#: Takes facts and a :class:`~.modules.Subject` that isn't loaded, and returns a :class:`~.modules.Reason` or None.
NOT_LOADED = "not-loaded"
ABOUT = (USABLE, DIRECT, NVIDIA_FS, P2PDMA, NOTES, NOT_LOADED)

F = TypeVar("F", bound=Callable[..., Any])
_RULES: Dict[str, Dict[int, Callable[..., Any]]] = {about: {} for about in ABOUT}


def rule(about: str, rank: int) -> Callable[[F], F]:
    """Register a function as a rule.  rank: rules run in this order, from the root outwards; each is unique.

    Raises ValueError for a rank that another rule about the same subject has.
    """

    def register(function: F) -> F:
        other = _RULES[about].setdefault(rank, function)
        if other is not function:
            name, taken_by = (f"{rule.__module__}.{rule.__qualname__}" for rule in (function, other))
            raise ValueError(f"{name}: {taken_by} has the rank {rank} about {about}")
        return function

    return register


@lru_cache(maxsize=len(ABOUT))
def ranked(about: str) -> Tuple[Callable[..., Any], ...]:
    """Every rule about a subject, in the order of their ranks."""
    # These use the rules, register none, and aren't always needed.
    import_modules(__name__.rpartition(".")[0], skip=("mechanisms", "text"))
    return tuple(function for _, function in sorted(_RULES[about].items()))


def needs(about: str, facts: HostFacts, mount: Optional[Mount] = None) -> Iterator[Condition]:
    """What the rules about USABLE, DIRECT, NVIDIA_FS or P2PDMA require."""
    for function in ranked(about):
        yield from function(facts, mount)
