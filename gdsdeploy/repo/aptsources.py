"""The controller's own apt sources, from which a repository without ``uri`` in the fleet file takes its address.

Apart from apt.py, whose imports download: verbs that only validate read addresses, too.
"""

from __future__ import annotations

from pathlib import Path

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.host.apply.packages.aptsources import SUFFIXES, Source, SourcesError, parse_sources


def controller_sources(etc: Path = Path("/etc/apt")) -> list[Source]:
    """Every enabled source of this machine, in apt's order; an empty list where there is no apt.

    Raises RepositoryUnusable naming a file that cannot be read, or the line that apt would not accept either.
    """
    files = [etc / "sources.list"]
    parts = etc / "sources.list.d"
    if parts.is_dir():
        files += sorted(p for p in parts.iterdir() if p.suffix in SUFFIXES)
    sources: list[Source] = []
    for path in files:
        if not path.is_file():
            continue
        try:
            sources += parse_sources(path.read_text(encoding="utf-8", errors="replace"), str(path))
        except OSError as error:
            hint = "Make it readable, or set `uri` of each repository in the fleet file"
            raise RepositoryUnusable(f"{path}: cannot be read: {error.strerror}", hint=hint) from error
        except SourcesError as error:
            raise RepositoryUnusable(error.message, hint=error.hint) from None
    return sources
