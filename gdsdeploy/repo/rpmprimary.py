"""``primary.xml`` in memory, indexed by byte offset, and rpm's relations, plain and boolean ("rich") ones.

A distribution's list has some hundred megabytes with its whole history, of which a lock reads some hundred packages.
So regular expressions index names and capabilities, and a package is parsed into a Candidate only on demand.  File
lists are larger still, and fetched only when a package needs a file that the primary list doesn't have.

A boolean relation becomes groups of alternatives: ``(a if b)`` is "a, or not b", and so on down to a conjunction of
groups, which is what a solver takes.

XML is read without what it is feared for: no document types, so no entities and nothing external.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import unescape
from typing import Final
from xml.etree import ElementTree as ET  # nosec B405 # check_xml() comes first

from gdsdeploy.errors import RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.host.apply.packages.versions import rpm
from gdsdeploy.repo.packages import RPM, RPM_RELATIONS, Candidate, Group, IndexedList, Origin, Relation

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
    try:
        return ET.fromstring(check_xml(data, uri))  # noqa: S314 # nosec B314 # check_xml() refuses what makes XML dangerous
    except ET.ParseError as error:
        raise RepositoryUnusable(f"{uri}: not well-formed XML: {error}") from error


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
    if sign:
        rpm(version)
    return Relation(name, sign, version, order=RPM)


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
        super().__init__(check_xml(text, where.uri), where)
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
        return check_xml(self._read_filelists(), self.where.uri)

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
                yield replace(owner, provides=(*owner.provides, rpm_relation(path)))
            at = text.find(needle, at + 1)

    def _start(self, offset: int) -> int:
        return self._text.rfind(_START, 0, offset)

    def _parse(self, start: int, offset: int) -> Candidate:
        end = self._text.find(_END, offset) + len(_END)
        root = parse_xml(_HEAD + self._text[start:end] + b"</m>", self.where.uri)
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
            groups += rich_groups(name)
        elif not name.startswith("rpmlib("):
            groups.append((rpm_relation(name, sign, version),))
    for name, _, _ in _entries(form, "conflicts"):
        if name.startswith("("):
            groups += rich_groups(name, negate=True)
    return tuple(dict.fromkeys(groups))


def _plain(form: Element, section: str) -> Iterator[Relation]:
    for name, sign, version in _entries(form, section):
        if not name.startswith("("):
            yield rpm_relation(name, sign, version)


def _provides(form: Element) -> tuple[Relation, ...]:
    files = [rpm_relation(file.text) for file in form.iter(f"{_C}file") if file.text]
    return (*_plain(form, "provides"), *files)
