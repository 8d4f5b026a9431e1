"""How many hosts are talked to at the same time: one number for the whole process, which an option sets."""

from __future__ import annotations

import resource

#: Most of a connection's time is waiting for the host, so far more than the processors' number is useful.
DEFAULT, MOST = 128, 1024
#: Open files that one connection may need: its socket, three pipes of paramiko and the proxy's, an event queue; and
#: those of the rest of the process.
_FILES, _OTHERS = 8, 256

_at_once = DEFAULT


def configure(number: int) -> None:
    """Talk to ``number`` hosts at the same time (1 to MOST), from now on."""
    global _at_once
    _at_once = number


def at_once() -> int:
    """Hosts that are talked to at the same time."""
    return _at_once


def allow_files(number: int) -> None:
    """Let this process have the open files of ``number`` connections, as far as the system's hard limit goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = number * _FILES + _OTHERS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
