"""Reads the repositories of a profile, whichever family they are of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.model.lock import Index
from gdsdeploy.repo import apt, rpm
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import Universe
from gdsdeploy.repo.repository import Repository


def read(
    fetcher: Fetcher, repositories: Sequence[Repository], architecture: str, *, now: datetime | None = None
) -> tuple[Universe, tuple[Index, ...]]:
    """Fetch and verify everything that ``repositories``, all of one family, offer for ``architecture``.

    architecture: the package manager's name.  now: aware; the time that dates are compared with.
    Raises RepositoryUnusable naming the address, RepositoryUntrusted naming the file.
    """
    for repository in repositories:
        _require_folder(repository)
    if any(repository.suites for repository in repositories):
        return apt.read(fetcher, repositories, architecture, now=now)
    return rpm.read(fetcher, repositories, architecture, now=now)


def _require_folder(repository: Repository) -> None:
    """Raise RepositoryUnusable for a folder (``file://``) that this machine doesn't have."""
    parts = urlsplit(repository.uri)
    folder = Path(unquote(parts.path))
    if parts.scheme == "file" and not folder.is_dir():
        raise RepositoryUnusable(
            f"repository {repository.name}: this machine has no folder {folder}",
            hint="Its index is read here, as hosts read it there: unpack its package into the same folder, or set `uri`"
            " to a server that has it, such as NVIDIA's network repository (docs/repositories.md)",
        )
