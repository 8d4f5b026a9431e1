"""``primary.xml`` in memory: found by byte offsets, parsed only where asked.

A distribution's list has some hundred megabytes with its whole history, of which a lock reads some hundred packages;
so names and capabilities are indexed by regular expressions and a package becomes a Candidate when somebody wants it.
File lists are larger still, and fetched only when a package needs a file that the primary list does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from html import unescape
from typing import Final

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.repo import rpmrich, rpmxml
from gdsdeploy.repo.candidate import Candidate, Group, Relation
from gdsdeploy.repo.rpmxml import Element

_COUNT = re.compile(rb'<metadata\b[^>]*\bpackages="(\d{1,9})"')
_NAME = re.compile(rb"<name>([^<]+)</name>")
_PROVIDES = re.compile(rb"<rpm:provides>(.*?)</rpm:provides>", re.DOTALL)
_ENTRY = re.compile(rb'<rpm:entry\b[^>]*?\bname="([^"]*)"')
_FILE = re.compile(rb"<file\b[^>]*>([^<]*)</file>")
_PKGID = re.compile(rb'\bpkgid="([0-9a-f]+)"')
_START, _END = b"<package ", b"</package>"

_C: Final = "{http://linux.duke.edu/metadata/common}"
_R: Final = "{http://linux.duke.edu/metadata/rpm}"
_HEAD: Final = b'<m xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm">'
_SIGNS: Final = {"EQ": "=", "LT": "<", "GT": ">", "LE": "<=", "GE": ">="}
_SOURCE = re.compile(r"^(?P<name>.+)-(?P<version>[^-]+-[^-]+)\.(?:no)?src\.rpm$")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Origin:
    """Where a primary list comes from."""

    repository: str
    #: architectures whose packages are wanted, e.g. ``("x86_64", "noarch")``
    architectures: tuple[str, ...]
    #: the list's own address, for messages
    uri: str


class Primary:
    """The packages of one list.

    text: the verified, decompressed primary.xml.  filelists: gives the verified, decompressed filelists.xml.
    Raises RepositoryUnusable when it is not what createrepo writes.
    """

    def __init__(self, text: bytes, where: Origin, filelists: Callable[[], bytes]) -> None:
        self._text = rpmxml.check(text, where.uri)
        self.where = where
        self._filelists_of = filelists
        self._parsed: dict[int, Candidate] = {}
        count = _COUNT.search(text)
        found = text.count(_START)
        if count is None or int(count[1]) != found or b"xmlns:rpm=" not in text[: count.end() + 200]:
            raise RepositoryUnusable(
                f"{where.uri}: not a primary list: it says {int(count[1]) if count else 'no'} packages and has {found}"
            )

    @cached_property
    def _offsets(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for match in _NAME.finditer(self._text):
            found.setdefault(_decode(match[1]), []).append(match.start())
        return found

    @cached_property
    def _provided(self) -> dict[bytes, tuple[int, ...]]:
        """Capability, or file, as it is written → offsets inside the packages that provide it."""
        found: dict[bytes, tuple[int, ...]] = {}
        for section in _PROVIDES.finditer(self._text):
            start = section.start()
            for name in _ENTRY.findall(self._text, *section.span(1)):
                found[name] = (*found.get(name, ()), start)
        for match in _FILE.finditer(self._text):
            found[match[1]] = (*found.get(match[1], ()), match.start())
        escaped = [name for name in found if b"&" in name]
        return found | {_decode(name).encode(): found[name] for name in escaped}

    @cached_property
    def _filelists(self) -> bytes:
        return rpmxml.check(self._filelists_of(), self.where.uri)

    @cached_property
    def _by_checksum(self) -> dict[str, Candidate]:
        return {c.sha256: c for name in self._offsets for c in self.named(name)}

    def names(self) -> Iterable[str]:
        """Every package name in the list."""
        return self._offsets.keys()

    def named(self, name: str) -> list[Candidate]:
        """The candidates of that name; raises RepositoryUnusable naming a package that cannot be read."""
        return list(self._at(self._offsets.get(name, ())))

    def providing(self, name: str) -> list[Candidate]:
        """The candidates that provide a capability or contain a file."""
        found = self._at(self._provided.get(name.encode(), ()))
        there = [c for c in found if any(offer.package == name for offer in c.provides)]
        if name.startswith("/") and not _in_primary(name):
            there += self._containing(name)
        return there

    def _containing(self, path: str) -> Iterator[Candidate]:
        text = self._filelists
        needle = f">{path}</file>".encode()
        at = text.find(needle)
        while at >= 0:
            match = _PKGID.search(text, max(text.rfind(_START, 0, at), 0), at)
            owner = self._by_checksum.get(match[1].decode()) if match else None
            if owner is not None:
                yield replace(owner, provides=(*owner.provides, rpmrich.relation(path)))
            at = text.find(needle, at + 1)

    def _at(self, offsets: Iterable[int]) -> Iterator[Candidate]:
        seen: set[int] = set()
        for offset in offsets:
            start = self._text.rfind(_START, 0, offset)
            if start in seen:
                continue
            seen.add(start)
            if start not in self._parsed:
                end = self._text.find(_END, offset) + len(_END)
                root = rpmxml.parse(_HEAD + self._text[start:end] + b"</m>", self.where.uri)
                if len(root) != 1:
                    raise RepositoryUnusable(f"{self.where.uri}: byte {offset} is in no package")
                self._parsed[start] = _candidate(root[0], self.where)
            if self._parsed[start].architecture in self.where.architectures:
                yield self._parsed[start]


def _in_primary(path: str) -> bool:
    """Whether primary lists have files of this path: createrepo's rule, which dnf relies on too."""
    return path.startswith("/etc/") or "bin/" in path or path == "/usr/lib/sendmail"


