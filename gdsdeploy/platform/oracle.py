"""Oracle Linux: a rebuild of RHEL with a second kernel, Oracle's UEK.

The flavour ``kernel`` is the Red Hat compatible kernel, ``uek`` the Unbreakable Enterprise Kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gdsdeploy.platform.base import register
from gdsdeploy.platform.rhel import Rhel, refuse_8


@dataclass(frozen=True)
class Oracle(Rhel):
    """One major release."""

    kernels: ClassVar[Mapping[str, str]] = {"kernel": "kernel", "uek": "kernel-uek"}


register(
    *(
        Oracle(os=f"oracle-{release}", family="rhel", release=release, stack_sources=(), driver_sources=())
        for release in ("9", "10")
    ),
    rank=31,
)
refuse_8("oracle")
