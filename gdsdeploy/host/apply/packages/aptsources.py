"""apt's sources: those that a host has, those it lacks, and those that are for the stack alone.  Pure.

Both formats of sources.list(5) are read: deb822 (``*.sources``) and one-line (``*.list``).  apt takes each index only
once, signed one way; so what a host has stays as it is, and only what it lacks is added.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ...errors import HostError
from .managers import Index

#: apt ignores files with other endings in sources.list.d.
SUFFIXES = (".list", ".sources")
#: For ``apt-get indextargets --format``: what :func:`exclusive` reads; ``|`` is in no field of a Release file we know.
TARGET_FORMAT = "$(SOURCESENTRY)|$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(RELEASE)|$(CODENAME)"
_OURS = "/gdsdeploy.sources:"
_ABSENT = re.compile(r"\$\([A-Z]+\)")
_LOCAL = re.compile(r"^file:/+")
_FALSE = {"no", "false", "without", "off", "disable"}
_LINE = re.compile(r"^(deb|deb-src)\s+(?:\[\s*([^\]]*)\]\s+)?(\S+)\s+(\S+)((?:\s+\S+)*)\s*$")


class SourcesError(HostError):
    """An entry that apt wouldn't accept either; the message names its place."""


@dataclass(frozen=True)
class Source:
    """One address and one suite of one entry; an entry with several of either yields one Source for each pair."""

    #: ``deb``, ``deb-src`` or both
    types: Tuple[str, ...]
    uri: str
    #: with a trailing ``/``: a flat repository, which has no components
    suite: str
    components: Tuple[str, ...]
    #: keyring path, fingerprints, or a whole armoured key, as the file has it
    signed_by: Optional[str]
    #: empty: every architecture of the machine
    architectures: Tuple[str, ...] = ()
    #: the file it stands in
    filename: str = ""


@dataclass(frozen=True)
class Stanza:
    """An entry to add: what apt would otherwise not read."""

    uri: str
    suite: str
    components: Tuple[str, ...]
    #: None: the host trusts its own keys for this index, and apt accepts no second opinion
    signed_by: Optional[str]


def parse_sources(text: str, filename: str) -> List[Source]:
    """The enabled sources in ``text``; the ending of ``filename`` tells the format.  Raises SourcesError."""
    return list((_deb822 if filename.endswith(".sources") else _lines)(text, filename))


def _deb822(text: str, filename: str) -> Iterator[Source]:
    for number, entry in enumerate(_paragraphs(text), start=1):
        if entry.get("enabled", "yes").strip().lower() in _FALSE:
            continue
        for required in ("Types", "URIs", "Suites"):
            if not entry.get(required.lower(), "").split():
                raise SourcesError(f"{filename}: entry {number} has no {required}")
        for uri in entry["uris"].split():
            for suite in entry["suites"].split():
                yield Source(
                    types=tuple(entry["types"].split()),
                    uri=uri,
                    suite=suite,
                    components=tuple(entry.get("components", "").split()),
                    signed_by=entry.get("signed-by", "").strip() or None,
                    architectures=tuple(entry.get("architectures", "").split()),
                    filename=filename,
                )


def _paragraphs(text: str) -> Iterator[Dict[str, str]]:
    """Fields of each paragraph by their names in lower case; lines that continue a field keep their first space."""
    fields: Dict[str, str] = {}
    name = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t":
            if name:
                fields[name] += "\n" + line.rstrip()
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()


def _lines(text: str, filename: str) -> Iterator[Source]:
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.split("#", 1)[0].strip()
        if not entry:
            continue
        match = _LINE.match(entry)
        if match is None:
            raise SourcesError(f"{filename}:{number}: not an apt source: {entry}")
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


def missing_stanzas(existing: Sequence[Source], indices: Sequence[Index]) -> List[Stanza]:
    """Entries for those components of ``indices`` that no source in ``existing`` has."""
    stanzas = []
    for index in indices:
        same = [s for s in existing if "deb" in s.types and s.suite == index.suite and _same(s.uri, index.uri)]
        present = {component for source in same for component in source.components}
        components = tuple(c for c in index.components if c not in present)
        if (index.components and not components) or (not index.components and same):
            continue
        signed_by = same[0].signed_by if same else index.host_keyring
        stanzas.append(Stanza(index.uri, index.suite, components, signed_by))
    return stanzas


def exclusive(targets: Iterable[str], indices: Sequence[Index]) -> List[Tuple[str, str]]:
    """Sources that we configured for the stack alone: address, and apt's words for its releases.

    targets: lines of ``apt-get indextargets`` in TARGET_FORMAT.  A source that the host had already is the host's to
    use.  One that the names in its Release file don't tell from another source, such as the system's own, is left open:
    only the packages of the stack are pinned there.
    """
    ours: Dict[str, str] = {}
    others = set()
    for line in targets:
        # apt leaves the word as it is for a field that the Release file doesn't have, as NVIDIA's codename.
        words = ["" if _ABSENT.fullmatch(word) else word for word in line.split("|")]
        entry, uri, origin, label, suite, codename = (words + [""] * 6)[:6]
        fields = (("o", origin), ("l", label), ("n", codename))
        names = ",".join(f"{key}={value}" for key, value in fields if value.strip("./") and "," not in value)
        matching = [i for i in indices if _same(i.uri, uri) and (i.suite or suite).strip("./") == suite.strip("./")]
        if _OURS not in entry or not matching or not all(i.exclusive for i in matching):
            others.add(names)
        elif names:
            ours[f"{uri} {suite}".rstrip("./ ")] = names
    return [(uri, names) for uri, names in sorted(ours.items()) if names not in others]


def _same(uri: str, other: str) -> bool:
    """Whether both are one address: apt itself writes file:/var/repo for file:///var/repo."""
    return _LOCAL.sub("file:/", uri).rstrip("/") == _LOCAL.sub("file:/", other).rstrip("/")