def _decode(name: bytes) -> str:
    return unescape(name.decode("utf-8", "replace"))


def _candidate(package: Element, where: Origin) -> Candidate:
    name = package.findtext(f"{_C}name", "?")
    try:
        return _read(package, name, where)
    except ValueError as error:
        raise RepositoryUnusable(f"{where.uri}: package {name}: {error}") from error


def _read(package: Element, name: str, where: Origin) -> Candidate:
    form = _child(package, f"{_C}format")
    checksum = _child(package, f"{_C}checksum")
    sha256 = (checksum.text or "").strip()
    if checksum.get("type") != "sha256" or not _SHA256.fullmatch(sha256):
        raise ValueError(f"its checksum is a {checksum.get('type')}, not a sha256")
    # Their own version is what most packages have a source of; a source package has none.
    version = _evr(_child(package, f"{_C}version"))
    source = _SOURCE.match(form.findtext(f"{_R}sourcerpm") or "")
    return Candidate(
        package=name,
        version=version,
        architecture=package.findtext(f"{_C}arch", ""),
        source=source["name"] if source else name,
        source_version=source["version"] if source else version,
        depends=_needs(form),
        pre_depends=(),
        provides=_provides(form),
        conflicts=tuple(_plain(form, "conflicts")),
        obsoletes=tuple(_plain(form, "obsoletes")),
        filename=_path(_child(package, f"{_C}location")),
        size=int(_child(package, f"{_C}size").get("package", "")),
        sha256=sha256,
        repository=where.repository,
        suite="",
        component="",
        origin=where.repository.lower(),
    )


def _child(element: Element, tag: str) -> Element:
    child = element.find(tag)
    if child is None:
        raise ValueError(f"it has no {tag.rpartition('}')[2]}")
    return child


def _evr(element: Element) -> str:
    """``[EPOCH:]VERSION[-RELEASE]``; an epoch of 0 is left out."""
    epoch, version, release = (element.get(key) or "" for key in ("epoch", "ver", "rel"))
    text = f"{version}-{release}" if release else version
    return f"{epoch}:{text}" if epoch not in ("", "0") else text


def _path(location: Element) -> str:
    """Relative to the repository's base address, and inside it."""
    path = location.get("href", "").removeprefix("./")
    outside = path.startswith("/") or "://" in path or ".." in path.split("/")
    if not path or outside or location.get("{http://www.w3.org/XML/1998/namespace}base"):
        raise ValueError(f"its file is not inside the repository: {dict(location.attrib)}")
    return path


def _entries(form: Element, section: str) -> Iterator[tuple[str, str, str]]:
    """(name or boolean expression, sign, version)."""
    found = form.find(f"{_R}{section}")
    for entry in found if found is not None else ():
        flags = entry.get("flags")
        if flags is not None and flags not in _SIGNS:
            raise ValueError(f"not a relation in {section}: {flags}")
        yield entry.get("name", ""), _SIGNS[flags] if flags else "", _evr(entry) if flags else ""


def _needs(form: Element) -> tuple[Group, ...]:
    """Requires, and boolean conflicts as what they require; what rpm itself can do is not asked for."""
    found: list[Group] = []
    for what, sign, version in _entries(form, "requires"):
        if what.startswith("("):
            found += rpmrich.groups(what)
        elif not what.startswith("rpmlib("):
            found.append((rpmrich.relation(what, sign, version),))
    for what, _, _ in _entries(form, "conflicts"):
        if what.startswith("("):
            found += rpmrich.groups(what, negate=True)
    return tuple(dict.fromkeys(found))


def _plain(form: Element, section: str) -> Iterator[Relation]:
    for what, sign, version in _entries(form, section):
        if not what.startswith("("):
            yield rpmrich.relation(what, sign, version)


def _provides(form: Element) -> tuple[Relation, ...]:
    files = [rpmrich.relation(file.text) for file in form.iter(f"{_C}file") if file.text]
    return (*_plain(form, "provides"), *files)
