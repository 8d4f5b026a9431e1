"""What one run of gdscheck said, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Tuple

#: Some storage has a direct path, some GPU can take it, and nothing in the report rules it out.
DIRECT = "direct"
#: The report is whole, and no I/O would take a direct path.
COMPAT = "compat"
#: The report claims a direct path that its own versions rule out.
BROKEN = "broken"
#: The library gave up, and said so.
REFUSED = "refused"
#: A log without a report, whose errors don't say that the library gave up: they are about calls, files or the platform.
ERRORS = "errors"
#: The text is cut, mixed, or none of gdscheck's: nothing follows from it.
UNKNOWN = "unknown"
VERDICTS = (DIRECT, COMPAT, BROKEN, REFUSED, ERRORS, UNKNOWN)


@dataclass(frozen=True)
class Row:
    """A storage row as printed.  ``supported``: whether a direct path is claimed; None: the report does not say."""

    value: str
    supported: Optional[bool]
    #: since 1.16, all that is offered, e.g. ``nvfs``, ``compat``
    paths: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """A GPU row; ``bar_mib`` is the size of BAR1 in MiB; ``reason`` says why it has no direct path."""

    index: int
    name: str
    gds: bool
    bar_mib: Optional[int] = None
    iommu: str = ""
    reason: str = ""
    #: number of the BAR
    bar: Optional[int] = None


@dataclass(frozen=True)
class Report:
    """What one run said."""

    release: str
    #: of the loaded module, major.minor; empty while none is loaded
    nvidia_fs: str
    nvidia_fs_minimum: str
    environment: Mapping[str, str]
    storage: Mapping[str, Row]
    rdma: Mapping[str, str]
    config: Mapping[str, str]
    gpus: Tuple[Gpu, ...]
    platform: Mapping[str, str]
    #: lines in which the library says why it stopped; of a log, every line of level ERROR before the report ended
    errors: Tuple[str, ...]
    #: lines that are no row and no known remark
    strays: Tuple[str, ...]
    #: the report can be believed to be one whole run
    complete: bool
    exit_status: Optional[int]
    verdict: str
    #: known remarks that came between the rows
    remarks: Tuple[str, ...] = ()
    #: why a claimed direct path cannot be
    contradictions: Tuple[str, ...] = ()
    #: of a log: lines of level ERROR after the report, about I/O
    later: Tuple[str, ...] = ()
    #: sections that were seen to their end, by the name of their table
    sections: Tuple[str, ...] = ()
    #: made from a libcufile log
    log: bool = False
    #: no CUDA or no GPU was there, and the library serves host memory only
    sysmem: bool = False
