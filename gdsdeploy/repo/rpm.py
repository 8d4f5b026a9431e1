"""Signed rpm repositories: repomd.xml with its detached signature, the lists that it names, and module streams.

Trust runs from a pinned fingerprint over repomd.xml's signature to the sha256 of each list, and from primary.xml to
each package.  A fleet file may accept an index without a signature; each package's own is checked then
(packagefile.py).  repomd.xml has no Valid-Until; the newest of its timestamps goes into the lock.

Modules hide packages as in dnf: those of inactive streams, and where an active stream has a package, all packages of
that name from outside the stream.  A test compares it with the real dnf.

``primary.xml`` is in memory, indexed by byte offset: a distribution's list has some hundred megabytes with its whole
history, of which a lock reads some hundred packages.  So regular expressions index names and capabilities, and a
package is parsed into a Candidate only on demand.  File lists are larger still, and fetched only when a package needs
a file that the primary list doesn't have.

A boolean relation becomes groups of alternatives: ``(a if b)`` is "a, or not b", and so on down to a conjunction of
groups, which is what a solver takes.

XML is read without what it is feared for: no document types, so no entities and nothing external.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from html import unescape
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET  # nosec B405 # check_xml() comes first

import yaml

from gdsdeploy.errors import NoSolution, RepositoryUntrusted, RepositoryUnusable, translated
from gdsdeploy.files import yamlfile
from gdsdeploy.model.lock import Index, Package
from gdsdeploy.repo import names, packagefile, unpack
from gdsdeploy.repo.fetch import BETWEEN_UPDATES, Fetcher, MissingFile, address
from gdsdeploy.repo.packages import (
    RPM,
    RPM_RELATIONS,
    Candidate,
    Group,
    IndexedList,
    Origin,
    Relation,
    Universe,
    counted,
    named_candidate,
    places_of,
)
from gdsdeploy.repo.repository import FETCHES_AT_ONCE, Repository, Signed, VerifiedIndex, require_past, verify

#: In these, and in no other encoding that the parser knows, a document type reads as ASCII.
_ENCODINGS: Final = {b"utf-8", b"us-ascii", b"ascii"}
_DECLARED = re.compile(rb"""^<\?xml[^>]*\bencoding=["']([A-Za-z0-9._-]+)["']""")

Element = ET.Element


def check_xml(data: bytes, uri: str) -> bytes:
    """Give ``data`` back if it is XML without a document type; raises RepositoryUntrusted naming ``uri`` if not."""
    if not data.startswith(b"<"):
        raise RepositoryUntrusted(f"{uri}: this is not XML")
    declared = _DECLARED.match(data)
    if declared and declared[1].lower() not in _ENCODINGS:
        raise RepositoryUntrusted(f"{uri}: written in {declared[1].decode()}, but repositories are in UTF-8")
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise RepositoryUntrusted(f"{uri}: it has a document type, which no repository needs; it is not read")
    return data


def parse_xml(data: bytes, uri: str) -> Element:
    """The root element of ``data``; raises as ``check_xml`` does, and RepositoryUnusable for XML that is malformed."""
    with translated(ET.ParseError, lambda error: RepositoryUnusable(f"{uri}: not well-formed XML: {error}")):
        return ET.fromstring(check_xml(data, uri))  # noqa: S314 # nosec B314 # check_xml() refuses what makes XML dangerous


#: Groups that one expression may become; the largest in distributions become a handful.
MAX_GROUPS: Final = 64
#: Expressions inside one another.
MAX_DEPTH: Final = 20

_OPERATORS: Final = ("and", "or", "if", "unless", "else", "with", "without")
# A name may hold balanced parentheses (libc.so.6(GLIBC_2.34)(64bit)), so they end a word only where unbalanced.
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class _Node:
    """``operator`` over ``parts``; without an operator, one relation."""

    operator: str
    parts: tuple[_Node, ...] = ()
    leaf: Relation | None = None


def rpm_relation(name: str, sign: str = "", version: str = "") -> Relation:
    """One plain relation; raises ValueError for a sign or a version that rpm does not have."""
    if sign and sign not in RPM_RELATIONS:
        raise ValueError(f"not a relation: {name} {sign} {version}")
    return Relation(name, sign, names.version(version, "rpm") if sign else version, order=RPM)


def rich_groups(expression: str, *, negate: bool = False) -> tuple[Group, ...]:
    """What a boolean dependency asks for, all of it; each group is satisfied by any of its relations.

    negate: what it asks for when it is a conflict.  Raises ValueError naming what cannot be read.
    """
    node, end = _expression(expression, 0, 0)
    if expression[end:].strip():
        raise ValueError(f"not a boolean dependency: {expression!r}")
    return tuple(dict.fromkeys(_conjunction(node, negate, expression)))


def _expression(text: str, start: int, depth: int) -> tuple[_Node, int]:
    """The parenthesised expression at ``start``, and where it ends."""
    if depth > MAX_DEPTH:
        raise ValueError(f"too deep: {text[:80]!r}")
    at = _skip(text, start)
    if text[at : at + 1] != "(":
        return _leaf(text, at)
    operand, at = _expression(text, at + 1, depth + 1)
    parts, operators = [operand], list[str]()
    while True:
        at = _skip(text, at)
        if text[at : at + 1] == ")":
            return _node(parts, operators, text), at + 1
        operator, at = _word(text, at)
        if operator not in _OPERATORS:
            raise ValueError(f"not a boolean dependency: {text!r}")
        operand, at = _expression(text, at, depth + 1)
        operators.append(operator)
        parts.append(operand)


def _node(parts: list[_Node], operators: list[str], text: str) -> _Node:
    if not operators:
        return parts[0]
    if operators in (["if", "else"], ["unless", "else"]) or (len(operators) == 1 and operators[0] != "else"):
        return _Node(operators[0], tuple(parts))
    if len(set(operators)) == 1 and operators[0] in ("and", "or", "with"):
        return _Node(operators[0], tuple(parts))
    raise ValueError(f"operators cannot be mixed: {text!r}")


def _leaf(text: str, start: int) -> tuple[_Node, int]:
    name, at = _word(text, start)
    sign, after = _word(text, _skip(text, at))
    if not name or name in _OPERATORS:
        raise ValueError(f"a name is missing: {text!r}")
    if sign in RPM_RELATIONS:
        version, at = _word(text, _skip(text, after))
        return _Node("", leaf=rpm_relation(name, sign, version)), at
    return _Node("", leaf=rpm_relation(name)), at


def _word(text: str, start: int) -> tuple[str, int]:
    depth = 0
    for at in range(start, len(text)):
        if text[at] == "(":
            depth += 1
        elif text[at] == ")":
            if depth == 0:
                return text[start:at], at
            depth -= 1
        elif text[at].isspace() and depth == 0:
            return text[start:at], at
    return text[start:], len(text)


def _skip(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return match.end() if match else start


def _conjunction(node: _Node, negate: bool, text: str) -> list[Group]:
    """``node``, or its negation, as groups that all have to hold."""
    if node.leaf is not None:
        return [(replace(node.leaf, negated=negate),)]
    parts = node.parts
    if node.operator in ("with", "without"):
        return [(replace(_with(node, text), negated=negate),)]
    if node.operator in ("if", "unless"):
        # (a if b else c): b gives a, its absence gives c; "unless" is that with the absence of b.
        absent = node.operator == "if"
        conjunction = _any([(parts[0], negate), (parts[1], absent)], text)
        if len(parts) == 3:
            return conjunction + _any([(parts[2], negate), (parts[1], not absent)], text)
        # Without "else" an "if" that does not apply is true and an "unless" that does not apply false.
        return conjunction if absent is not negate else conjunction + _conjunction(parts[1], not absent, text)
    if (node.operator == "and") is not negate:
        return [group for part in parts for group in _conjunction(part, negate, text)]
    return _any([(part, negate) for part in parts], text)


def _any(parts: list[tuple[_Node, bool]], text: str) -> list[Group]:
    choices = [_conjunction(part, negate, text) for part, negate in parts]
    conjunction: list[Group] = []
    for picked in itertools.product(*choices):
        if len(conjunction) == MAX_GROUPS:
            raise ValueError(f"too many combinations: {text[:80]!r}")
        conjunction.append(tuple(dict.fromkeys(relation for group in picked for relation in group)))
    return conjunction


def _with(node: _Node, text: str) -> Relation:
    """One package that has all of it: relations on one another's package."""
    leaves = []
    for number, part in enumerate(node.parts):
        if part.leaf is None:
            raise ValueError(f"{node.operator} needs plain names: {text!r}")
        leaves.append(replace(part.leaf, negated=number > 0 and node.operator == "without"))
    return replace(leaves[0], also=tuple(leaves[1:]))


# None of these goes on beyond a tag: a text of nothing but beginnings would be searched to its end for each.
_COUNT = re.compile(rb'<metadata\b[^<>]*\bpackages="(\d{1,9})"')
_NAME = re.compile(rb"<name>([^<]+)</name>")
_ENTRY = re.compile(rb'<rpm:entry\b[^<>]*?\bname="([^"<]*)"')
_FILE = re.compile(rb"<file\b[^<>]*>([^<]*)</file>")
_PKGID = re.compile(rb'\bpkgid="([0-9a-f]+)"')
_START, _END = b"<package ", b"</package>"

_C: Final = "{http://linux.duke.edu/metadata/common}"
_R: Final = "{http://linux.duke.edu/metadata/rpm}"
_HEAD: Final = b'<m xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm">'
_SIGNS: Final = {"EQ": "=", "LT": "<", "GT": ">", "LE": "<=", "GE": ">="}
_SOURCE = re.compile(r"^(?P<name>.+)-(?P<version>[^-]+-[^-]+)\.(?:no)?src\.rpm$")


class Primary(IndexedList):
    """The packages of one list.

    text: the verified, decompressed primary.xml.  filelists: returns the verified, decompressed filelists.xml.
    Raises RepositoryUnusable unless it looks as createrepo writes it.
    """

    entry = "package"

    def __init__(self, text: bytes, where: Origin, filelists: Callable[[], bytes]) -> None:
        super().__init__(check_xml(text, where.uri), where)
        self._read_filelists = filelists
        header, count = _COUNT.search(text), text.count(_START)
        if header is None or int(header[1]) != count or b"xmlns:rpm=" not in text[: header.end() + 200]:
            expected = int(header[1]) if header else "no"
            raise RepositoryUnusable(f"{where.uri}: not a primary list: it says {expected} packages and has {count}")

    @cached_property
    def _starts(self) -> array[int]:
        return array("Q", counted(places_of(_START, self._text), self.where.uri))

    @cached_property
    def _offsets(self) -> dict[str, list[int]]:
        offsets: dict[str, list[int]] = {}
        for match in counted(_NAME.finditer(self._text), self.where.uri):
            offsets.setdefault(_decode(match[1]), []).append(match.start())
        return offsets

    @cached_property
    def _provided(self) -> dict[bytes, Sequence[int]]:
        """Capability, or file, as it is written → offsets inside the packages that provide it."""
        offsets: dict[bytes, Sequence[int]] = {}
        for name, start in counted(self._capabilities(), self.where.uri):
            known = offsets.get(name)
            if isinstance(known, list):
                known.append(start)
            else:
                # Of some millions, nearly all have one: a tuple takes half of a list.
                offsets[name] = (start,) if known is None else [*known, start]
        escaped = [name for name in offsets if b"&" in name]
        return offsets | {_decode(name).encode(): offsets[name] for name in escaped}

    def _capabilities(self) -> Iterator[tuple[bytes, int]]:
        text, end = self._text, 0
        for start in places_of(b"<rpm:provides>", text):
            # One that never ends ends the search, too.
            end = text.find(b"</rpm:provides>", start) if start >= end >= 0 else end
            yield from ((match[1], start) for match in _ENTRY.finditer(text, start, max(end, 0)))
        yield from ((match[1], match.start()) for match in _FILE.finditer(text))

    @cached_property
    def _filelists(self) -> bytes:
        return check_xml(self._read_filelists(), self.where.uri)

    def _provider_offsets(self, name: str) -> Sequence[int]:
        return self._provided.get(name.encode(), ())

    def providing(self, name: str) -> list[Candidate]:
        """The candidates that provide a capability or contain a file."""
        in_filelists = name.startswith("/") and not _in_primary(name)
        return [*super().providing(name), *(self._containing(name) if in_filelists else ())]

    def _containing(self, path: str) -> Iterator[Candidate]:
        text, begin = self._filelists, 0
        for at in places_of(f">{path}</file>".encode(), text):
            start = text.rfind(_START, begin, at)
            match = _PKGID.search(text, start, at) if start >= 0 else None
            # No other package is read: one that can't be would be an error of this one.
            own = places_of(b">" + match[1] + b"</checksum>", self._text) if match else ()
            yield from (replace(owner, provides=(*owner.provides, rpm_relation(path))) for owner in self._at(own))
            begin = at

    def _parse(self, start: int, offset: int) -> Candidate:
        end = self._text.find(_END, offset) + len(_END)
        root = parse_xml(_HEAD + self._text[start:end] + b"</m>", self.where.uri)
        if len(root) != 1:
            raise ValueError(f"byte {offset} is in no package")
        return named_candidate(root[0].findtext(f"{_C}name", ""), lambda name: _read(root[0], name, self.where))


def _in_primary(path: str) -> bool:
    """Whether primary lists have files of this path: createrepo's rule, which dnf relies on too."""
    return path.startswith("/etc/") or "bin/" in path or path == "/usr/lib/sendmail"


def _decode(name: bytes) -> str:
    return unescape(name.decode("utf-8", "replace"))


def _read(package: Element, name: str, where: Origin) -> Candidate:
    form = _child(package, f"{_C}format")
    checksum = _child(package, f"{_C}checksum")
    # Most packages have their source's version; a source package has no sourcerpm.
    version = names.version(_evr(_child(package, f"{_C}version")), "rpm")
    if version.count("-") > 1:
        raise ValueError(f"not a version: {version!r}")
    source = _SOURCE.match(form.findtext(f"{_R}sourcerpm") or "")
    files = [rpm_relation(file.text) for file in form.iter(f"{_C}file") if file.text]
    return Candidate(
        package=name,
        version=version,
        architecture=names.architecture(package.findtext(f"{_C}arch", "")),
        source=names.package(source["name"]) if source else name,
        source_version=names.version(source["version"], "rpm") if source else version,
        depends=_needs(form),
        pre_depends=(),
        provides=(*_plain(form, "provides"), *files),
        conflicts=tuple(_plain(form, "conflicts")),
        obsoletes=tuple(_plain(form, "obsoletes")),
        filename=_path(_child(package, f"{_C}location")),
        size=names.size(_child(package, f"{_C}size").get("package", "")),
        sha256=_sha256(checksum),
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


def _path(location: Element | None) -> str:
    """Relative to the repository's base address, and inside it."""
    if location is None or location.get("{http://www.w3.org/XML/1998/namespace}base"):
        raise ValueError("its file is not inside the repository")
    return names.path(location.get("href", ""))


def _sha256(checksum: Element | None) -> str:
    kind = None if checksum is None else checksum.get("type")
    if checksum is None or kind != "sha256":
        raise ValueError(f"its checksum is a {kind}, not a sha256")
    return names.sha256((checksum.text or "").strip())


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
            groups += rich_groups(name)
        elif not name.startswith("rpmlib("):
            groups.append((rpm_relation(name, sign, version),))
    for name, _, _ in _entries(form, "conflicts"):
        if name.startswith("("):
            groups += rich_groups(name, negate=True)
    return tuple(dict.fromkeys(groups))


def _plain(form: Element, section: str) -> Iterator[Relation]:
    yield from (rpm_relation(*entry) for entry in _entries(form, section) if not entry[0].startswith("("))


@dataclass
class Modules:
    """The module streams of some repositories."""

    #: module → stream → packages as ``NAME-EPOCH:VERSION-RELEASE.ARCH``
    artifacts: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    #: module → the stream that is active by default
    defaults: dict[str, str] = field(default_factory=dict)

    def add(self, text: bytes, uri: str) -> None:
        """Add one modules.yaml; raises RepositoryUnusable naming ``uri`` if it cannot be read."""
        number = 1
        try:
            for number, document in enumerate(yamlfile.documents(text), 1):  # noqa: B007 - the error names it
                self._document(document or {})
        except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise RepositoryUnusable(f"{uri}: document {number}: not module metadata: {error!r}") from error

    def _document(self, document: Mapping[str, Any]) -> None:
        data = document.get("data") or {}
        if document.get("document") == "modulemd":
            streams = self.artifacts.setdefault(_name(data["name"]), {})
            rpms = (data.get("artifacts") or {}).get("rpms") or ()
            streams.setdefault(_name(data["stream"]), set()).update(names.nevra(_text_of(rpm)) for rpm in rpms)
        elif document.get("document") == "modulemd-defaults" and data.get("stream"):
            self.defaults[_name(data["module"])] = _name(data["stream"])

    def enable(self, streams: Mapping[str, str]) -> Callable[[Candidate], bool]:
        """The filter with ``streams`` enabled: whether dnf would see a package.

        A module that no repository has is ignored.  Raises NoSolution for a stream that its module doesn't have.
        """
        active = {name: stream for name, stream in self.defaults.items() if stream in self.artifacts.get(name, ())}
        for name, stream in streams.items():
            artifacts = self.artifacts.get(name)
            if artifacts is None:
                continue
            if stream not in artifacts:
                raise NoSolution(
                    f"the repositories have no module stream {name}:{stream}; there are {', '.join(sorted(artifacts))}",
                    hint="Pin a driver branch that has a stream, or add a repository that has this one",
                )
            active[name] = stream
        active_rpms: set[str] = set()
        for name, stream in active.items():
            active_rpms |= self.artifacts[name][stream]
        hidden = {rpm for each in self.artifacts.values() for rpms in each.values() for rpm in rpms} - active_rpms
        names = {rpm.rsplit("-", 2)[0] for rpm in active_rpms if not rpm.endswith((".src", ".nosrc"))}

        def visible(candidate: Candidate) -> bool:
            rpm = nevra(candidate)
            if rpm in active_rpms:
                return True
            # Every package provides its own name.
            return rpm not in hidden and not any(offer.package in names for offer in candidate.provides)

        return visible


def _name(value: object) -> str:
    return names.package(_text_of(value))


def _text_of(value: object) -> str:
    """A name or a stream; raises TypeError for a list or mapping.  An unquoted stream may look like a number."""
    if isinstance(value, (str, int, float)):
        return str(value)
    raise TypeError(f"a name or a stream, rather than {type(value).__name__}")


def nevra(candidate: Candidate) -> str:
    """A package as module metadata names it."""
    version = candidate.version if ":" in candidate.version else f"0:{candidate.version}"
    return f"{candidate.package}-{version}.{candidate.architecture}"


class ModularUniverse(Universe):
    """Package lists with module streams; before ``with_streams``, all streams are visible."""

    def __init__(
        self,
        lists: Sequence[Primary],
        modules: Modules,
        visible: Callable[[Candidate], bool] | None = None,
        enabled: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(lists)
        self._primaries = lists
        self._modules = modules
        self._visible = visible
        self._enabled = dict(enabled or {})

    def with_streams(self, streams: Mapping[str, str]) -> ModularUniverse:
        enabled = {name: stream for name, stream in streams.items() if name in self._modules.artifacts}
        return ModularUniverse(self._primaries, self._modules, self._modules.enable(streams), enabled)

    def streams(self) -> tuple[str, ...]:
        return tuple(sorted(f"{name}:{stream}" for name, stream in self._enabled.items()))

    def named(self, name: str) -> list[Candidate]:
        return self._only_visible(super().named(name))

    def providing(self, name: str) -> list[Candidate]:
        return self._only_visible(super().providing(name))

    def _only_visible(self, candidates: list[Candidate]) -> list[Candidate]:
        return candidates if self._visible is None else [c for c in candidates if self._visible(c)]


#: Bytes of unpacked module metadata: YAML takes more time and memory than other lists do; distributions have ten MB.
LARGEST_MODULES: Final = 32 << 20
_REPO: Final = "{http://linux.duke.edu/metadata/repo}"


@dataclass(frozen=True)
class Listed:
    """A file that repomd.xml names."""

    uri: str
    sha256: str
    #: bytes, as it lies in the repository
    size: int
    #: bytes, decompressed; None: repomd.xml doesn't say
    open_size: int | None


@dataclass(frozen=True, kw_only=True)
class Repomd(VerifiedIndex):
    uri: str
    #: type (``primary``, ``modules``) → file
    files: dict[str, Listed]


@dataclass(frozen=True)
class Content:
    """What one repository has."""

    repomd: Repomd
    primary: Primary
    #: text of modules.yaml, if it has one
    modules: bytes | None


def read(
    fetcher: Fetcher, repositories: Sequence[Repository], architecture: str, *, now: datetime | None = None
) -> tuple[Universe, tuple[Index, ...]]:
    """Fetch and verify everything that ``repositories`` offer for ``architecture`` (rpm's name).

    now: aware; the time that the indices' dates are compared with.  File lists are fetched when a package needs a file
    that no primary list has, so ``fetcher`` must stay open while the universe is in use.
    Raises RepositoryUnusable naming the address, RepositoryUntrusted naming the file.
    """
    modules, lists, indices = Modules(), list[Primary](), list[Index]()
    for content in contents(fetcher, repositories, architecture, now=now):
        if content.modules is not None:
            modules.add(content.modules, content.repomd.files["modules"].uri)
        lists.append(content.primary)
        indices.append(content.repomd.index())
    return ModularUniverse(lists, modules), tuple(indices)


def contents(
    fetcher: Fetcher, repositories: Sequence[Repository], architecture: str, *, now: datetime | None = None
) -> list[Content]:
    """What each of ``repositories`` has, verified, in their order; as for ``read``."""
    moment = now or datetime.now(UTC)
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        indices = list(pool.map(lambda repository: repomd(fetcher, repository, now=moment), repositories))
        lists = list(pool.map(lambda index: _primary(fetcher, index, architecture), indices))
        texts = list(pool.map(lambda i: _text(fetcher, i, "modules") if "modules" in i.files else None, indices))
    return list(map(Content, indices, lists, texts))


def repomd(fetcher: Fetcher, repository: Repository, *, now: datetime) -> Repomd:
    """Fetch and verify a repository's repomd.xml; raises as ``read`` does."""
    uri = repository.uri.rstrip("/") + "/repodata/repomd.xml"
    try:
        document = fetcher.small(uri)
    except MissingFile as error:
        raise RepositoryUnusable(
            f"{uri}: there is no such file", hint=f"Check `uri` of repository {repository.name}"
        ) from error
    signed = Signed(document, ()) if repository.unsigned else _signed(fetcher, repository, uri, document)
    root = parse_xml(signed.text, uri)
    files, date = {}, 0.0
    for data in root.findall(f"{_REPO}data"):
        try:
            files[data.get("type", "")] = _listed(data, repository.uri.rstrip("/") + "/")
            date = max(date, float(data.findtext(f"{_REPO}timestamp") or 0))
        except ValueError as error:
            raise RepositoryUnusable(f"{uri}: {data.get('type')}: {error}") from error
    try:
        moment = datetime.fromtimestamp(date, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise RepositoryUnusable(f"{uri}: its timestamp {date:g} is not a date") from error
    require_past(uri, moment, now)
    if "primary" not in files:
        raise RepositoryUnusable(f"{uri}: it lists no primary")
    return Repomd(repository=repository, uri=uri, files=files, date=moment, signed_by=signed.fingerprints)


def _signed(fetcher: Fetcher, repository: Repository, uri: str, document: bytes) -> Signed:
    try:
        signature = fetcher.small(uri + ".asc")
    except MissingFile as error:
        raise RepositoryUntrusted(
            f"{uri}: it is not signed: there is no repomd.xml.asc beside it",
            hint="Take a mirror that is signed, or sign your own; where packages are signed, `metadata: unsigned` with"
            f" `package_keys` and `why` in repositories.{repository.name} accepts it (docs/repositories.md)",
        ) from error
    return verify(
        document, detached=signature, keyring=repository.keyring, fingerprints=repository.fingerprints, name=uri
    )


def check_packages(fetcher: Fetcher, repositories: Sequence[Repository], packages: Sequence[Package]) -> None:
    """Fetch each of ``packages`` that no signed index vouches for, and check its own signature.

    Raises RepositoryUntrusted naming the file, RepositoryUnusable as ``read`` does.
    """
    unsigned = {repository.name: repository for repository in repositories if repository.unsigned}
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        chosen = [package for package in packages if package.repository in unsigned]
        list(pool.map(lambda package: _check_package(fetcher, unsigned[package.repository], package), chosen))


def _check_package(fetcher: Fetcher, repository: Repository, package: Package) -> None:
    uri = address(repository.uri, package.file)
    try:
        path = fetcher.file(uri, sha256=package.sha256, size=package.size)
    except MissingFile as error:
        words = f"{uri}: the index lists this package, but the repository does not have it"
        raise RepositoryUnusable(words, hint=BETWEEN_UPDATES) from error
    signature_check(repository, package, uri)(path)


def signature_check(repository: Repository, package: Package | Candidate, uri: str) -> Callable[[Path], None]:
    """Raises RepositoryUntrusted for a file of ``package`` that no key of its unsigned repository signed."""
    return partial(
        packagefile.check_signature,
        expected=package.key,
        keyring=repository.keyring,
        fingerprints=repository.package_keys,
        name=uri,
    )


def _listed(data: Element, base: str) -> Listed:
    sizes = data.findtext(f"{_REPO}size", ""), data.findtext(f"{_REPO}open-size")
    return Listed(
        address(base, _path(data.find(f"{_REPO}location"))),
        _sha256(data.find(f"{_REPO}checksum")),
        names.size(sizes[0]),
        None if sizes[1] is None else names.size(sizes[1]),
    )


def _primary(fetcher: Fetcher, index: Repomd, architecture: str) -> Primary:
    name = index.repository.name
    where = Origin(name, "", "", name.lower(), (architecture, "noarch"), index.files["primary"].uri)
    return Primary(_text(fetcher, index, "primary"), where, partial(_text, fetcher, index, "filelists"))


def _text(fetcher: Fetcher, index: Repomd, kind: str) -> bytes:
    """One list, verified and decompressed."""
    listed = index.files.get(kind)
    if listed is None:
        raise RepositoryUnusable(f"{index.uri}: it lists no {kind}, which a package's file dependency needs")
    most = LARGEST_MODULES if kind == "modules" else unpack.LARGEST_INDEX
    unpack.require_size(listed.uri, listed.size, listed.open_size, most=most)
    try:
        path = fetcher.file(listed.uri, sha256=listed.sha256, size=listed.size)
    except MissingFile as error:
        raise RepositoryUnusable(
            f"{listed.uri}: the signed index names this list, but the repository does not have it",
            hint=BETWEEN_UPDATES,
        ) from error
    return unpack.index(path, listed.uri, listed.open_size, most)
