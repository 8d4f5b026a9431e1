"""What repositories offer: packages, their relations and versions, and package lists indexed by byte offset.

Differential tests keep the order of versions equal to dpkg's and rpm's.  Debian's main list has 56 MB and 69 000
stanzas, of which a lock reads some hundred.  So one pass indexes the names, and a stanza is parsed into a Candidate
only on demand.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, TypeVar

from debian.debian_support import NativeVersion

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.host.apply.packages.versions import rpm
from gdsdeploy.repo import names

#: A family of package managers, as a fleet file's ``kind`` names it.
Kind = Literal["apt", "rpm"]

#: Relations of deb-control(5); ``<`` and ``>`` there mean "or equal" and exist only in very old packages.
RELATIONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">>": operator.gt,
    "<": operator.le,
    ">": operator.ge,
}
#: Relations of rpm's spec files.
RPM_RELATIONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    **{sign: RELATIONS[sign] for sign in ("<=", "=", ">=")},
    "<": operator.lt,
    ">": operator.gt,
}


class Order(ABC):
    """How one package family compares versions and reads relations."""

    kind: Kind

    @abstractmethod
    def key(self, version: str) -> Any:
        """A sort key; raises ValueError for text that is no version."""

    def holds(self, have: str, relation: str, bound: str) -> bool:
        """Whether version ``have`` stands in ``relation`` to ``bound``."""
        return self.meets("=", have, relation, bound)

    @abstractmethod
    def meets(self, offered: str, version: str, relation: str, bound: str) -> bool:
        """Whether a Provides with this relation and version satisfies a relation; each may be empty."""


class _Deb(Order):
    kind = "apt"

    def key(self, version: str) -> Any:
        return deb(version)

    def meets(self, offered: str, version: str, relation: str, bound: str) -> bool:
        """Only a versioned Provides satisfies a versioned relation (deb-control(5), Debian policy 7.5)."""
        return not relation or bool(offered and RELATIONS[relation](deb(version), deb(bound)))


class _Rpm(Order):
    kind = "rpm"

    def key(self, version: str) -> Any:
        return rpm(version)

    def meets(self, offered: str, version: str, relation: str, bound: str) -> bool:
        """A Provides without a version satisfies every relation; two ranges need only overlap."""
        if not offered or not relation:
            return True
        have, need = rpm(version), rpm(bound)
        parts = 3 if have.release and need.release else 2
        one, other = have[:parts], need[:parts]
        if one == other and bool(have.release) != bool(need.release):
            # A side without a release means any release of its version.
            open_side = relation if have.release else offered
            if "=" in open_side:
                return True
        if one < other:
            return ">" in offered or "<" in relation
        if one > other:
            return "<" in offered or ">" in relation
        return any(sign in offered and sign in relation for sign in "<=>")


DEB: Final = _Deb()
RPM: Final = _Rpm()


@lru_cache(maxsize=65536)
def deb(version: str) -> NativeVersion:
    """A sort key with dpkg's order; raises ValueError for text that is no version."""
    return NativeVersion(version)


def upstream(version: str) -> str:
    """The package version without epoch and Debian revision or rpm release: ``1:2.3-4`` → ``2.3``."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


@dataclass(frozen=True, slots=True)
class Relation:
    """One alternative of a dependency: a name, and a bound on its version if ``relation`` is not empty.

    A name may also be a capability or a file, as rpm knows them.
    """

    package: str
    relation: str = ""
    version: str = ""
    order: Order = DEB
    #: satisfied if no installed package answers it: rpm's ``(a if b)`` is "a, or not b"
    negated: bool = False
    #: what the same package must also answer: rpm's ``(a with b)``; a negated one it must not: ``(a without b)``
    also: tuple[Relation, ...] = ()

    def admits(self, version: str) -> bool:
        """Whether a package of this name and ``version`` satisfies the relation."""
        return not self.relation or self.order.holds(version, self.relation, self.version)

    def __str__(self) -> str:
        text = f"{self.package} ({self.relation} {self.version})" if self.relation else self.package
        text = " with ".join([text, *map(str, self.also)])
        return f"not {text}" if self.negated else text


#: Alternatives, the preferred one first.
Group = tuple[Relation, ...]
#: What tells two package files apart: package, version, architecture.
Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One package file that a signed package list offers."""

    package: str
    version: str
    architecture: str
    source: str
    source_version: str
    depends: tuple[Group, ...]
    pre_depends: tuple[Group, ...]
    #: names with ``=`` versions or none
    provides: tuple[Relation, ...]
    #: Conflicts and Breaks: what may not be installed beside this package
    conflicts: tuple[Relation, ...]
    #: relative to the repository's base address
    filename: str
    #: bytes
    size: int
    sha256: str
    repository: str
    suite: str
    component: str
    #: the signed index's Origin, lower case: the package's maker (``debian``, ``nvidia``); rpm's indices have none, and
    #: nothing proves a package's Vendor, so the fleet file's name of the repository stands for it
    origin: str
    #: rpm's Obsoletes: packages of these names, not providers of them, may not be installed beside this one
    obsoletes: tuple[Relation, ...] = ()

    @property
    def key(self) -> Key:
        """What tells it apart from other package files."""
        return self.package, self.version, self.architecture

    def answers(self, relation: Relation) -> bool:
        """Whether this package satisfies ``relation``, negation aside, by its own name or by one it provides."""
        own = self.package == relation.package and relation.admits(self.version)
        if not own and not any(
            offer.package == relation.package
            and relation.order.meets(offer.relation, offer.version, relation.relation, relation.version)
            for offer in self.provides
        ):
            return False
        return all(self.answers(other) is not other.negated for other in relation.also)

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


