"""What a repository offers: packages and the relations between them.  Pure data and pure parsing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gdsdeploy.repo.order import DEB, Order


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
    r"^(?P<name>[a-zA-Z0-9][a-zA-Z0-9.+-]*)(?::[a-z0-9-]+)?"
    r"(?:\s*\(\s*(?P<relation><<|<=|=|>=|>>|<|>)\s*(?P<version>[0-9A-Za-z][^\s)]*)\s*\))?"
    r"(?:\s*\[[^\]]*\])?(?:\s*<[^>]*>)*$"
)


def relations(field: str) -> tuple[Group, ...]:
    """Parse a relationship field: groups separated by commas, alternatives by ``|``.

    Architecture qualifiers (``:any``) are dropped: this program locks one architecture at a time.
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
            relation = Relation(match["name"], match["relation"] or "", match["version"] or "")
            if relation not in group:
                group.append(relation)
        groups.append(tuple(group))
    return tuple(groups)
