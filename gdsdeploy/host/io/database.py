"""Which package manager a system has, by its database."""

from __future__ import annotations

import os

from ..rootdir import inside

DPKG, RPM = "dpkg", "rpm"
_STATUS = "/var/lib/dpkg/status"
_RPM = ("/var/lib/rpm", "/usr/lib/sysimage/rpm")


def manager(root: str = "/") -> str:
    """``dpkg``, ``rpm``, or nothing where neither has a database.

    Each is also a package of the other's systems, where dpkg's database is empty.
    """
    status = inside(root, _STATUS)
    is_rpm = any(os.path.isdir(inside(root, path)) for path in _RPM)
    if os.path.exists(status) and (os.path.getsize(status) or not is_rpm):
        return DPKG
    return RPM if is_rpm else ""