_RELATION = re.compile(
    r"^(?P<name>[a-zA-Z0-9][a-zA-Z0-9.+-]*(?::[a-z0-9-]+)?)"
    r"(?:\s*\(\s*(?P<relation><<|<=|=|>=|>>|<|>)\s*(?P<version>[0-9A-Za-z][^\s)]*)\s*\))?"
    r"(?:\s*\[[^\]]*\])?(?:\s*<[^>]*>)*$"
)


def _name_here(name: str, architecture: str) -> str:
    """A name of a relation without the qualifier that says the architecture of its list.

    Another qualifier stays, and makes another name: nothing is called ``libc6:i386`` here, and ``python3:any`` is what
    a ``Multi-Arch: allowed`` package provides beside its name (deb-control(5)).
    """
    bare, _, qualifier = name.partition(":")
    return bare if qualifier in ("native", architecture) else name


def relations(field: str, architecture: str) -> tuple[Group, ...]:
    """Parse a relationship field of a list for ``architecture``: groups between commas, alternatives between ``|``.

    Raises ValueError naming the part that deb-control(5) does not allow.
    """
    groups: list[Group] = []
    for part in field.split(","):
        if not part.strip():
            continue
        group: list[Relation] = []
        for word in part.split("|"):
            match = _RELATION.match(word.strip())
            if match is None:
                raise ValueError(f"not a package relation: {word.strip()!r}")
            version = names.version(match["version"], "apt") if match["version"] else ""
            group.append(Relation(_name_here(match["name"], architecture), match["relation"] or "", version))
        groups.append(tuple(dict.fromkeys(group)))
    return tuple(groups)


#: The maker of NVIDIA's own repositories, as their Release files name it, in lower case.
NVIDIA = "nvidia"
#: Names, capabilities and files that one list may have; those of a distribution with its history have some millions.
MOST_NAMES: Final = 10_000_000
_SOURCE = re.compile(r"^(\S+)(?:\s+\(([^)]+)\))?$")


@dataclass(frozen=True)
class Origin:
    """Where a package list comes from; goes into each of its candidates."""

    repository: str
    #: suite and component are empty for rpm
    suite: str
    component: str
    #: the Release file's Origin, or rpm's repository, lower case
    origin: str
    #: architectures of packages to read, e.g. ``("amd64", "all")``
    architectures: tuple[str, ...]
    #: the list's own address, for messages
    uri: str


T = TypeVar("T")


def places_of(words: bytes, text: bytes) -> Iterator[int]:
    """Every place of ``words`` in ``text``."""
    at = text.find(words)
    while at >= 0:
        yield at
        at = text.find(words, at + len(words))


def counted(found: Iterable[T], uri: str) -> Iterator[T]:
    """The names that an index of a list has; raises RepositoryUnusable where they would fill the memory."""
    for count, each in enumerate(found):
        if count == MOST_NAMES:
            raise RepositoryUnusable(f"{uri}: more than {MOST_NAMES} names")
        yield each


