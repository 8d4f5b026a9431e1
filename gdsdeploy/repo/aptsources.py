"""The controller's own apt configuration: where it gets each archive from.

A fleet file need not repeat a mirror that the machine already uses; a repository without ``uri`` takes the
address from here.  Both formats of sources.list(5) are read: deb822 (``*.sources``) and one-line (``*.list``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from debian.deb822 import Deb822

from gdsdeploy.errors import RepositoryUnusable

#: apt ignores files with other endings in sources.list.d.
SUFFIXES = (".list", ".sources")

_FALSE = {"no", "false", "without", "off", "disable"}


@dataclass(frozen=True)
class Source:
    """One address and one suite of one entry; an entry with several of either yields one Source for each pair."""

    #: ``deb``, ``deb-src`` or both
    types: tuple[str, ...]
    uri: str
    #: with a trailing ``/``: a flat repository, which has no components
    suite: str
    components: tuple[str, ...]
    #: keyring path, fingerprints, or a whole armoured key, as the file has it
    signed_by: str | None
    #: empty: every architecture of the machine
    architectures: tuple[str, ...] = ()
    #: the file it stands in
    filename: str = ""


def controller_sources(etc: Path = Path("/etc/apt")) -> list[Source]:
    """Every enabled source of this machine, in apt's order; an empty list where there is no apt.

    Raises RepositoryUnusable naming a file that cannot be read, or the line that apt would not accept either.
    """
    files = [etc / "sources.list"]
    parts = etc / "sources.list.d"
    if parts.is_dir():
        files += sorted(p for p in parts.iterdir() if p.suffix in SUFFIXES)
    found: list[Source] = []
    for path in files:
        if not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise RepositoryUnusable(
                f"{path}: cannot be read: {error.strerror}",
                hint="Make it readable, or set `uri` of each repository in the fleet file",
            ) from error
        found += parse_sources(text, str(path))
    return found


def parse_sources(text: str, filename: str) -> list[Source]:
    """The enabled sources in ``text``; the ending of ``filename`` tells the format.

    Raises RepositoryUnusable naming the place of an entry that is not complete.
    """
    if filename.endswith(".sources"):
        return list(_deb822(text, filename))
    return list(_lines(text, filename))


def _deb822(text: str, filename: str) -> Iterator[Source]:
    for number, entry in enumerate(Deb822.iter_paragraphs(text, use_apt_pkg=False), start=1):
        if entry.get("Enabled", "yes").strip().lower() in _FALSE:
            continue
        for required in ("Types", "URIs", "Suites"):
            if not entry.get(required, "").split():
                raise RepositoryUnusable(f"{filename}: entry {number} has no {required}")
        for uri in entry["URIs"].split():
            for suite in entry["Suites"].split():
                yield Source(
                    types=tuple(entry["Types"].split()),
                    uri=uri,
                    suite=suite,
                    components=tuple(entry.get("Components", "").split()),
                    signed_by=entry.get("Signed-By", "").strip() or None,
                    architectures=tuple(entry.get("Architectures", "").split()),
                    filename=filename,
                )


_LINE = re.compile(r"^(deb|deb-src)\s+(?:\[\s*([^\]]*)\]\s+)?(\S+)\s+(\S+)((?:\s+\S+)*)\s*$")


def _lines(text: str, filename: str) -> Iterator[Source]:
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.split("#", 1)[0].strip()
        if not entry:
            continue
        match = _LINE.match(entry)
        if match is None:
            raise RepositoryUnusable(f"{filename}:{number}: not an apt source: {entry}")
        kind, bracket, uri, suite, components = match.groups()
        options = dict(word.split("=", 1) for word in (bracket or "").split() if "=" in word)
        yield Source(
            types=(kind,),
            uri=uri,
            suite=suite,
            components=tuple(components.split()),
            signed_by=options.get("signed-by"),
            architectures=tuple(filter(None, options.get("arch", "").split(","))),
            filename=filename,
        )
