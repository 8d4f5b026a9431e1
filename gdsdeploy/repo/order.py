"""Version order of the package families: dpkg's as python-debian has it, and rpm's.

Differential tests keep both equal to the real programs.  Everything that compares versions asks the ``Order`` of the
platform or of the relation that it looks at.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Literal

from debian.debian_support import NativeVersion

from gdsdeploy.host.apply.packages.versions import rpm

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
        return not relation or bool(offered and holds(version, relation, bound))


class _Rpm(Order):
    kind = "rpm"

    def key(self, version: str) -> Any:
        return rpm(version)

    def meets(self, offered: str, version: str, relation: str, bound: str) -> bool:
        """A Provides without a version satisfies every relation; two ranges need only overlap."""
        if not offered or not relation:
            return True
        have, need = rpm(version), rpm(bound)
        sense = have.compare(need, release=bool(have.release and need.release))
        if sense == 0 and bool(have.release) != bool(need.release):
            # A side without a release means any release of its version.
            open_side = relation if have.release else offered
            if "=" in open_side:
                return True
        if sense < 0:
            return ">" in offered or "<" in relation
        if sense > 0:
            return "<" in offered or ">" in relation
        return any(sign in offered and sign in relation for sign in "<=>")


DEB: Final = _Deb()
RPM: Final = _Rpm()


@lru_cache(maxsize=65536)
def deb(version: str) -> NativeVersion:
    """A sort key with dpkg's order; raises ValueError for text that is no version."""
    return NativeVersion(version)


def holds(have: str, relation: str, bound: str) -> bool:
    """Whether version ``have`` stands in ``relation`` (one of RELATIONS) to ``bound``, by dpkg's order."""
    return RELATIONS[relation](deb(have), deb(bound))


def upstream(version: str) -> str:
    """The package version without epoch and Debian revision or rpm release: ``1:2.3-4`` → ``2.3``."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]
