"""The register of causes: a module of this package adds a rule, and the rank of the rule decides its place.

See docs/howto/add-a-cause.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, TypeVar

from ..facts import HostFacts
from ..facts.storage import Mount
from ..model.discovery import import_modules
from .cause import NVIDIA_FS, P2PDMA, Cause, Condition

#: What a rule may be about.  Without what is usable every cuFile call fails; both direct paths need what is direct.
#: A rule about these, or about NVIDIA_FS or P2PDMA alone, takes facts and a mount, and yields conditions.  The mount is
#: None where a kind of storage is judged: the rule then yields what the host needs, whatever the mount.
USABLE, DIRECT = "usable", "direct"
#: Advice on a mount: takes facts and a mount, and yields causes.
NOTES = "notes"
#: Takes facts and a :class:`~.modules.Subject` that isn't loaded, and returns a :class:`~.modules.Reason` or None.
NOT_LOADED = "not-loaded"
ABOUT = (USABLE, DIRECT, NVIDIA_FS, P2PDMA, NOTES, NOT_LOADED)

F = TypeVar("F", bound=Callable[..., Any])
_RULES: Dict[str, List[Tuple[int, str, Callable[..., Any]]]] = {about: [] for about in ABOUT}


def rule(about: str, rank: int) -> Callable[[F], F]:
    """Register a function as a rule.  rank: rules are asked in its order, from the root outwards; taken once.

    Raises ValueError for a rank that another rule about the same has.
    """

    def register(function: F) -> F:
        name = f"{function.__module__}.{function.__qualname__}"
        taken = [other for number, other, _ in _RULES[about] if number == rank]
        if taken:
            raise ValueError(f"{name}: {taken[0]} has the rank {rank} about {about}")
        _RULES[about].append((rank, name, function))
        return function

    return register


@lru_cache(maxsize=len(ABOUT))
def ranked(about: str) -> Tuple[Callable[..., Any], ...]:
    """Every rule about something, in the order of their ranks."""
    # These ask for causes, have no rules, and aren't always needed.
    import_modules(__name__.rpartition(".")[0], skip=("mechanisms", "text"))
    return tuple(function for _, _, function in sorted(_RULES[about], key=lambda entry: entry[0]))


def needs(about: str, facts: HostFacts, mount: Optional[Mount] = None) -> Iterator[Condition]:
    """What the rules about USABLE, DIRECT, NVIDIA_FS or P2PDMA ask for."""
    for function in ranked(about):
        yield from function(facts, mount)


def notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """What the rules about NOTES say of a mount."""
    for function in ranked(NOTES):
        yield from function(facts, mount)
