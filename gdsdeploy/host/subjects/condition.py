"""What has to hold of a host, and what it means when it doesn't: one type for checks and explanations.

Causes are rows of data/causes.json, with their fixes and references.  A page adds a rule about a path; the rank of the
rule decides its place.  See docs/guides/extend.md.
"""

from __future__ import annotations

import functools
import itertools
import re
from functools import lru_cache
from typing import Any, Callable, Dict, Iterable, Iterator, NamedTuple, Optional, Tuple, TypeVar, Union, cast

from ..facts.document import collected
from ..facts.unknown import Maybe, UndecidedError, Unknown, known
from ..model import causes
from ..model.discovery import import_modules
from .types import HostFacts, Mount

NVIDIA_FS, P2PDMA, COMPAT, BROKEN = "nvidia-fs", "p2pdma", "compat", "broken"
#: How a filesystem or libcufile itself does RDMA with GPU memory: through nvidia-peermem, or as DMA-BUF.
PEERMEM, DMABUF = "peermem", "dmabuf"
DIRECT = (NVIDIA_FS, P2PDMA, PEERMEM, DMABUF)


class Cause(NamedTuple):
    """Why a path is missing, not proven, or slower than it could be."""

    #: stable, e.g. ``nvme.no-hooks``; docs/explain.md lists them all
    id: str
    what: str
    fix: str
    #: its source (a file or program), a colon, and the quoted text
    evidence: Tuple[str, ...] = ()
    #: an official document and its section, by name
    reference: str = ""


class Condition:
    """A requirement of a path, and the cause if it doesn't hold.

    Where ``holds`` is a function that meets a fact which isn't known, it is unknown whether it holds.  A cause
    that is a function is made where it's shown.  ``suspect``: the cause is shown also where it's unknown whether the
    condition holds.
    """

    def __init__(
        self,
        holds: Union[Maybe[bool], Callable[[], Maybe[bool]]],
        cause: Union[Cause, Callable[[], Optional[Cause]], None] = None,
        *,
        suspect: bool = False,
    ) -> None:
        self.holds: Maybe[bool] = known(holds) if callable(holds) else holds
        self.suspect = suspect
        is_shown = self.holds is False or (suspect and isinstance(self.holds, Unknown))
        self.cause = cause if cause is None or isinstance(cause, Cause) else cause() if is_shown else None


def suspicion(cause: Cause) -> Condition:
    """One of which it's unknown whether it holds, because of what the cause says."""
    return Condition(Unknown(cause.what), cause, suspect=True)


F = TypeVar("F", bound=Callable[..., Any])


def condition(function: Callable[..., Condition]) -> Callable[..., Condition]:
    """``function``, whose condition is unknown where it meets a fact that isn't known."""

    @functools.wraps(function)
    def judged(*arguments: Any, **named: Any) -> Condition:
        try:
            return function(*arguments, **named)
        except UndecidedError as error:
            return Condition(Unknown(str(error)))

    return judged


class Verdict(NamedTuple):
    """The result of several conditions: False if one doesn't hold, else unknown if one is unknown, else True."""

    holds: Maybe[bool]
    causes: Tuple[Cause, ...] = ()
    suspects: Tuple[Cause, ...] = ()
    unseen: Tuple[str, ...] = ()

    @property
    def shown(self) -> Tuple[Cause, ...]:
        return (*self.causes, *self.suspects)

    @property
    def why(self) -> Tuple[str, ...]:
        """Why it doesn't hold, or may not: the root cause first."""
        return (*(cause.what for cause in self.shown), *(() if self.causes else self.unseen))


def weigh(conditions: Iterable[Condition]) -> Verdict:
    """All conditions together; one known obstacle decides, whatever else is unknown."""
    conditions = list(conditions)
    unknown = [condition for condition in conditions if isinstance(condition.holds, Unknown)]
    refused = [condition for condition in conditions if condition.holds is False]
    return Verdict(
        holds=False if refused else unknown[0].holds if unknown else True,
        causes=distinct(condition.cause for condition in refused),
        suspects=distinct(condition.cause for condition in unknown if condition.suspect),
        unseen=tuple(dict.fromkeys(c.holds.reason for c in unknown if isinstance(c.holds, Unknown))),
    )


