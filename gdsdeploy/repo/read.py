"""Reads the repositories of a profile, whichever family they are of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gdsdeploy.model.lock import Index
from gdsdeploy.repo import apt, rpm
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.index import Repository
from gdsdeploy.repo.packages import Universe


def read(
    fetcher: Fetcher, repositories: Sequence[Repository], architecture: str, *, now: datetime | None = None
) -> tuple[Universe, tuple[Index, ...]]:
    """Fetch and verify everything that ``repositories``, all of one family, offer for ``architecture``.

    architecture: the package manager's name.  now: aware; the time that dates are compared with.
    Raises RepositoryUnusable naming the address, RepositoryUntrusted naming the file.
    """
    if any(repository.suites for repository in repositories):
        return apt.read(fetcher, repositories, architecture, now=now)
    return rpm.read(fetcher, repositories, architecture, now=now)
