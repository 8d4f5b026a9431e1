"""``gdsdeploy.lock``: reading, writing, whether it still fits its fleet file, and what changed between two of them.

The file is sorted and has no time of writing: apart from the fleet's id, the same input gives the same bytes.  A digest
detects manual edits.
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from gdsdeploy import console, paths
from gdsdeploy.errors import LockInvalid, LockStale, SignatureRefused
from gdsdeploy.files import output, yamlfile
from gdsdeploy.fleetfile.load import CONFINED, Reading, load_fleet, parse_document
from gdsdeploy.fleetfile.rules import rules_of
from gdsdeploy.host.model.compat import Combination, judge, kernel_version
from gdsdeploy.host.subjects.condition import numbers
from gdsdeploy.host.subjects.libcufile import SILENT
from gdsdeploy.lock import repo_settings, signatures
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.hostnames import grouped
from gdsdeploy.model.lock import LOCK_VERSION, Lock, Target
from gdsdeploy.platform import stack_platform_for, version_order


def pins(profile: Profile) -> dict[str, str]:
    """Everything in a profile that a resolution depends on, apart from system and repositories."""
    optional = {
        "companions": ", ".join(profile.companions),
        "cuda": ", ".join(profile.cuda),
        "doca": ", ".join(profile.doca),
        "gpu": profile.gpu or "",
        "modules": profile.modules if profile.modules == "packaged" else "",
        "kernel_flavour": profile.kernel.flavour or "",
        # Their order says whose driver wins.
        "repositories": ", ".join(profile.repositories or ()) if len(profile.repositories or ()) > 1 else "",
    }
    return {
        "driver": profile.driver.version,
        "flavour": profile.driver.flavour,
        "kernel": profile.kernel.version,
        "libcufile": profile.libcufile,
        "mode": profile.mode,
        "nvidia_fs": profile.nvidia_fs,
        "rdma": profile.rdma,
        **{key: value for key, value in optional.items() if value},
    }


NAME = "gdsdeploy.lock"

_HEAD = """\
# Written by `gdsdeploy lock`; commit it beside the fleet file, and let `gdsdeploy lock` change it.
# Every package with its exact version and checksum, as signed repository indices had them.
"""
_ABSENT = ("there is no lock yet", "Run `gdsdeploy lock` on the fleet file")
_AGAIN = "Run `gdsdeploy lock {fleet}` and review the change list"


def beside(fleet: Path) -> Path:
    """The lock that belongs to a fleet file: ``gdsdeploy.lock`` in the same folder."""
    return paths.folder_of(fleet) / NAME


def build(targets: dict[str, Target], *, fleet_id: str | None = None, serial: int = 0) -> Lock:
    """A lock of these targets, with its digest."""
    ordered = dict(sorted(targets.items()))
    content = {
        "lock_version": LOCK_VERSION,
        "targets": {name: target.model_dump() for name, target in ordered.items()},
        **{key: value for key, value in (("fleet_id", fleet_id), ("serial", serial)) if value},
    }
    return Lock(lock_version=LOCK_VERSION, digest=_digest(content), fleet_id=fleet_id, serial=serial, targets=ordered)


def successor(lock: Lock, fleet: Fleet, old: Lock | None) -> Lock:
    """``lock`` with the fleet's id, which is made for its first lock, and a higher serial than ``old``'s."""
    fleet_id = fleet.fleet_id or (old.fleet_id if old else None) or secrets.token_hex(16)
    return build(lock.targets, fleet_id=fleet_id, serial=(old.serial if old else 0) + 1)


def render(lock: Lock) -> str:
    content = json.loads(lock.model_dump_json())
    return _HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=10_000)


def write(path: Path, lock: Lock) -> None:
    """Write the lock file in one step: a reader sees the old one or the new one; raises LockInvalid if it cannot."""
    text = render(lock)
    if len(text.encode()) > yamlfile.LIMIT:
        words = f"it would have {len(text.encode()):,} bytes; no reader takes more than {yamlfile.LIMIT:,}"
        raise LockInvalid(f"{path}: {words}", hint="Divide the profiles among several fleet files")
    output.write(path, text, error=LockInvalid)


def read(path: Path, *, warn: Callable[[str], None] = console.warn, links: bool = True) -> Lock:
    """Read a lock file; raises LockInvalid: missing, malformed (file:line:column), edited, or of another major.

    links: whether it may be a link that leads out of its folder.
    """
    return _parse(yamlfile.read(path, error=LockInvalid, absent=_ABSENT, links=links), warn)


def content(path: Path, *, links: bool = True) -> bytes:
    """The bytes of a lock file; raises LockInvalid.  links: as for :func:`read`."""
    return yamlfile.content(path, error=LockInvalid, absent=_ABSENT, links=links)


def read_signed(
    path: Path, fleet: Fleet, fleet_path: Path, *, warn: Callable[[str], None] = console.warn, links: bool = True
) -> Lock:
    """Read a lock that a signer of the fleet file has signed; as :func:`read` where the fleet file names no signers.

    links: as for :func:`read`, also of the signature.  Raises SignatureRefused, FleetInvalid and MissingProgram, too.
    """
    if fleet.signers is None:
        return read(path, warn=warn, links=links)
    data = content(path, links=links)
    if not links:
        yamlfile.require_no_way_out(signatures.beside(path), SignatureRefused)
    return verified(path, fleet, fleet_path, data, signatures.read(path, fleet_path), warn=warn)


def verified(
    path: Path,
    fleet: Fleet,
    fleet_path: Path,
    data: bytes,
    signature: bytes,
    *,
    warn: Callable[[str], None] = console.warn,
) -> Lock:
    """The lock in ``data``, the content of the file ``path``, if a signer of the fleet file has signed it.

    Raises as :func:`read_signed`.
    """
    signatures.require(fleet, fleet_path, path, data, signature)
    lock = _parse(yamlfile.parse(path, data, error=LockInvalid, absent=_ABSENT), warn)
    signatures.require_own(fleet, fleet_path, lock, path)
    lock._signed = (data, signature)
    return lock


def _parse(document: yamlfile.Document, warn: Callable[[str], None]) -> Lock:
    path = document.path
    value = _mapping(document)
    if "profiles" in value and "lock_version" not in value:
        raise LockInvalid(f"{path}: this is a fleet file", hint=f"Its lock is {beside(path)}")
    own, file_version = _numbers(LOCK_VERSION), _numbers(value.get("lock_version"))
    if file_version and file_version[0] != own[0]:
        raise LockInvalid(
            f"{path}: lock version {value['lock_version']}, but this gdsdeploy reads {own[0]}.x",
            hint="Use the gdsdeploy that wrote it" if file_version > own else "Run `gdsdeploy lock` on the fleet file",
        )
    if file_version > own:
        warn(
            f"{path}: written by a newer gdsdeploy (lock version {value['lock_version']}, this one writes "
            f"{LOCK_VERSION}); unknown keys are ignored"
        )
    lock = parse_document(document, Lock, error=LockInvalid, extra="ignore" if file_version > own else None)
    if _digest(value) != lock.digest:
        raise LockInvalid(
            f"{path}: the lock was edited by hand: its content does not match its digest",
            hint="Undo the edit, or change the fleet file and run `gdsdeploy lock` on it",
        )
    return lock


def previous(path: Path, *, warn: Callable[[str], None] = console.warn) -> Lock | None:
    """The lock that a new one will replace, if it is readable.

    Raises LockInvalid only for a newer major, and for a link that leads out of its folder.
    """
    yamlfile.require_no_way_out(path, LockInvalid)
    if not path.exists():
        return None
    major: tuple[int, ...] = ()
    try:
        document = yamlfile.read(path, error=LockInvalid, absent=_ABSENT, links=False)
        major = _numbers(_mapping(document).get("lock_version"))[:1]
        return _parse(document, warn)
    except LockInvalid as error:
        if major > _numbers(LOCK_VERSION)[:1]:
            raise
        warn(f"{error.message}; resolving it again")
        return None


def _mapping(document: yamlfile.Document) -> dict[str, Any]:
    return document.value if isinstance(document.value, dict) else {}


def _numbers(version: object) -> tuple[int, ...]:
    """(major, minor); empty for anything but a lock version."""
    match = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", version) if isinstance(version, str) else None
    return tuple(map(int, match.groups())) if match else ()


def _digest(content: dict[str, Any]) -> str:
    """Over everything but the digest itself, in a form that does not depend on layout or key order."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class Difference(enum.Enum):
    """Why a lock does not fit its fleet file."""

    PROFILE_MISSING = "profile not in the lock"
    PROFILE_GONE = "profile no longer in the fleet file"
    OS_CHANGED = "operating system"
    ARCH_CHANGED = "architecture"
    FLAVOUR_CHANGED = "driver flavour"
    MODE_CHANGED = "mode"
    PIN_CHANGED = "pin"
    REPOSITORIES_CHANGED = "repositories"
    KEYS_CHANGED = "signing keys"
    RULE_REFUSES = "rule"
    REPOSITORY_GONE = "repository can't be read"
    STREAM_GONE = "module stream no longer in its repository"
    PACKAGE_GONE = "package no longer in its repository"
    PACKAGE_REPLACED = "package replaced in its repository"
    FILE_GONE = "file no longer in its repository"
    INDEX_REFUSED = "index refused"
    INDEX_OLDER = "index older than the one that was locked"


