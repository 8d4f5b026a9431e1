"""Packages, holds, pins, locks and repositories that others have set up."""

from __future__ import annotations

import fnmatch
import re
from typing import Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..facts.foreign import ForeignFacts, Source
from ..facts.packages import Package
from ..facts.unknown import require
from .model import ForeignInstall, Locked, Trace
from .registry import recognizer

#: Packages of modules that were built elsewhere for one kernel: Canonical's, and precompiled ones of rpm systems.
_PREBUILT = re.compile(
    r"linux-modules-nvidia-\S*\d\S*"
    r"|kmod-(?:64k-)?nvidia-(?:open-|latest-)?\d\S*|kmod-nvidia-(?!\S*dkms)\S+|nvidia-open-kmod|cuda-open(?:-hwe)?"
)
#: Pieces of the driver by name, and the version that tells the driver from what else has such a name.
_DRIVER = re.compile(r"(?:lib)?nvidia-(?!driver-pinning)|cuda-drivers|xserver-xorg-video-nvidia|kmod-nvidia")
_DRIVER_VERSION = re.compile(r"(?:\d+:)?[3-9]\d\d\.\d+")
#: gdsdeploy's part of dnf's list of locks, and its file of preferences.
_OWN_LOCKS = re.compile(r"^# BEGIN gdsdeploy$.*?^# END gdsdeploy$", re.MULTILINE | re.DOTALL)
_OWN_PREFERENCES = "/etc/apt/preferences.d/00-gdsdeploy.pref"
_FIELD = re.compile(r"^(Package|Pin|Pin-Priority):[ \t]*(.*)$", re.MULTILINE | re.IGNORECASE)
#: What gdsdeploy's pins have; a pin that is read before them and has more wins.
_PRIORITY = 1001


@recognizer("prebuilt-modules")
def prebuilt_modules(facts: ForeignFacts, locked: Locked) -> Optional[ForeignInstall]:
    names = [name for name in _present(facts) if _PREBUILT.fullmatch(name) and name not in locked.packages]
    return ForeignInstall("prebuilt-modules", _versions(facts, names))


@recognizer("driver-packages")
def driver_packages(facts: ForeignFacts, locked: Locked) -> Optional[ForeignInstall]:
    """Pieces of a driver that the lock doesn't have: provision leaves them in their version, or has to remove them."""
    if not locked.packages:
        return None
    names = [
        name
        for name, packages in _present(facts).items()
        if name not in locked.packages
        and _DRIVER.match(name)
        and not _PREBUILT.fullmatch(name)
        and any(_DRIVER_VERSION.match(package.version) for package in packages)
    ]
    return ForeignInstall("driver-packages", _versions(facts, names))


@recognizer("hold")
def hold(facts: ForeignFacts, locked: Locked) -> Optional[ForeignInstall]:
    """Holds on the lock's packages that aren't gdsdeploy's."""
    own = require(facts.own_holds)
    present = _present(facts)
    names = [
        name
        for name, packages in present.items()
        if name in locked.packages
        and name not in own
        and any(package.status.startswith("h") for package in packages)
        and not any(package.version == locked.packages[name] for package in packages)
    ]
    return ForeignInstall("hold", _versions(facts, names))


class _Pin(NamedTuple):
    path: str
    names: Tuple[str, ...]
    pin: str
    priority: int


@recognizer("pin")
def pin(facts: ForeignFacts, locked: Locked) -> Optional[ForeignInstall]:
    """Records for the lock's packages; of two records for a version, apt takes the one that it reads first."""
    traces: List[Trace] = []
    breaks = False
    for path, text in require(facts.preferences):
        if path == _OWN_PREFERENCES:
            continue
        # gdsdeploy's file sorts before all names that don't begin with a lower character.
        is_first = path == "/etc/apt/preferences" or path < _OWN_PREFERENCES
        for record in _pins(path, text):
            names = [name for name in locked.packages if any(_matches(word, name) for word in record.names)]
            if not names:
                continue
            wins = is_first and any(_wins(record, locked.packages[name]) for name in names)
            detail = f"{' '.join(record.names)}; {record.pin}; priority {record.priority}"
            traces.append(Trace(path, detail + ("; read before gdsdeploy's" if wins else "")))
            breaks = breaks or wins
    return ForeignInstall("pin", tuple(traces), breaks)


def _pins(path: str, text: str) -> Iterator[_Pin]:
    """Records that name packages; those for ``*`` give way to gdsdeploy's, which name them."""
    for block in re.split(r"\n[ \t]*\n", re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)):
        fields = {name.lower(): value.strip() for name, value in _FIELD.findall(block)}
        names = tuple(word for word in fields.get("package", "").split() if word != "*")
        priority = fields.get("pin-priority", "")
        if names and re.fullmatch(r"-?\d{1,6}", priority):
            yield _Pin(path, names, fields.get("pin", ""), int(priority))


def _matches(word: str, name: str) -> bool:
    """As apt: a name, a shell pattern, or a regular expression between slashes."""
    if len(word) > 2 and word[0] == word[-1] == "/":
        try:
            return re.search(word[1:-1], name) is not None
        except re.error:
            return False
    return fnmatch.fnmatchcase(name, word.partition(":")[0])


