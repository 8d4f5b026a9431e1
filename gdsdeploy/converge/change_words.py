"""Changes of a host in the words that their resources bring.  Nothing decides by these words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from gdsdeploy.converge.desired import ROLES
from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.io.wording import first_few

#: Kinds whose neighbours share a line, and how many of them are named.
_SHARED, _NAMED = frozenset({"hold", "unhold", "sign", "delete"}), 3
_DIGEST = "sha256:"


def action_words(change: Change) -> str:
    """What is done."""
    return registry.kinds()[change.kind].format(change.subject)


def before_words(change: Change) -> str:
    """What the host has now."""
    words = registry.reasons().get(change.reason)
    if words is not None:
        return words.format(_short(change.before), by=change.by)
    return _short(change.before) or ("not installed" if change.kind == "install" else change.reason or "nothing")


def after_words(change: Change) -> str:
    """What the host should have."""
    ends = change.kind in ("remove", "delete", "unload", "unbuild")
    return _short(change.after) or ("nothing" if ends else "as the lock has it")


def grouped(changes: Sequence[Change]) -> Iterator[list[Change]]:
    """Changes that a line can say together, in their order."""
    for (kind, _, reason), same in groupby(changes, key=lambda change: (change.kind, change.resource, change.reason)):
        if kind in _SHARED and reason:
            yield list(same)
        else:
            yield from ([change] for change in same)


def sentence(group: Sequence[Change]) -> str:
    """What is done by changes of one kind."""
    return registry.kinds()[group[0].kind].format(first_few([change.subject for change in group], _NAMED))


def role(change: Change) -> str:
    """The role that makes a change."""
    return ROLES.get(change.resource, "")


def to_json(change: Change) -> dict[str, Any]:
    """A change with its words beside its data."""
    words = {
        "role": ROLES.get(change.resource, ""),
        "what": action_words(change),
        "found": before_words(change),
        "wanted": after_words(change),
    }
    return {**words, **change.to_json()}


def _short(text: str) -> str:
    return f"{text[: len(_DIGEST) + 12]}…" if text.startswith(_DIGEST) else text