@dataclass(frozen=True)
class Reason:
    """One difference: the expected and the found value."""

    difference: Difference
    profile: str
    #: the key that differs, e.g. ``driver``; empty where the difference names it
    subject: str
    expected: str
    found: str

    def __str__(self) -> str:
        what = f"profile {self.profile}: {f'{self.difference.value} {self.subject}'.strip()}"
        match self.difference:
            case _ if not self.expected and not self.found:
                return what
            case Difference.RULE_REFUSES:
                return f"profile {self.profile}: [{self.subject}] {self.found} The rule is in {self.expected}"
            case Difference.INDEX_REFUSED | Difference.REPOSITORY_GONE | Difference.STREAM_GONE | Difference.FILE_GONE:
                return f"{what}: {self.found}"
            case Difference.PACKAGE_GONE | Difference.PACKAGE_REPLACED | Difference.INDEX_OLDER:
                return f"{what}: the lock has {self.expected}, the repository {self.found}"
        return f"{what}: the fleet file says {self.expected}, the lock has {self.found}"


def status(fleet: Fleet, lock: Lock) -> list[Reason]:
    """Every reason why ``lock`` does not fit ``fleet``; empty: it fits."""
    missing, surplus = fleet.profiles.keys() - lock.targets.keys(), lock.targets.keys() - fleet.profiles.keys()
    both = [(name, lock.targets[name]) for name in sorted(fleet.profiles.keys() & lock.targets.keys())]
    return [
        *(Reason(Difference.PROFILE_MISSING, name, "", "", "") for name in sorted(missing)),
        *(Reason(Difference.PROFILE_GONE, name, "", "", "") for name in sorted(surplus)),
        *(reason for each in both for part in (_profile, _repositories, _refused) for reason in part(fleet, *each)),
    ]


