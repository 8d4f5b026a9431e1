"""The words of an explanation: causes, conditions that hold or not, and the path that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, List, Optional, Sequence, Tuple

from ..facts import Maybe, Unknown
from ..facts.proof import Proof

NVIDIA_FS, P2PDMA, COMPAT, BROKEN = "nvidia-fs", "p2pdma", "compat", "broken"
DIRECT = (NVIDIA_FS, P2PDMA)


@dataclass(frozen=True)
class Cause:
    """Why a path is not there, or not sure, or slower than it could be."""

    #: stable, e.g. ``nvme.no-hooks``; all are in docs/explain.md
    id: str
    what: str
    fix: str
    #: where it was seen: a file or program, a colon, and its own words
    evidence: Tuple[str, ...] = ()
    #: an official document and its section, by name
    reference: str = ""


@dataclass(frozen=True)
class Condition:
    """What a path needs, and the cause if it does not hold.

    ``suspect``: the cause is shown also where it is not known whether it holds.
    """

    holds: Maybe[bool]
    cause: Optional[Cause] = None
    suspect: bool = False


@dataclass(frozen=True)
class Path:
    """``path``: ``nvidia-fs``, ``p2pdma``, ``compat`` or ``broken``; unknown where the evidence does not decide it."""

    path: Maybe[str]
    #: in order, the root first: why there is no direct path
    causes: Tuple[Cause, ...]
    #: whether the host has a GPU at all; without one nothing can be proven
    gpu: Maybe[bool]
    #: what may keep the direct path from working, where ``path`` is unknown because of it
    suspects: Tuple[Cause, ...] = ()
    #: why what is not known is not known
    unseen: Tuple[str, ...] = ()
    #: what slows the direct path down, or keeps some files or some GPUs from it
    notes: Tuple[Cause, ...] = ()
    #: what a read through cuFile showed, with each GPU; empty where none was tried
    proofs: Tuple[Proof, ...] = ()

    @property
    def proven(self) -> Optional[Maybe[str]]:
        """The worst path that was proven with any GPU, unknown where one was not proven; None: nothing was tried."""
        shown = [item.path for item in self.proofs]
        for path in (BROKEN, COMPAT):
            if path in shown:
                return path
        return next((path for path in shown if isinstance(path, Unknown)), shown[0] if shown else None)

    @property
    def surprise(self) -> str:
        """That what was proven is not what everything else says, empty where they agree or one is not known."""
        proven = self.proven
        if proven is None or isinstance(proven, Unknown) or isinstance(self.path, Unknown) or proven == self.path:
            return ""
        return f"everything else on this host says {self.path}, and I/O shows {proven}"


@dataclass(frozen=True)
class Verdict:
    """What a list of conditions comes to: False if one does not hold, else unknown if one is, else True."""

    holds: Maybe[bool]
    causes: Tuple[Cause, ...] = ()
    suspects: Tuple[Cause, ...] = ()
    unseen: Tuple[str, ...] = ()


def weigh(conditions: Iterable[Condition]) -> Verdict:
    """All conditions together; one known obstacle decides, whatever else is unknown."""
    items = list(conditions)
    causes = [item.cause for item in items if item.holds is False and item.cause is not None]
    unknown = [item for item in items if isinstance(item.holds, Unknown)]
    refused = any(item.holds is False for item in items)
    return Verdict(
        holds=False if refused else _first(unknown) if unknown else True,
        causes=distinct(causes),
        suspects=distinct([item.cause for item in unknown if item.suspect and item.cause is not None]),
        unseen=tuple(dict.fromkeys(item.holds.reason for item in unknown if isinstance(item.holds, Unknown))),
    )


def _first(items: Sequence[Condition]) -> Maybe[bool]:
    return items[0].holds


def distinct(causes: Iterable[Cause]) -> Tuple[Cause, ...]:
    """Each cause once, where it comes first."""
    found: List[Cause] = []
    for cause in causes:
        if all((cause.id, cause.what) != (item.id, item.what) for item in found):
            found.append(cause)
    return tuple(found)


def numbers(version: str, parts: int = 2) -> Tuple[int, ...]:
    """The first numbers of a version, e.g. (6, 12) of ``6.12.94+deb13-amd64``; empty where there are none."""
    words = version.replace("-", ".").replace("+", ".").split(".")
    found: List[int] = []
    for word in words[:parts]:
        digits = "".join(letter for letter in word if letter.isdecimal())
        if not 0 < len(digits) < 19:
            break
        found.append(int(digits))
    return tuple(found)