class IndexedList(ABC):
    """A package list of either family, in which a package is parsed when it is first asked for.

    text: the verified, decompressed file.
    """

    #: how messages call a package of the list, before its number
    entry: str

    def __init__(self, text: bytes, where: Origin) -> None:
        self._text = text
        self.where = where
        self._parsed: dict[int, Candidate] = {}

    @property
    @abstractmethod
    def _starts(self) -> array[int]:
        """Where packages begin, in their order."""

    @property
    @abstractmethod
    def _offsets(self) -> Mapping[str, Sequence[int]]:
        """Name → offsets inside its packages."""

    @abstractmethod
    def _provider_offsets(self, name: str) -> Sequence[int]:
        """Offsets inside the packages that may provide ``name``."""

    @abstractmethod
    def _parse(self, start: int, offset: int) -> Candidate:
        """The package from ``start`` that ``offset`` is in; raises ValueError that says what is wrong with it."""

    def names(self) -> Iterable[str]:
        """Every package name in the list."""
        return self._offsets.keys()

    def named(self, name: str) -> list[Candidate]:
        """The candidates of that name; raises RepositoryUnusable naming a package that cannot be read."""
        return list(self._at(self._offsets.get(name, ())))

    def providing(self, name: str) -> list[Candidate]:
        """The candidates that provide ``name``: a virtual package, a capability or a file."""
        candidates = self._at(self._provider_offsets(name))
        return [c for c in candidates if any(offer.package == name for offer in c.provides)]

    def _at(self, offsets: Iterable[int]) -> Iterator[Candidate]:
        # Looked up, because a search back to the beginning of a long package takes its time for each name in it.
        numbers = ((bisect.bisect_right(self._starts, offset), offset) for offset in offsets)
        starts = {self._starts[number - 1] if number else offset: offset for number, offset in numbers}
        for start, offset in starts.items():
            if start not in self._parsed:
                try:
                    self._parsed[start] = self._parse(start, offset)
                except ValueError as error:
                    number = bisect.bisect_right(self._starts, offset)
                    raise RepositoryUnusable(f"{self.where.uri}: {self.entry} {number}: {error}") from error
            if self._parsed[start].architecture in self.where.architectures:
                yield self._parsed[start]


class PackageList(IndexedList):
    """The stanzas of one ``Packages`` file."""

    entry = "stanza"

    @cached_property
    def _starts(self) -> array[int]:
        # A stanza need not begin with its name.
        ends = counted(places_of(b"\n\n", self._text), self.where.uri)
        return array("Q", itertools.chain((0,), (end + 2 for end in ends)))

    @cached_property
    def _offsets(self) -> dict[str, list[int]]:
        offsets: dict[str, list[int]] = {}
        for offset, value in counted(_lines(self._text, b"Package:"), self.where.uri):
            offsets.setdefault(value.decode("ascii", "replace").strip(), []).append(offset)
        return offsets

    @cached_property
    def _provided(self) -> dict[str, list[int]]:
        """Virtual name → offsets inside the stanzas that provide it."""
        offsets: dict[str, list[int]] = {}
        fields = _lines(self._text, b"Provides:")
        words = ((at, word) for at, value in fields for word in value.decode("ascii", "replace").split(","))
        for offset, word in counted(words, self.where.uri):
            name = _name_here(word.split("(", 1)[0].strip(), self.where.architectures[0])
            offsets.setdefault(name, []).append(offset)
        return offsets

    def _provider_offsets(self, name: str) -> Sequence[int]:
        bare = name.removesuffix(":any")
        allowed = [*self._offsets.get(bare, ()), *self._provided.get(bare, ())] if bare != name else []
        return [*allowed, *self._provided.get(name, ())]

    def stanza(self, candidate: Candidate) -> str:
        """The text of a candidate of this list, as the list has it; raises KeyError for any other."""
        for offset in self._offsets[candidate.package]:
            start = self._starts[bisect.bisect_right(self._starts, offset) - 1]
            if self._parsed.get(start) == candidate:
                return self._stanza(start, offset)
        raise KeyError(candidate.package)

    def _stanza(self, start: int, offset: int) -> str:
        end = self._text.find(b"\n\n", offset)
        return self._text[start : len(self._text) if end < 0 else end].decode("utf-8", "replace")

    def _parse(self, start: int, offset: int) -> Candidate:
        fields = _fields(self._stanza(start, offset))
        return named_candidate(fields.get("package", ""), lambda name: _read(fields, name, self.where))


def _lines(text: bytes, field: bytes) -> Iterator[tuple[int, bytes]]:
    """Where ``field`` begins and its value, continuation lines included, for each stanza that has it.

    Finding plain bytes takes a tenth of the time that a regular expression needs on 56 MB.
    """
    marker = b"\n" + field
    begin = 0 if text.startswith(field) else text.find(marker) + 1 or -1
    while begin >= 0:
        end = text.find(b"\n", begin)
        while end >= 0 and text[end + 1 : end + 2] in (b" ", b"\t"):
            end = text.find(b"\n", end + 1)
        end = len(text) if end < 0 else end
        yield begin, text[begin + len(field) : end]
        begin = text.find(marker, end) + 1 or -1


