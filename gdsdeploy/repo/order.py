"""Version order: dpkg's, as python-debian implements it (a differential test keeps it equal to the real dpkg)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from debian.debian_support import NativeVersion

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


@lru_cache(maxsize=65536)
def deb(version: str) -> NativeVersion:
    """A sort key with dpkg's order; raises ValueError for text that is no version."""
    return NativeVersion(version)


def holds(have: str, relation: str, wanted: str) -> bool:
    """Whether version ``have`` stands in ``relation`` (one of RELATIONS) to ``wanted``."""
    return RELATIONS[relation](deb(have), deb(wanted))


def upstream(version: str) -> str:
    """The package version without epoch and Debian revision: ``1:2.3-4`` → ``2.3``."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]
