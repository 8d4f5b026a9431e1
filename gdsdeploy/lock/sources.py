"""Where a locked package has its source tree, and what DKMS calls it: read from the package's own dkms.conf.

DKMS finds a package by name and version in ``/usr/src/<name>-<version>``, and dkms.conf says both (dkms(8)).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gdsdeploy import atomic
from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.model.lock import Index, Package, Part
from gdsdeploy.repo import packagefile
from gdsdeploy.repo.fetch import Fetcher, MissingFile, address

_CONF: Final = re.compile(r"usr/src/[^/]+/dkms\.conf")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")
_VERSION: Final = re.compile(r"[0-9][A-Za-z0-9._+~]{0,63}")
_ASSIGNMENT: Final = re.compile(
    r"""(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s;#"']*))(?:\s*;)?(?:\s+\#.*)?\s*"""
)
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_KEYS: Final = ("PACKAGE_NAME", "PACKAGE_VERSION")
#: Bytes of a remembered answer.
_MEMORY_LIMIT: Final = 4 << 20


@dataclass(frozen=True)
class SourceTree:
    """A source tree on the host, and its name and version in DKMS."""

    path: str
    dkms_name: str
    dkms_version: str


#: The source tree that packages of one part of the stack bring.
Sources = Callable[[Part, Sequence[Package]], SourceTree]


@dataclass(frozen=True)
class PackagedSources:
    """Reads the packages themselves, which have the digests of the signed index; each is read once."""

    fetcher: Fetcher
    indices: Sequence[Index]
    #: announces a long step while it runs
    step: Callable[[str], AbstractContextManager[None]]

    def __call__(self, part: Part, packages: Sequence[Package]) -> SourceTree:
        """The tree in the packages of ``part``.

        Raises RepositoryUnusable naming the package that can't be read or used, and what fetching raises.
        """
        candidates = [package for package in packages if package.part == part]
        trees: dict[SourceTree, Package] = {}
        for package in candidates:
            for path, text in self._confs(package).items():
                try:
                    trees.setdefault(parse(path, text), package)
                except ValueError as error:
                    raise _unusable(package, f"/{path}: {error}") from None
        if len(trees) == 1:
            return next(iter(trees))
        names = ", ".join(f"{package.package} {package.version}" for package in candidates) or f"the part {part}"
        listed = ", ".join(sorted(tree.path for tree in trees))
        message = f"has several source trees: {listed}" if listed else "has no /usr/src/…/dkms.conf"
        raise RepositoryUnusable(f"{names} {message}", hint=_HINT)

    def _confs(self, package: Package) -> dict[str, str]:
        """Path → text of each dkms.conf in ``package``."""
        memory = self.fetcher.cache / "dkms" / f"{package.sha256}.json"
        remembered = _remembered(memory)
        if remembered is not None:
            return remembered
        with self.step(f"Reading {package.package} {package.version}"):
            try:
                files = packagefile.find_files(fetch(self.fetcher, self.indices, package), _CONF)
            except (packagefile.UnreadablePackageError, MissingFile) as error:
                raise _unusable(package, str(error)) from error
        confs = {path: content.decode("utf-8", "replace") for path, content in files.items()}
        # Without it, the next run reads the package again.
        with contextlib.suppress(OSError):
            memory.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(memory, json.dumps(confs, sort_keys=True), mode=0o600)
        return confs


def fetch(fetcher: Fetcher, indices: Sequence[Index], package: Package) -> Path:
    """A locked package's file, with the digest of the signed index; raises MissingFile, and what fetching raises."""
    base = {(index.repository, index.suite): index.uri for index in indices}
    uri = address(base[package.repository, package.suite], package.file)
    return fetcher.file(uri, sha256=package.sha256, size=package.size)


def parse(path: str, text: str) -> SourceTree:
    """The tree of the dkms.conf ``text`` at ``path`` (``usr/src/TREE/dkms.conf``); raises ValueError with the reason.

    dkms.conf is a shell script that DKMS sources.  Plain assignments and the variables that they set are resolved;
    what only a shell on the host can tell is refused.
    """
    tree = path.split("/")[2]
    values = {key: _value(key, text) for key in _KEYS}
    for key, pattern in zip(_KEYS, (_NAME, _VERSION), strict=True):
        if not pattern.fullmatch(values[key]):
            raise ValueError(f"{key} is {values[key]!r}, which is no name that DKMS takes before the build")
    name, version = values.values()
    if tree != f"{name}-{version}":
        raise ValueError(f"DKMS looks for {name} {version} in /usr/src/{name}-{version}, not in /usr/src/{tree}")
    return SourceTree(f"/usr/src/{tree}", name, version)


def _value(key: str, text: str) -> str:
    """What a shell has in ``key`` after the script, if that is certain; raises ValueError."""
    assigned = _assignments(text)
    return _expand(key, assigned, ())


def _assignments(text: str) -> dict[str, set[tuple[str, bool]]]:
    """Variable → (value, whether it is literal) of each assignment; one that isn't plain counts as two."""
    assigned: dict[str, set[tuple[str, bool]]] = {}
    for line in text.replace("\\\n", "").splitlines():
        match = _ASSIGNMENT.fullmatch(line)
        if match:
            literal = match["single"] is not None
            value = next(group for group in (match["double"], match["single"], match["bare"]) if group is not None)
            assigned.setdefault(match["name"], set()).add((value, literal))
            continue
        if line.lstrip().startswith("#"):
            continue
        # Inside a condition, after another command, appended to, or computed.
        for name in re.findall(r"(?:^|[\s;&|(])([A-Za-z_]\w*)(?:\[\w*\])?\+?=", line):
            assigned.setdefault(name, set()).update({("", True), (line.strip(), True)})
    return assigned


def _expand(name: str, assigned: dict[str, set[tuple[str, bool]]], within: tuple[str, ...]) -> str:
    values = assigned.get(name, set())
    if not values:
        raise ValueError(f"{name} is not set")
    if len(values) > 1 or name in within:
        raise ValueError(f"{name} depends on more than plain assignments")
    ((value, literal),) = values
    if literal:
        return value
    return _VARIABLE.sub(lambda match: _expand(match[1] or match[2], assigned, (*within, name)), value)


def _remembered(memory: Path) -> dict[str, str] | None:
    """What was read of a package before; None if nothing was, or not as it is read now."""
    try:
        with memory.open("rb") as file:
            value = json.loads(file.read(_MEMORY_LIMIT))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        return None
    return value if all(_CONF.fullmatch(path) for path in value) else None


_HINT: Final = "Lock another version of this driver or nvidia-fs, or use another repository"


def _unusable(package: Package, reason: str) -> RepositoryUnusable:
    where = f"{package.package} {package.version} ({package.repository})"
    return RepositoryUnusable(f"{where}: its source tree can't be told: {reason}", hint=_HINT)
