"""What an expectation adds to the evidence: packages, mounts and files that are collected only if expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from ..model.expectation import Expectation
from ..odirect.load_limits import LONGEST, SECONDS
from ..paths import CUFILE


@dataclass(frozen=True)
class EvidenceRequest:
    """What is collected in addition to the rest: ``mounts`` are mount points, or paths on them."""

    packages: Tuple[str, ...] = ()
    cufile_path: str = CUFILE
    mounts: Tuple[str, ...] = ()
    #: mount points on which a scratch file may be made, for the audit of direct I/O and the proof of the path
    scratch: Tuple[str, ...] = ()
    #: (mount point, seconds): mounts that are read from under load
    load: Tuple[Tuple[str, float], ...] = ()
    #: whether GPU memory may be registered with RDMA adapters
    registration: bool = False
    #: whether package repositories and their keys are collected
    sources: bool = False
    #: what the modules are audited against
    expectation: Optional[Expectation] = None


NOTHING = EvidenceRequest()


def request_for(expectation: Expectation, load: bool = False) -> EvidenceRequest:
    """What is collected for ``expectation``; ``load``: also the rate of its mounts, where it has thresholds."""
    points = {mount["mount"]: mount for mount in expectation.storage if "mount" in mount}
    scratch = tuple(point for point, mount in points.items() if mount.get("scratch") != "no")
    limits = {point: points[point].get("load") for point in scratch if load}
    return EvidenceRequest(
        load=tuple(
            (point, min(LONGEST, float(limit.get("seconds", SECONDS))))
            for point, limit in limits.items()
            if isinstance(limit, dict)
        ),
        expectation=expectation,
        registration=expectation.rdma != "none",
        packages=tuple(sorted(expectation.packages)),
        cufile_path=expectation.cufile_path or CUFILE,
        mounts=tuple(points),
        scratch=scratch,
    )
