"""Which files cuFileHandleRegister takes, and the error that it returns for the others.

Seen with every release from 1.4.0 to 1.20.0 (tests/loopback/cufile/test_cufile_registration.py).
"""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

from ..facts import HostFacts
from ..facts.storage import Device, Mount
from ..facts.unknown import when_known
from . import reference, shared
from .cause import Cause, Condition, numbers
from .config import library
from .rules import USABLE, rule

#: The first release that returns NEWER for a file that it can't register; those before return OLDER.
CHANGED, OLDER, NEWER = (1, 15), 5030, 5027
#: The first release that registers files for compat mode which no earlier one takes.
SILENT = (1, 16)


def error_of(release: str) -> int:
    """The error for a file whose disk udev doesn't know, or whose filesystem isn't supported."""
    return NEWER if numbers(release) >= CHANGED else OLDER


def failure(facts: HostFacts) -> str:
    """``cuFileHandleRegister fails with …``, by the release of libcufile where that is known."""
    release = library(facts)
    error = error_of(release) if isinstance(release, str) else f"{NEWER} ({OLDER} before libcufile 1.15)"
    return f"cuFileHandleRegister fails with {error}"


def silently(facts: HostFacts) -> Tuple[Cause, ...]:
    """What goes for each file in compat mode: newer releases register it as if nothing were amiss."""
    release = library(facts)
    if not isinstance(release, str) or numbers(release) < SILENT:
        return ()
    return (shared.cause("cufile.silent-compat", (f"libcufile: {release}",)),)


@rule(USABLE, 30)
def udev(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """When a file is registered, libcufile looks up its disk in udev's database."""
    if mount is None or not isinstance(mount.device, Device):
        return
    device, container = mount.device, facts.environment.container
    evidence = (f"/run/udev/data/b{device.number}: no ID_FS_USAGE",)
    what = f"udev has no ID_FS_USAGE for {device.name}, so {failure(facts)}"
    fix = "record it: udevadm trigger --subsystem-match=block; in a container, also mount the host's /run/udev"
    if isinstance(container, str):
        what += f" (this is {container})"
        fix = "start the container with the host's database, read-only: --volume /run/udev:/run/udev:ro"
    cause = Cause("udev.no-database", what, fix, evidence, reference.HANDLE_REGISTER)
    yield Condition(when_known(device.udev_usage, lambda usage: usage is not None), cause)
