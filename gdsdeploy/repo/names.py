"""What a repository calls its things, checked where an index is read, and nowhere else: for apt and rpm alike.

These words become paths, addresses, lines of files and arguments of programs on hosts, and versions are put in order.
Each function gives its text back, and raises ValueError that says what the text is not.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final, Literal

#: Characters of a name or a version; numbers of more than some thousand digits can't be compared.
LONGEST: Final = 200
#: Characters of a path.
LONGEST_PATH: Final = 1024
#: Bytes of a package; ar, in which a .deb is, has no larger members.
LARGEST_PACKAGE: Final = 10**10

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_ARCHITECTURE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
#: NAME-EPOCH:VERSION-RELEASE.ARCH
_NEVRA: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+~^:-]*")
#: deb-version(7), and rpm-version(7) with the unexpanded macros and hyphens that relations of some packages have.
_VERSIONS: Final = {
    "apt": re.compile(r"[0-9]{1,9}:[A-Za-z0-9.+~:-]+|[A-Za-z0-9.+~-]+"),
    "rpm": re.compile(r"(?:[0-9]{1,9}:)?[A-Za-z0-9._+~^%{}]+(?:-[A-Za-z0-9._+~^%{}]+)*"),
}
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SIZE: Final = re.compile(r"[0-9]{1,15}")
#: No part begins with a dot: ``..`` leads out, and what else begins so steers servers and package managers.
_PART: Final = r"[!-\-0-\[\]-~](?: ?[!-.0-\[\]-~])*"
_PATH: Final = re.compile(rf"{_PART}(?:/{_PART})*")


def _checked(text: str, pattern: re.Pattern[str], what: str, longest: int = LONGEST) -> str:
    if len(text) > longest or not pattern.fullmatch(text):
        raise ValueError(f"not {what}: {text[:80]!r}")
    return text


#: The name of a package, a module or a stream.
package = partial(_checked, pattern=_NAME, what="a name")
#: The architecture of a package.
architecture = partial(_checked, pattern=_ARCHITECTURE, what="an architecture")
#: A package as module metadata names it.
nevra = partial(_checked, pattern=_NEVRA, what="a package's name and version")
#: A checksum, which also names files in the cache.
sha256 = partial(_checked, pattern=_SHA256, what="a sha256")


def version(text: str, kind: Literal["apt", "rpm"]) -> str:
    """A version, which the family's order can compare with every other."""
    return _checked(text, _VERSIONS[kind], "a version")


def size(text: str, most: int = LARGEST_PACKAGE) -> int:
    """Bytes of a file."""
    number = int(_checked(text, _SIZE, "a number of bytes"))
    if number > most:
        raise ValueError(f"{number} bytes are more than the {most} that it may have")
    return number


def path(text: str) -> str:
    """A file's place below the repository's address, without ``./`` before it."""
    place = text.removeprefix("./")
    if "://" in place:
        raise ValueError(f"not a path inside the repository: {text[:LONGEST]!r}")
    return _checked(place, _PATH, "a path inside the repository", LONGEST_PATH)
