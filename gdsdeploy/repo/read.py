"""Reads the repositories of a profile, whichever family they are of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gdsdeploy.model.lock import Index
from gdsdeploy.repo import apt, rpm
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import Universe

Repository = apt.Repository | rpm.Repository


def read(
    fetcher: Fetcher, repositories: Sequence[Repository], architecture: str, *, now: datetime | None = None
) -> tuple[Universe, tuple[Index, ...]]:
    """Fetch and verify everything that ``repositories``, all of one family, offer for ``architecture``.

    architecture: the package manager's name.  now: aware; the time that dates are held against.
    Raises RepositoryUnusable naming the address, RepositoryUntrusted naming the file.
    """
    of_rpm = [r for r in repositories if isinstance(r, rpm.Repository)]
    if of_rpm:
        return rpm.read(fetcher, of_rpm, architecture, now=now)
    return apt.read(fetcher, [r for r in repositories if isinstance(r, apt.Repository)], architecture, now=now)
