"""Changes of a host in words: what is done, what was found, what is wanted.  Nothing decides by these words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from gdsdeploy.converge.desired import ROLES
from gdsdeploy.host.apply.model import Change

#: Kind of change → what is done; ``{}`` is the subject.
_WORDS: Final[Mapping[str, str]] = {
    "install": "install {}",
    "upgrade": "upgrade {}",
    "downgrade": "downgrade {}",
    "remove": "remove {}",
    "hold": "hold {}",
    "unhold": "no longer hold {}",
    "write": "write {}",
    "make": "make the folder {}",
    "delete": "delete {}",
    "enable": "enable {}",
    "disable": "disable {}",
    "start": "start {}",
    "reload": "have {} read its configuration again",
    "refresh": "refresh {}",
    "stream": "enable the module stream {}",
    "build": "build {} with DKMS",
    "audit": "audit {}",
    "place": "put {} in place",
    "pack": "hand the audited modules to the controller",
    "sign": "sign {}",
    "enrol": "have the key {} enrolled, by a person at the console",
    "load": "load {}",
    "unload": "unload {}",
    "initramfs": "make the initramfs of kernel {} again",
    "boot": "make {} the kernel that boots",
    "reboot": "reboot into {}",
    "receive": "receive {}",
}
#: Id of a reason → what was found, where the state before says less.
_FOUND: Final[Mapping[str, str]] = {
    "missing": "missing",
    "content": "other content",
    "mode": "mode {}",
    "owner": "owner {}",
    "kind": "a {}",
    "not-wanted": "it is there",
    "not-held": "not held",
    "not-locked": "held, and the lock no longer has it",
    "not-enabled": "not enabled",
    "not-loaded": "not loaded",
    "not-installed": "not installed by DKMS",
    "not-delivered": "the controller has none",
    "sources": "other sources",
    "unknown-versions": "lists without the locked versions",
    "unit": "a unit that changes",
    "outdated": "an older version was read",
    "drop-in": "an older version was read",
    "options": "one with other options",
    "packages": "packages that are to come",
    "stale": "built against something else",
    "signature": "another signature, or none",
    "settings": "another signature, or none",
    "archive": "those of another archive",
    "replaced": "modules that are loaded from files that are replaced",
    "module": "a module that is loaded from another file",
    "no-file": "a module without a file",
    "links": "started by other units",
    "unfinished": "its installation was interrupted",
}
#: Kinds whose neighbours share a line, and how many of them are named.
_SHARED, _NAMED = frozenset({"hold", "unhold", "sign", "delete"}), 3
_DIGEST = "sha256:"


def what(change: Change) -> str:
    """What is done."""
    return _WORDS[change.kind].format(change.subject)


def found(change: Change) -> str:
    """What the host has now."""
    if change.reason in _FOUND:
        return _FOUND[change.reason].format(_short(change.before))
    return _short(change.before) or ("not installed" if change.kind == "install" else change.reason or "nothing")


def wanted(change: Change) -> str:
    """What the host should have."""
    return _short(change.after) or ("nothing" if change.kind in ("remove", "delete") else "as the lock has it")


def grouped(changes: Sequence[Change]) -> Iterator[list[Change]]:
    """Changes that a line can say together, in their order."""
    for (kind, _, reason), same in groupby(changes, key=lambda item: (item.kind, item.resource, item.reason)):
        listed = list(same)
        if kind in _SHARED and reason:
            yield listed
        else:
            yield from ([change] for change in listed)


def sentence(group: Sequence[Change]) -> str:
    """What is done by changes of one kind."""
    named = ", ".join(change.subject for change in group[:_NAMED])
    rest = len(group) - _NAMED
    return _WORDS[group[0].kind].format(named + (f" and {rest} more" if rest > 0 else ""))


def role(change: Change) -> str:
    """The role that makes a change."""
    return ROLES.get(change.resource, "")


def to_json(change: Change) -> dict[str, str]:
    """A change with its words beside its data."""
    words = {"role": role(change), "what": what(change), "found": found(change), "wanted": wanted(change)}
    return {**words, **change.to_json()}


def _short(text: str) -> str:
    return f"{text[: len(_DIGEST) + 12]}…" if text.startswith(_DIGEST) else text
