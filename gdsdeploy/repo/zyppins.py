"""What pins the stack for zypper: locks on versions, and on names that have none to choose.  Pure.

libzypp writes its file of locks anew whenever somebody adds or removes one: sorted, without comments.  So no marks
tell our locks from others' there; a copy of what was written last does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

#: Attributes that tell one lock from another; the rest is written as libzypp likes.
_IDENTITY: Final = ("repo", "solvable_name", "version", "install_status")

Lock = tuple[tuple[str, str], ...]


def locks(pins: Sequence[Mapping[str, str]], deny: Iterable[str], exclusive: Iterable[str]) -> str:
    """Our locks as libzypp's file has them.

    pins: package and version of each; no other version may come, and this one may not go once it is installed.
    deny: names, or beginnings of names followed by ``*``, of which nothing may come but pins.
    exclusive: aliases of repositories from which nothing may come but pins.

    Locks on what is not installed let an older version go, so that moving the lock needs no way around them.
    Raises ValueError for a glob that is no beginning: a lock has no exception, so that one is spelt out for the rest.
    """
    names = sorted({pin["package"] for pin in pins})
    found: list[str] = []
    for pin in sorted(pins, key=lambda item: item["package"]):
        found.append(_lock("exact", pin["package"], "not-installed", version=f"!= {pin['version']}"))
        found.append(_lock("exact", pin["package"], "installed", version=f"== {pin['version']}"))
    for glob in deny:
        begin = glob.removesuffix("*")
        if "*" in begin or set(glob) & set("?["):
            raise ValueError(f"zypper's locks take names and beginnings of names, not {glob!r}")
        if glob != begin:
            found.append(_lock("regex", others(begin, names), "not-installed"))
        elif glob not in names:
            found.append(_lock("exact", glob, "not-installed"))
    found += [_lock("regex", others("", names), "not-installed", repo=alias) for alias in exclusive]
    return "\n".join(found)


def others(begin: str, names: Iterable[str]) -> str:
    """A POSIX extended regular expression for every name that begins so and is none of ``names``."""
    rests = {name.removeprefix(begin) for name in names if name.startswith(begin)}
    return f"^{_literal(begin)}{_other(rests)}$"


def _other(rests: set[str]) -> str:
    """Every rest of a name but these; nothing at all is one of them where "" is not among ``rests``."""
    first = sorted({rest[0] for rest in rests if rest})
    if not first:
        return ".+" if rests else ".*"
    # A hyphen stands last in a bracket, where it is itself.
    bracket = "".join(sorted(first, key=lambda letter: (letter == "-", letter)))
    ways = [f"[^{bracket}].*"]
    ways += [_literal(letter) + _other({rest[1:] for rest in rests if rest[:1] == letter}) for letter in first]
    return f"({'|'.join(ways)}){'' if '' in rests else '?'}"


def merged(there: str, before: str, after: str) -> str:
    """The file ``there`` with our locks ``before`` replaced by those of ``after``; others' stay, in their order.

    As it is, where that changes nothing but the order.
    """
    ours = {_identity(lock) for lock in _parse(before)}
    wanted = _parse(after)
    kept = [lock for lock in _parse(there) if _identity(lock) not in ours]
    theirs = {_identity(lock) for lock in kept}
    found = kept + [lock for lock in wanted if _identity(lock) not in theirs]
    if {_identity(lock) for lock in found} == {_identity(lock) for lock in _parse(there)}:
        return there
    return "\n\n".join("\n".join(f"{key}: {value}" for key, value in lock) for lock in found) + "\n" * bool(found)


def _lock(match: str, name: str, status: str, *, version: str = "", repo: str = "") -> str:
    lines = ["type: package", f"match_type: {match}", "case_sensitive: on", f"install_status: {status}"]
    lines += [f"repo: {repo}"] if repo else []
    lines += [f"version: {version}"] if version else []
    return "\n".join([*lines, f"solvable_name: {name}", ""])


def _parse(text: str) -> list[Lock]:
    """The locks of a file, each with its attributes in their order; comments go, as with libzypp."""
    found: list[list[tuple[str, str]]] = [[]]
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if not line.strip():
            found.append([])
        elif colon and not line.lstrip().startswith("#"):
            found[-1].append((key.strip(), value.strip()))
    return [tuple(lock) for lock in found if lock]


def _identity(lock: Lock) -> tuple[tuple[str, str], ...]:
    """Of a lock with none of these attributes, all of it."""
    return tuple(sorted(item for item in lock if item[0] in _IDENTITY)) or lock


def _literal(text: str) -> str:
    return "".join(f"\\{letter}" if letter in ".+" else letter for letter in text)
