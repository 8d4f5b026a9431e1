"""What an expectation adds to the evidence: things that are looked at only because they are expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Optional, Tuple

from ..model.expectation import Expectation
from ..odirect.load_limits import LONGEST, SECONDS
from ..paths import CUFILE


@dataclass(frozen=True)
class Wanted:
    """What is looked at beyond what always is: ``mounts`` are mount points, or paths on them."""

    packages: Tuple[str, ...] = ()
    cufile_path: str = CUFILE
    mounts: Tuple[str, ...] = ()
    #: mount points on which a scratch file may be made, for the audit of direct I/O and the proof of the path
    scratch: Tuple[str, ...] = ()
    #: (mount point, seconds): mounts that are read from under load
    load: Tuple[Tuple[str, float], ...] = ()
    #: what the modules are audited against
    expectation: Optional[Expectation] = None


NOTHING = Wanted()


def wanted_by(expectation: Expectation, load: bool = False) -> Wanted:
    """What is looked at for ``expectation``; ``load``: also how much its mounts deliver, where it has thresholds."""
    return Wanted(
        load=tuple(_loads(expectation)) if load else (),
        expectation=expectation,
        packages=tuple(sorted(expectation.packages)),
        cufile_path=expectation.cufile_path or CUFILE,
        mounts=tuple(item["mount"] for item in expectation.storage if "mount" in item),
        scratch=tuple(item["mount"] for item in expectation.storage if "mount" in item and item.get("scratch") != "no"),
    )


def _loads(expectation: Expectation) -> Iterator[Tuple[str, float]]:
    for item in expectation.storage:
        limits = item.get("load")
        if "mount" in item and isinstance(limits, dict) and item.get("scratch") != "no":
            yield item["mount"], min(LONGEST, float(limits.get("seconds", SECONDS)))
