"""The parts of an explanation: causes, conditions that hold or not, and the path that follows.

Causes that pasted logs show as well are rows of data/causes.json, with their fixes and references.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Dict, Iterable, Optional, Tuple

from ..facts import Maybe, Unknown
from ..facts.proof import Proof
from ..model import causes

NVIDIA_FS, P2PDMA, COMPAT, BROKEN = "nvidia-fs", "p2pdma", "compat", "broken"
#: How a filesystem or libcufile itself does RDMA with GPU memory: through nvidia-peermem, or as DMA-BUF.
PEERMEM, DMABUF = "peermem", "dmabuf"
DIRECT = (NVIDIA_FS, P2PDMA, PEERMEM, DMABUF)


@dataclass(frozen=True)
class Cause:
    """Why a path is missing, not proven, or slower than it could be."""

    #: stable, e.g. ``nvme.no-hooks``; docs/explain.md lists them all
    id: str
    what: str
    fix: str
    #: its source (a file or program), a colon, and the quoted text
    evidence: Tuple[str, ...] = ()
    #: an official document and its section, by name
    reference: str = ""


@dataclass(frozen=True)
class Condition:
    """A requirement of a path, and the cause if it doesn't hold.

    ``suspect``: the cause is shown also where it's unknown whether the condition holds.
    """

    holds: Maybe[bool]
    cause: Optional[Cause] = None
    suspect: bool = False


@dataclass(frozen=True)
class Path:
    """``path``: one of DIRECT, ``compat`` or ``broken``; unknown where the evidence isn't conclusive."""

    path: Maybe[str]
    #: why there is no direct path, the root cause first
    causes: Tuple[Cause, ...]
    #: whether the host has a GPU; without one nothing can be proven
    gpu: Maybe[bool]
    #: what may prevent the direct path, where ``path`` is unknown because of it
    suspects: Tuple[Cause, ...] = ()
    #: why the unknown facts are unknown
    unseen: Tuple[str, ...] = ()
    #: what slows the direct path down, or excludes some files or GPUs from it
    notes: Tuple[Cause, ...] = ()
    #: what a read through cuFile showed, with each GPU; empty where none was tried
    proofs: Tuple[Proof, ...] = ()

    @property
    def proven(self) -> Optional[Maybe[str]]:
        """The worst path that was proven with any GPU, unknown where one was not proven; None: nothing was tried."""
        shown = [proof.path for proof in self.proofs]
        for path in (BROKEN, COMPAT):
            if path in shown:
                return path
        return next((path for path in shown if isinstance(path, Unknown)), shown[0] if shown else None)

    @property
    def surprise(self) -> str:
        """How the proven path differs from the expected one; empty where they agree or one is unknown."""
        proven = self.proven
        if proven is None or isinstance(proven, Unknown) or isinstance(self.path, Unknown) or proven == self.path:
            return ""
        return f"all other evidence on this host says {self.path}, but I/O shows {proven}"


@dataclass(frozen=True)
class Verdict:
    """The result of several conditions: False if one doesn't hold, else unknown if one is unknown, else True."""

    holds: Maybe[bool]
    causes: Tuple[Cause, ...] = ()
    suspects: Tuple[Cause, ...] = ()
    unseen: Tuple[str, ...] = ()


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


def listed_cause(ident: str, evidence: Tuple[str, ...] = (), what: str = "") -> Cause:
    """The cause with this id; ``what``: what this host adds to the row's title, or says instead."""
    row = causes.row(ident)
    return Cause(ident, what or row.title, row.fix, evidence, row.reference)
