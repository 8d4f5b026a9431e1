"""What an expectation adds to the evidence: things that are looked at only because they are expected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from ..expectation import Expectation

#: Where libcufile looks first, in every release (seen in 1.4.0 to 1.20.0).
CUFILE_PATH = "/etc/cufile.json"


@dataclass(frozen=True)
class Wanted:
    """Package names, the configuration file of libcufile, and mount points, beyond what is always collected."""

    packages: Tuple[str, ...] = ()
    cufile_path: str = CUFILE_PATH
    mounts: Tuple[str, ...] = ()


NOTHING = Wanted()


def wanted_by(expectation: Expectation) -> Wanted:
    return Wanted(
        packages=tuple(sorted(expectation.packages)),
        cufile_path=expectation.cufile_path or CUFILE_PATH,
        mounts=tuple(item["mount"] for item in expectation.storage if "mount" in item),
    )