#: What a package is: where these are given twice, apt and this program may take different ones.
_ONCE: Final = ("package", "version", "architecture", "filename", "size", "sha256")


def _fields(stanza: str) -> dict[str, str]:
    """Field → value of one stanza; continuation lines are kept but for their indentation.

    Raises ValueError where it has a field of _ONCE twice.
    """
    fields: dict[str, list[str]] = {}
    last = ""
    for line in stanza.split("\n"):
        if line[:1] in (" ", "\t"):
            if last:
                fields[last].append(line.strip())
        else:
            name, _, value = line.partition(":")
            last = name.strip().lower()
            if last in _ONCE and last in fields:
                raise ValueError(f"it has {last} twice")
            fields[last] = [value.strip()]
    return {name: "\n".join(lines) for name, lines in fields.items()}


def named_candidate(text: str, read: Callable[[str], Candidate]) -> Candidate:
    """What ``read`` makes of the package's name; raises ValueError with the name and what is wrong with the package."""
    name = names.package(text)
    try:
        return read(name)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _read(fields: dict[str, str], name: str, where: Origin) -> Candidate:
    missing = [key for key in ("version", "architecture", "filename", "size", "sha256") if not fields.get(key)]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    source = _SOURCE.match(fields.get("source", name))
    if source is None:
        raise ValueError(f"not a source: {fields.get('source', name)[:80]!r}")
    version = names.version(fields["version"], "apt")

    def read(*kinds: str, architecture: str = where.architectures[0]) -> tuple[Group, ...]:
        return tuple(group for kind in kinds for group in relations(fields.get(kind, ""), architecture))

    provides = _flat(read("provides"))
    if fields.get("multi-arch") == "allowed":
        # It provides for any architecture what it doesn't provide for one, as apt has it.
        bare = (Relation(name, "=", version), *_flat(read("provides", architecture="")))
        provides += tuple(replace(each, package=f"{each.package}:any") for each in bare if ":" not in each.package)
    return Candidate(
        package=name,
        version=version,
        architecture=names.architecture(fields["architecture"]),
        source=names.package(source[1]),
        source_version=names.version(source[2], "apt") if source[2] else version,
        depends=read("depends"),
        pre_depends=read("pre-depends"),
        # Apt ignores what is provided in other than one version.
        provides=tuple(offer for offer in provides if offer.relation in ("", "=")),
        conflicts=_flat(read("conflicts", "breaks")),
        filename=names.path(fields["filename"]),
        size=names.size(fields["size"]),
        sha256=names.sha256(fields["sha256"]),
        repository=where.repository,
        suite=where.suite,
        component=where.component,
        origin=where.origin,
    )


def _flat(groups: tuple[tuple[Relation, ...], ...]) -> tuple[Relation, ...]:
    return tuple(relation for group in groups for relation in group)


def _unique(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The first of each package file."""
    by_key: dict[Key, Candidate] = {}
    for candidate in candidates:
        by_key.setdefault(candidate.key, candidate)
    return list(by_key.values())


class Universe:
    """All package lists of a profile as one, for the resolver."""

    def __init__(self, lists: Iterable[IndexedList]) -> None:
        self._lists = tuple(lists)

    def with_streams(self, streams: Mapping[str, str]) -> Universe:  # noqa: ARG002 - apt has no module streams
        """The packages on offer with these module streams enabled (module → stream).

        Raises NoSolution if a module has no such stream.
        """
        return self

    def streams(self) -> tuple[str, ...]:
        """The module streams, ``NAME:STREAM``, that this view has enabled."""
        return ()

    def names(self) -> frozenset[str]:
        """Every package name on offer."""
        return self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for packages in self._lists for name in packages.names())

    def precedence(self, origin: str) -> int:
        """A maker's place in the profile's order of repositories, from 0."""
        makers = [packages.where.origin for packages in self._lists]
        return makers.index(origin) if origin in makers else 0

    def named(self, name: str) -> list[Candidate]:
        """The candidates of that name, each version once: from the first list that has it."""
        return _unique(candidate for packages in self._lists for candidate in packages.named(name))

    def providing(self, name: str) -> list[Candidate]:
        """The candidates that provide the virtual package ``name``."""
        return _unique(candidate for packages in self._lists for candidate in packages.providing(name))

    def answering(self, relation: Relation) -> list[Candidate]:
        """The candidates that satisfy ``relation``, real packages before providers."""
        own = [c for c in self.named(relation.package) if c.answers(relation)]
        return own + [c for c in self.providing(relation.package) if c.answers(relation) and c not in own]
