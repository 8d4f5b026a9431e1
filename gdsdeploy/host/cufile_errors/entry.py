"""The shape of an entry: what a code means, and what to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

#: Families of codes, by who defines the number.
CUFILE, CUDA, ERRNO, RDMA = "cufile", "cuda", "errno", "rdma"


@dataclass(frozen=True)
class Cause:
    """One usual cause: ``evidence`` says where it shows, ``fix`` what to do."""

    what: str
    evidence: str
    fix: str


@dataclass(frozen=True)
class Entry:
    """One code.

    ``code`` is the number as its family counts it: 5027 (cufile), 100 (cuda: a CUresult), 22 (errno), 6001 (rdma).
    """

    family: str
    code: int
    name: str
    meaning: str
    #: most usual first
    causes: Tuple[Cause, ...]
    #: the releases of libcufile that have it, as far as their libraries and headers show
    releases: str = "1.4 to 1.20"
    #: where it was seen in a run
    seen: str = ""
    #: names that other releases gave the number
    other_names: Tuple[str, ...] = ()


def cufile(
    offset: int,
    name: str,
    meaning: str,
    *causes: Cause,
    releases: str = "1.4 to 1.20",
    seen: str = "",
    other_names: Tuple[str, ...] = (),
) -> Entry:
    """The cuFile code 5000 + ``offset``; its name without ``CU_FILE_``."""
    return Entry(CUFILE, 5000 + offset, "CU_FILE_" + name, meaning, causes, releases, seen, other_names)
