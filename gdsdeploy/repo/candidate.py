"""What a repository offers: packages and the relations between them.  Pure data and pure parsing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gdsdeploy.repo.order import holds


@dataclass(frozen=True, slots=True)
class Relation:
    """One alternative of a dependency: a name, and a bound on its version if ``relation`` is not empty."""

    package: str
    relation: str = ""
    version: str = ""

    def admits(self, version: str) -> bool:
        """Whether a package of this name and ``version`` satisfies the relation."""
        return not self.relation or holds(version, self.relation, self.version)

    def __str__(self) -> str:
        return f"{self.package} ({self.relation} {self.version})" if self.relation else self.package


#: Alternatives, first wanted first.
Group = tuple[Relation, ...]


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
    #: the signed index's Origin, lower case: who made the package (``debian``, ``nvidia``)
    origin: str

    def answers(self, relation: Relation) -> bool:
        """Whether this package satisfies ``relation`` by its own name or by one it provides.

        A versioned relation is satisfied only by a versioned Provides (deb-control(5), Debian policy 7.5).
        """
        if self.package == relation.package and relation.admits(self.version):
            return True
        return any(
            offer.package == relation.package
            and (not relation.relation or bool(offer.version and relation.admits(offer.version)))
            for offer in self.provides
        )

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