def combination(target: Target) -> Combination:
    """What rules may ask about a target; of the lock of an older gdsdeploy, only its kernel."""
    return {**target.judged, "kernel": kernel_version(target.kernel.release, target.kernel.version)}


def _refused(fleet: Fleet, name: str, target: Target) -> Iterator[Reason]:
    """The rules that refuse what is locked: those of a newer gdsdeploy, or of the fleet since it was locked."""
    rules = rules_of(fleet)
    places = {rule.id: rule.place for rule in rules}
    for verdict in judge(combination(target), rules):
        if not verdict.allowed:
            place = places[verdict.rule] or "gdsdeploy/lock/compat.yml"
            yield Reason(Difference.RULE_REFUSES, name, verdict.rule, place, verdict.words)


_NAMED = {"flavour": Difference.FLAVOUR_CHANGED, "mode": Difference.MODE_CHANGED}


def _profile(fleet: Fleet, name: str, target: Target) -> Iterator[Reason]:
    profile = fleet.profiles[name]
    if profile.os != target.os:
        yield Reason(Difference.OS_CHANGED, name, "", profile.os, target.os)
    if profile.arch != target.arch:
        yield Reason(Difference.ARCH_CHANGED, name, "", profile.arch, target.arch)
    current = pins(profile)
    for key in sorted(current.keys() | target.pins.keys()):
        expected, actual = current.get(key, "nothing"), target.pins.get(key, "nothing")
        if expected != actual:
            yield Reason(_NAMED.get(key, Difference.PIN_CHANGED), name, "" if key in _NAMED else key, expected, actual)


