"""What changed between two locks, as a list that reads like a change list.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gdsdeploy.host.explain.cause import numbers
from gdsdeploy.host.explain.registration import SILENT
from gdsdeploy.model.lock import Lock, Target
from gdsdeploy.platform import version_order

Kind = Literal["added", "removed", "upgraded", "downgraded", "changed", "rebuilt"]


@dataclass(frozen=True)
class Change:
    """One change in one profile."""

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


def _version(target: Target, subject: str) -> str:
    """A subject's version; empty if the target has no such subject, or it has no version."""
    part = getattr(target, subject.replace("-", "_"))
    return getattr(part, "version", "")


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
    order, before, after = version_order(new.os), _version(old, what), _version(new, what)
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
