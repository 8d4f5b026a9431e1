"""Which sources a host lacks, given those it has: apt takes each index only once, signed one way.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdsdeploy.repo.aptsources import Source, parse_sources


@dataclass(frozen=True)
class Stanza:
    """An entry to add: what apt would otherwise not read."""

    uri: str
    suite: str
    components: tuple[str, ...]
    #: None: the host trusts its own keys for this index, and apt accepts no second opinion
    signed_by: str | None


def sources_from_grep(lines: Iterable[str]) -> list[Source]:
    """The sources in the output of ``grep --with-filename '' FILE…``; file names hold no colon there."""
    files: dict[str, list[str]] = {}
    for line in lines:
        name, _, text = line.partition(":")
        files.setdefault(name, []).append(text)
    return [source for name, text in files.items() for source in parse_sources("\n".join(text) + "\n", name)]


def lacking(existing: Sequence[Source], wanted: Sequence[Mapping[str, Any]]) -> list[Stanza]:
    """Entries for those components of ``wanted`` that no source in ``existing`` has.

    wanted: the lock's indices: uri, suite, components, host_keyring.
    """
    found = []
    for index in wanted:
        same = [s for s in existing if "deb" in s.types and s.suite == index["suite"] and _same(s.uri, index["uri"])]
        have = {component for source in same for component in source.components}
        components = tuple(c for c in index["components"] if c not in have)
        flat_is_there = not index["components"] and same
        if (index["components"] and not components) or flat_is_there:
            continue
        signed_by = same[0].signed_by if same else index["host_keyring"]
        found.append(Stanza(index["uri"], index["suite"], components, signed_by))
    return found


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")