def _repositories(fleet: Fleet, name: str, target: Target) -> Iterator[Reason]:
    """Differences in what the fleet file fixes; an address that it leaves open may differ between controllers."""
    platform = stack_platform_for(target.os)
    names = sorted(repo_settings.names(fleet, name, platform))
    locked = grouped((index, index.repository) for index in target.indices)
    if names != sorted(locked):
        yield Reason(Difference.REPOSITORIES_CHANGED, name, "", ", ".join(names), ", ".join(sorted(locked)))
    for repository in sorted(set(names) & locked.keys()):
        indices = locked[repository]
        fixed = repo_settings.setting(fleet, repository, platform, target.arch).declared()
        compared: list[tuple[str, list[str], list[str]]] = [
            ("suites", sorted(fixed.suites), sorted(index.suite for index in indices if index.suite)),
            ("components", list(fixed.components), list(indices[0].components)),
            ("signed_by", [fixed.host_keyring], [indices[0].host_keyring]),
            ("metadata", ["unsigned" if fixed.unsigned else "signed"], [indices[0].metadata]),
            ("package_keys", sorted(fixed.package_keys), sorted(indices[0].package_keys)),
        ]
        if fixed.uri:
            compared.append(("uri", [fixed.uri], [indices[0].uri]))
        for key, expected, actual in compared:
            if expected != actual:
                subject = f"{repository}.{key}"
                yield Reason(Difference.REPOSITORIES_CHANGED, name, subject, " ".join(expected), " ".join(actual))
        for signer in sorted({index.signed_by for index in indices if index.signed_by} - set(fixed.fingerprints)):
            yield Reason(Difference.KEYS_CHANGED, name, repository, " ".join(fixed.fingerprints), signer)


def fleet_and_lock(
    fleet_path: Path,
    mode: Reading = CONFINED,
    *,
    fresh: bool = True,
    signed: bool = True,
    any_serial: bool = False,
) -> tuple[Fleet, Lock]:
    """The fleet file and the lock beside it; raises FleetInvalid, LockInvalid and, where ``fresh``, LockStale.

    mode: what it may do on this machine.
    signed: whether the lock has to have a signature where the fleet file names signers; raises SignatureRefused.  Only
    what changes no host goes without.  any_serial: whether hosts take a lock that is older than theirs.
    """
    fleet, path = load_fleet(fleet_path, mode), beside(fleet_path)
    if any_serial:
        fleet = fleet.with_any_serial()
    lock = read_signed(path, fleet, fleet_path, links=mode.links) if signed else read(path, links=mode.links)
    if fresh:
        require_fresh(fleet, lock, fleet_file=fleet_path)
    return fleet, lock


def require_fresh(fleet: Fleet, lock: Lock, *, fleet_file: Path | str) -> None:
    """Raise LockStale naming every reason unless ``lock`` fits ``fleet``."""
    if reasons := status(fleet, lock):
        lines = ["the lock does not fit the fleet file:", *(f"  - {reason}" for reason in reasons)]
        raise LockStale("\n".join(lines), hint=_AGAIN.format(fleet=fleet_file))


Kind = Literal["added", "removed", "upgraded", "downgraded", "changed", "rebuilt"]


@dataclass(frozen=True)
class Change:
    profile: str
    kind: Kind
    #: ``kernel``, ``driver`` …, or the name of a package
    what: str
    #: versions; empty where there was or is none
    before: str
    after: str
    #: a subject such as the driver, rather than one package
    subject: bool = False

    def __str__(self) -> str:
        between = " → ".join(filter(None, (self.before, self.after)))
        words = filter(None, (self.what, between, "" if self.kind == "changed" else f"({self.kind})"))
        return " ".join(words)


