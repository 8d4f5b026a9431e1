"""``primary.xml`` in memory, indexed by byte offset.

A distribution's list has some hundred megabytes with its whole history, of which a lock reads some hundred packages.
So regular expressions index names and capabilities, and a package is parsed into a Candidate only on demand.  File
lists are larger still, and fetched only when a package needs a file that the primary list doesn't have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from html import unescape
from typing import Final

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.repo import rpmrich, rpmxml
from gdsdeploy.repo.candidate import Candidate, Group, Relation
from gdsdeploy.repo.packages import IndexedList, Origin
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


class Primary(IndexedList):
    """The packages of one list.

    text: the verified, decompressed primary.xml.  filelists: returns the verified, decompressed filelists.xml.
    Raises RepositoryUnusable unless it looks as createrepo writes it.
    """

    def __init__(self, text: bytes, where: Origin, filelists: Callable[[], bytes]) -> None:
        super().__init__(rpmxml.check(text, where.uri), where)
        self._read_filelists = filelists
        header, count = _COUNT.search(text), text.count(_START)
        if header is None or int(header[1]) != count or b"xmlns:rpm=" not in text[: header.end() + 200]:
            expected = int(header[1]) if header else "no"
            raise RepositoryUnusable(f"{where.uri}: not a primary list: it says {expected} packages and has {count}")

    @cached_property
    def _offsets(self) -> dict[str, list[int]]:
        offsets: dict[str, list[int]] = {}
        for match in _NAME.finditer(self._text):
            offsets.setdefault(_decode(match[1]), []).append(match.start())
        return offsets

    @cached_property
    def _provided(self) -> dict[bytes, tuple[int, ...]]:
        """Capability, or file, as it is written → offsets inside the packages that provide it."""
        offsets: dict[bytes, tuple[int, ...]] = {}
        for section in _PROVIDES.finditer(self._text):
            start = section.start()
            for name in _ENTRY.findall(self._text, *section.span(1)):
                offsets[name] = (*offsets.get(name, ()), start)
        for match in _FILE.finditer(self._text):
            offsets[match[1]] = (*offsets.get(match[1], ()), match.start())
        escaped = [name for name in offsets if b"&" in name]
        return offsets | {_decode(name).encode(): offsets[name] for name in escaped}

    @cached_property
    def _filelists(self) -> bytes:
        return rpmxml.check(self._read_filelists(), self.where.uri)

    @cached_property
    def _by_checksum(self) -> dict[str, Candidate]:
        return {c.sha256: c for name in self._offsets for c in self.named(name)}

    def _provider_offsets(self, name: str) -> Sequence[int]:
        return self._provided.get(name.encode(), ())

    def providing(self, name: str) -> list[Candidate]:
        """The candidates that provide a capability or contain a file."""
        in_filelists = name.startswith("/") and not _in_primary(name)
        return [*super().providing(name), *(self._containing(name) if in_filelists else ())]

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

    def _start(self, offset: int) -> int:
        return self._text.rfind(_START, 0, offset)

    def _parse(self, start: int, offset: int) -> Candidate:
        end = self._text.find(_END, offset) + len(_END)
        root = rpmxml.parse(_HEAD + self._text[start:end] + b"</m>", self.where.uri)
        if len(root) != 1:
            raise RepositoryUnusable(f"{self.where.uri}: byte {offset} is in no package")
        return _candidate(root[0], self.where)


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
    # Most packages have their source's version; a source package has no sourcerpm.
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
        suite=where.suite,
        component=where.component,
        origin=where.origin,
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
    for entry in form.findall(f"{_R}{section}/*"):
        flags = entry.get("flags")
        if flags is not None and flags not in _SIGNS:
            raise ValueError(f"not a relation in {section}: {flags}")
        yield entry.get("name", ""), _SIGNS[flags] if flags else "", _evr(entry) if flags else ""


def _needs(form: Element) -> tuple[Group, ...]:
    """Requires, and what boolean conflicts require; without the capabilities of rpm itself."""
    groups: list[Group] = []
    for name, sign, version in _entries(form, "requires"):
        if name.startswith("("):
            groups += rpmrich.groups(name)
        elif not name.startswith("rpmlib("):
            groups.append((rpmrich.relation(name, sign, version),))
    for name, _, _ in _entries(form, "conflicts"):
        if name.startswith("("):
            groups += rpmrich.groups(name, negate=True)
    return tuple(dict.fromkeys(groups))


def _plain(form: Element, section: str) -> Iterator[Relation]:
    for name, sign, version in _entries(form, section):
        if not name.startswith("("):
            yield rpmrich.relation(name, sign, version)


def _provides(form: Element) -> tuple[Relation, ...]:
    files = [rpmrich.relation(file.text) for file in form.iter(f"{_C}file") if file.text]
    return (*_plain(form, "provides"), *files)