def _wins(record: _Pin, version: str) -> bool:
    """Whether apt would not take ``version``: it is forbidden, or another one has a higher priority."""
    kind, _, value = record.pin.partition(" ")
    if kind == "version":
        is_locked = fnmatch.fnmatchcase(version, value.strip())
        return record.priority < 0 if is_locked else record.priority >= _PRIORITY
    # What a release or an address has isn't known here, but ``*`` is everything.
    return record.priority < 0 and value.strip() == "*"


@recognizer("versionlock")
def versionlock(facts: ForeignFacts, locked: Locked) -> Optional[ForeignInstall]:
    """Lines of dnf's locks that keep the locked version of a package out, or name another one."""
    traces: List[Trace] = []
    breaks = False
    for path, text in require(facts.locks):
        for line in _OWN_LOCKS.sub("", text).splitlines():
            pattern = line.strip().lstrip("!")
            if not pattern or pattern.startswith("#"):
                continue
            names = [name for name, version in locked.packages.items() if _locks(pattern, name, version)]
            others = [name for name in locked.packages if name not in names and _names(pattern, name)]
            is_exclude = line.strip().startswith("!")
            if is_exclude and names:
                missing = _missing(facts, locked, names)
                traces.append(Trace(path, line.strip()))
                breaks = breaks or bool(missing)
            elif others and not is_exclude:
                traces.append(Trace(path, line.strip()))
    return ForeignInstall("versionlock", tuple(traces), breaks)


@recognizer("exclude")
def exclude(facts: ForeignFacts, locked: Locked) -> Optional[ForeignInstall]:
    """Settings of dnf that keep packages of the lock out; those that are installed stay as they are."""
    traces: List[Trace] = []
    breaks = False
    for path, line in require(facts.excludes):
        words = re.split(r"[,\s]+", line.partition(": ")[2])
        names = [
            name
            for name, version in locked.packages.items()
            if any(_locks(word, name, version) for word in words if word)
        ]
        if names:
            traces.append(Trace(path, f"{line}: {', '.join(names)}"))
            breaks = breaks or (line.startswith("main: ") and bool(_missing(facts, locked, names)))
    return ForeignInstall("exclude", tuple(traces), breaks)


def _locks(pattern: str, name: str, version: str) -> bool:
    """Whether a pattern of dnf, with any of its parts, is about this version of a package."""
    plain = version.partition(":")[2] if ":" in version else version
    epoch = version.partition(":")[0] if ":" in version else "0"
    spellings = (name, f"{name}-{plain}", f"{name}-{epoch}:{plain}", f"{epoch}:{name}-{plain}")
    return any(
        fnmatch.fnmatchcase(spelling + suffix, pattern)
        for spelling in spellings
        for suffix in ("", ".x86_64", ".noarch", ".aarch64")
    )


def _names(pattern: str, name: str) -> bool:
    """Whether the name in NAME-EPOCH:VERSION-RELEASE matches."""
    head = re.match(r"(?:\d+:)?(.+?)-(?:\d+:)?\d[^-]*(?:-[^-]*)?$", pattern)
    return fnmatch.fnmatchcase(name, head.group(1) if head else pattern)


@recognizer("repository")
def repository(facts: ForeignFacts, locked: Locked) -> Optional[ForeignInstall]:
    """Repositories with a driver that the lock doesn't use; nothing of one that isn't verified can be trusted."""
    if not locked.repositories:
        return None
    sources = require(facts.sources)
    strange = [one for one in sources if one.trusted or not _is_locked(one, locked.repositories)]
    return ForeignInstall("repository", tuple(Trace(one.path, _shown(one)) for one in strange))


def _is_locked(source: Source, addresses: Sequence[str]) -> bool:
    return any(_bare(address) and _bare(address) in source.line for address in addresses)


def _bare(address: str) -> str:
    """Without the scheme, a password and the last slash."""
    return re.sub(r"^[a-z+]+://(?:[^/@]*@)?", "", address).rstrip("/")


def _shown(source: Source) -> str:
    """Its line without a password."""
    line = re.sub(r"://[^/@\s]*@", "://", source.line)
    return line + ("; its packages are not verified" if source.trusted else "")


# Installed packages


def _present(facts: ForeignFacts) -> Mapping[str, Tuple[Package, ...]]:
    """Name → packages that are unpacked."""
    installed = require(facts.installed)
    present = {}
    for name, packages in sorted(installed.items()):
        unpacked = tuple(package for package in packages if package.status[1:2] not in ("n", "c", ""))
        if unpacked:
            present[name] = unpacked
    return present


def _versions(facts: ForeignFacts, names: Sequence[str]) -> Tuple[Trace, ...]:
    present = _present(facts) if names else {}
    return tuple(Trace(name, ", ".join(package.version for package in present[name])) for name in names)


def _missing(facts: ForeignFacts, locked: Locked, names: Sequence[str]) -> List[str]:
    """Those that aren't installed in the locked version, so that provision has to install them."""
    present = _present(facts)
    return [
        name
        for name in names
        if _plain(locked.packages[name]) not in [_plain(package.version) for package in present.get(name, ())]
    ]


def _plain(version: str) -> str:
    return version[2:] if version.startswith("0:") else version
