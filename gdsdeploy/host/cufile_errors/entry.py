"""The shape of an entry: what a code means, and what to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Tuple

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
    releases: str
    #: which runs returned it; the causes of other codes come from the libraries' messages and NVIDIA's documentation
    seen: str = ""
    #: names that other releases gave the number
    other_names: Tuple[str, ...] = ()


def entry_from(causes: Tuple[Dict[str, str], ...], **fields: Any) -> Entry:
    """An entry of the table, whose causes are objects."""
    return Entry(causes=tuple(Cause(**cause) for cause in causes), **fields)
