"""Amazon Linux 2023: RHEL's layout, Amazon's own kernels, and the driver from NVIDIA's repository for it or from AWS'.

A kernel of each series has packages of its own, which stay in that series: ``kernel`` is 6.1, ``kernel6.18`` is 6.18.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gdsdeploy.platform.base import register
from gdsdeploy.platform.rhel import Rhel


@dataclass(frozen=True)
class Amazon(Rhel):
    """The release of 2023."""

    kernels: ClassVar[Mapping[str, str]] = {name: name for name in ("kernel", "kernel6.12", "kernel6.18")}


register(Amazon(os="amazon-2023", family="amazon", release="2023", stack_sources=(), driver_sources=()), rank=32)