def changes(old: Lock | None, new: Lock) -> list[Change]:
    """Every change from ``old`` to ``new``: of each profile subjects, packages by name, and what was adopted."""
    before = old.targets if old else {}
    return [
        change
        for name in sorted(before.keys() | new.targets.keys())
        for differences in (_subjects, _packages, _adopted)
        for change in differences(name, before.get(name), new.targets.get(name))
    ]


def consequences(change: Change) -> str:
    """What a change of a subject does to programs that its versions don't say; empty where nothing is known."""
    crosses = change.before and numbers(change.before) < SILENT <= numbers(change.after)
    if not (change.subject and change.what == "libcufile" and crosses):
        return ""
    return (
        f"libcufile {change.after} registers files without a direct path in compat mode, where {change.before} "
        "returned an error; programs that relied on it fall back silently: compare the paths with gdsdeploy explain"
    )


def same_choice(old: Lock | None, new: Lock) -> bool:
    """Whether both locks have the same packages from the same places for the same pins.

    The dates of the indices, and the refused versions, change with the archive while the choice stays.
    """
    return old is not None and _choice(old) == _choice(new)


def _choice(lock: Lock) -> dict[str, Target]:
    timeless = {"date": "", "valid_until": None}
    return {
        name: target.model_copy(
            update={"refused": (), "indices": tuple(index.model_copy(update=timeless) for index in target.indices)}
        )
        for name, target in lock.targets.items()
    }


def subjects(target: Target) -> dict[str, str]:
    """The subjects of a target with their versions, in words."""
    return {
        "os": f"{target.os} {target.arch}",
        "kernel": target.kernel.release,
        "driver": f"{target.driver.version} ({target.driver.flavour})",
        "nvidia-fs": target.nvidia_fs.version if target.nvidia_fs else "none",
        "libcufile": target.libcufile.version,
        "gds-tools": target.gds_tools.version if target.gds_tools else "none",
    }


def _subjects(profile: str, old: Target | None, new: Target | None) -> Iterator[Change]:
    before, after = (subjects(old) if old else {}), (subjects(new) if new else {})
    for what in before or after:
        a, b = before.get(what, ""), after.get(what, "")
        if a != b:
            kind: Kind = "added" if not a else "removed" if not b else "changed"
            if old and new and kind == "changed" and _goes_back(what, old, new):
                kind = "downgraded"
            yield Change(profile, kind, what, a, b, subject=True)


def _goes_back(what: str, old: Target, new: Target) -> bool:
    """Whether a subject's version is lower than before, on the same system."""
    if old.os != new.os:
        return False
    # Not every subject is in every target, and the system has no version.
    before, after = (getattr(getattr(target, what.replace("-", "_")), "version", "") for target in (old, new))
    order = version_order(new.os)
    return bool(before and after and order.key(after) < order.key(before))


def _adopted(profile: str, old: Target | None, new: Target | None) -> Iterator[Change]:
    """Names on the list of what was adopted: the package itself is another change."""
    before, after = set(old.adopted if old else ()), set(new.adopted if new else ())
    for name in sorted(before ^ after):
        yield Change(profile, "added" if name in after else "removed", f"adopted {name}", "", "")


def _packages(profile: str, old: Target | None, new: Target | None) -> Iterator[Change]:
    before = {package.package: package for package in old.packages} if old else {}
    after = {package.package: package for package in new.packages} if new else {}
    order = version_order(new.os) if new else None
    for name in sorted(before.keys() | after.keys()):
        a, b = before.get(name), after.get(name)
        if a is None or b is None:
            kind: Kind = "added" if a is None else "removed"
            yield Change(profile, kind, name, a.version if a else "", b.version if b else "")
        elif a.version != b.version:
            assert order is not None
            kind = "upgraded" if order.key(b.version) > order.key(a.version) else "downgraded"
            yield Change(profile, kind, name, a.version, b.version)
        elif a.sha256 != b.sha256:
            yield Change(profile, "rebuilt", name, a.version, b.version)
