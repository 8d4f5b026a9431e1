"""Which sources a host lacks, given those it has, and which are for the stack alone.  Pure.

apt takes each index only once, signed one way.
"""

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


#: For ``apt-get indextargets --format``: what :func:`exclusive` reads; ``|`` is in no field of a Release file we know.
TARGET_FORMAT = "$(SOURCESENTRY)|$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(RELEASE)|$(CODENAME)"
OURS = "/gdsdeploy.sources:"


def exclusive(targets: Iterable[str], wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Sources that we configured for the stack alone, as ``{"uri", "release"}`` with apt's words for its releases.

    targets: lines of ``apt-get indextargets`` in TARGET_FORMAT.  wanted: the lock's indices: uri, suite, exclusive.
    A source that the host had already is the host's to use, and one that cannot be told by the names in its Release
    file from another source, such as the system's own, is closed by nothing; for both, only the packages of the stack
    are pinned.
    """
    found: dict[str, str] = {}
    others: set[str] = set()
    for line in targets:
        entry, uri, origin, label, suite, codename = (line.split("|") + [""] * 6)[:6]
        given = (("o", origin), ("l", label), ("n", codename))
        names = ",".join(f"{key}={value}" for key, value in given if value.strip("./") and "," not in value)
        asked = [i for i in wanted if _same(i["uri"], uri) and i.get("suite", suite).strip("./") == suite.strip("./")]
        if OURS not in entry or not asked or not all(i["exclusive"] for i in asked):
            others.add(names)
        elif names:
            found[f"{uri} {suite}".rstrip("./ ")] = names
    return [{"uri": uri, "release": names} for uri, names in sorted(found.items()) if names not in others]


def _same(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")
