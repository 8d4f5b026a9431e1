"""What an expectation adds to the evidence: things that are looked at only because they are expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from ..expectation import Expectation
from ..places import CUFILE


@dataclass(frozen=True)
class Wanted:
    """What is looked at beyond what always is: ``mounts`` are mount points, or paths on them."""

    packages: Tuple[str, ...] = ()
    cufile_path: str = CUFILE
    mounts: Tuple[str, ...] = ()


NOTHING = Wanted()


def wanted_by(expectation: Expectation) -> Wanted:
    return Wanted(
        packages=tuple(sorted(expectation.packages)),
        cufile_path=expectation.cufile_path or CUFILE,
        mounts=tuple(item["mount"] for item in expectation.storage if "mount" in item),
    )
