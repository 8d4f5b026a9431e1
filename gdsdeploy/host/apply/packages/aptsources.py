"""apt's sources and preferences, as they are and as they are written."""

from __future__ import annotations

import fnmatch
import re
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ...errors import HostError
from ..files import File
from .managers import Index, Pin

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


class Source(NamedTuple):
    """One address and one suite of one entry; an entry with several of either yields one Source for each pair."""

    #: ``deb``, ``deb-src`` or both
    types: Tuple[str, ...]
    uri: str
    #: with a trailing ``/``: a flat repository, which has no components
    suite: str
    components: Tuple[str, ...]
    #: keyring path, fingerprints, or a whole armoured key, as the file has it; None: the host's own keys
    signed_by: Optional[str]
    #: empty: every architecture of the machine
    architectures: Tuple[str, ...] = ()
    #: the file it stands in
    filename: str = ""


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


def missing_sources(existing: Sequence[Source], indices: Sequence[Index]) -> List[Source]:
    """What to add for those components of ``indices`` that no source in ``existing`` has.

    Where the host trusts its own keys for an index, apt accepts no second opinion.
    """
    missing = []
    for index in indices:
        same = [s for s in existing if "deb" in s.types and s.suite == index.suite and _same(s.uri, index.uri)]
        present = {component for source in same for component in source.components}
        components = tuple(c for c in index.components if c not in present)
        if (index.components and not components) or (not index.components and same):
            continue
        signed_by = same[0].signed_by if same else index.host_keyring
        missing.append(Source(("deb",), index.uri, index.suite, components, signed_by))
    return missing


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


PREFERENCES = "/etc/apt/preferences.d/00-gdsdeploy.pref"
#: Runs after package lists were read, whichever program reads them.  It never fails: that would fail the update.
_HOOK = """\
# Rendered by gdsdeploy; changes here are overwritten.
# Names that a repository has from now on, and that the patterns in 00-gdsdeploy.pref match, stay out as well.
APT::Update::Post-Invoke-Success { "%s"; };
"""
_COMMAND = (
    "program=/usr/lib/gdsdeploy/gdsdeploy-host.pyz; [ ! -r $program ]"
    " || timeout 120 python3 -I -S $program pins refresh </dev/null || :"
)
HOOK = File.of("/etc/apt/apt.conf.d/99gdsdeploy", _HOOK % _COMMAND)
HEAD = "# Rendered by gdsdeploy from gdsdeploy.lock; changes here are overwritten."
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_WHY = "other versions of these, and whatever else could move the driver, stay out wherever they come from"
_PATTERNS = re.compile(r"^# Patterns: (.*)$", re.MULTILINE)
_PINNED = re.compile(r"^Package: (\S+)\nPin: version ", re.MULTILINE)
_DENIED = re.compile(rf"^Explanation: {re.escape(_WHY)}\nPackage: (.*)$", re.MULTILINE)


def preferences(pins: Sequence[Pin], deny: Sequence[str], names: Sequence[str], closed: Sequence[Any]) -> str:
    """The text of ``00-gdsdeploy.pref``.

    deny: the patterns, for :func:`refresh`.  names: what :func:`names_to_deny` found.
    closed: address and release of each repository for the stack alone.
    """
    lines = [HEAD, "# The name of this file sorts first: among records for the same thing, apt takes the first."]
    # Not an option: a line break in a pattern would be a record of its own.
    lines += [f"# Patterns: {' '.join(' '.join(deny).split())}"] if deny else []
    for pin in pins:
        lines += ["", f"Package: {pin.package}", f"Pin: version {pin.version}", "Pin-Priority: 1001"]
    if names:
        lines += ["", f"Explanation: {_WHY}", f"Package: {' '.join(names)}", "Pin: release *", "Pin-Priority: -1"]
    for uri, release in closed:
        why = f"{uri} is configured for the stack alone"
        lines += ["", f"Explanation: {why}", "Package: *", f"Pin: release {release}", "Pin-Priority: -1"]
    return "\n".join(lines) + "\n"


def names_to_deny(deny: Sequence[str], packages: Iterable[str], candidates: Iterable[str]) -> List[str]:
    """The names of packages that stay out: ``packages`` of the lock, and the candidates that patterns match.

    Preferences can hold patterns, but at each start apt matches each of them against every package (apt-pkg's
    ``pkgPolicy::CreatePin``), and compiles a regular expression again for every package.  Names take no measurable
    time: see benchmarks/pins.
    """
    pattern = re.compile("|".join(map(fnmatch.translate, deny)) or r"(?!)")
    exact = [word if _NAME.fullmatch(word) else word.rstrip("*").rstrip("-") for word in deny]
    # These stay out even if no repository has them: packages of the lock, and what patterns begin with.
    always = list(dict.fromkeys([*filter(_NAME.fullmatch, exact), *packages]))
    names = {name for name in candidates if pattern.fullmatch(name) and _NAME.fullmatch(name)}
    return [*always, *sorted(names.difference(always))]


def recorded_names(text: str, deny: Sequence[str], packages: Sequence[str]) -> List[str]:
    """The names in preferences that were written for the same patterns; none where they were not.

    Packages that the repositories have had since then don't make the file wrong: a host would differ whenever NVIDIA
    publishes a driver.  :func:`refresh` adds them when the host reads its package lists.
    """
    match = _DENIED.search(text)
    names = match[1].split() if match else []
    return names if names_to_deny(deny, packages, names) == names else []


def refresh(text: str, candidates: Iterable[str]) -> str:
    """The same preferences with the names that repositories have now; names that have gone stay."""
    match, patterns = _DENIED.search(text), _PATTERNS.search(text)
    if match is None or patterns is None:
        return text
    names = names_to_deny(patterns[1].split(), _PINNED.findall(text), [*match[1].split(), *candidates])
    return text[: match.start(1)] + " ".join(names) + text[match.end(1) :]