def distinct(causes: Iterable[Optional[Cause]]) -> Tuple[Cause, ...]:
    """Each cause once, in the place where it comes first."""
    first: Dict[Tuple[str, str], Cause] = {}
    for cause in causes:
        if cause is not None:
            first.setdefault((cause.id, cause.what), cause)
    return tuple(first.values())


@lru_cache(maxsize=1024)
def numbers(version: str, parts: int = 2) -> Tuple[int, ...]:
    """The first numbers of a version, e.g. (6, 12) of ``6.12.94+deb13-amd64``; empty where there are none."""
    digits = ("".join(filter(str.isdecimal, word)) for word in re.split("[-+.]", version)[:parts])
    return tuple(map(int, itertools.takewhile(lambda word: 0 < len(word) < 19, digits)))


def is_since(version: Optional[str], first: Tuple[int, ...], part: str) -> bool:
    """Whether the release of a part is ``first`` or newer.  Raises UndecidedError where the host has no such part."""
    return numbers(collected(version, f"this host has no {part} whose version could tell")) >= first


def listed_cause(ident: str, evidence: Tuple[str, ...] = (), what: str = "", fix: str = "", **values: str) -> Cause:
    """The cause with this id; ``what`` and ``fix``: what fits this host better than the row's title and fix.

    values: what the row names in braces.
    """
    row = causes.row(ident, values)
    return Cause(ident, what or row.title, fix or row.fix, evidence, row.reference)


def required(
    holds: Union[Maybe[bool], Callable[[], Maybe[bool]]],
    ident: str,
    evidence: Tuple[str, ...] = (),
    what: str = "",
    fix: str = "",
    *,
    suspect: bool = False,
    **values: str,
) -> Condition:
    """A condition with a cause of the table, if it doesn't hold or may not; see ``listed_cause``."""
    found = known(holds) if callable(holds) else holds
    return Condition(
        found, None if found is True else listed_cause(ident, evidence, what, fix, **values), suspect=suspect
    )


def doubted(ident: str, evidence: Tuple[str, ...] = (), what: str = "", fix: str = "", **values: str) -> Condition:
    """A suspicion with a cause of the table."""
    return suspicion(listed_cause(ident, evidence, what, fix, **values))


#: Subjects of rules.  If USABLE fails, every cuFile call fails; both direct paths need DIRECT.
#: A rule about these, or about NVIDIA_FS or P2PDMA alone, takes facts and a mount, and yields conditions.  The mount is
#: None for a kind of storage: the rule then yields what the host needs, whatever the mount.
USABLE, DIRECT_PATH = "usable", "direct"
#: Advice on a mount: takes facts and a mount, and yields causes.
NOTES = "notes"
ABOUT = (USABLE, DIRECT_PATH, NVIDIA_FS, P2PDMA, NOTES)

_RULES: Dict[str, Dict[int, Callable[..., Any]]] = {about: {} for about in ABOUT}


def rule(about: str, rank: int) -> Callable[[F], F]:
    """Register a function as a rule.  rank: rules run in this order, from the root outwards; each is unique.

    A fact that isn't known ends the rule: with a condition that is unknown, or without a note.
    Raises ValueError for a rank that another rule about the same subject has.
    """

    def register(function: F) -> F:
        guarded = _ended(function, about != NOTES)
        other = _RULES[about].setdefault(rank, guarded)
        if other is not guarded:
            name, taken_by = (f"{rule.__module__}.{rule.__qualname__}" for rule in (function, other))
            raise ValueError(f"{name}: {taken_by} has the rank {rank} about {about}")
        return cast("F", guarded)

    return register


def _ended(function: Callable[..., Iterator[Any]], with_condition: bool) -> Callable[..., Iterator[Any]]:
    @functools.wraps(function)
    def results(*arguments: Any) -> Iterator[Any]:
        try:
            yield from function(*arguments)
        except UndecidedError as error:
            if with_condition:
                yield Condition(Unknown(str(error)))

    return results


@lru_cache(maxsize=len(ABOUT))
def ranked(about: str) -> Tuple[Callable[..., Any], ...]:
    """Every rule about a subject, in the order of their ranks."""
    import_modules(__package__)
    return tuple(function for _, function in sorted(_RULES[about].items()))


def needs(about: str, facts: HostFacts, mount: Optional[Mount] = None) -> Iterator[Condition]:
    """What the rules about USABLE, DIRECT, NVIDIA_FS or P2PDMA require."""
    for function in ranked(about):
        yield from function(facts, mount)
