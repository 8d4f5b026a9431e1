"""Our verdict on a document beside the library's own, and where they part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdsdeploy.cufile.check import Verdict, What
from gdsdeploy.cufile.model import Release, keys, release_of
from gdsdeploy.host.facts.cufile import SHOWN
from tests.cufile.library import Answer

#: Logged only under the condition that the key beside it is on.
_NONE = {"miscellaneous.static_routing_filepath", "miscellaneous.static_config_filepath"}


@dataclass(frozen=True)
class Difference:
    """``what``: outcome, key, or a key's name for its effective value."""

    document: bytes
    what: str
    ours: str
    theirs: str

    def __str__(self) -> str:
        return f"{self.what}: ours {self.ours}, the library's {self.theirs}; {self.document[:300]!r}"


def look(path: str) -> What:
    """Paths in the documents are those that every machine has, or none has."""
    if not path or not Path(path).exists():
        return ""
    return "folder" if Path(path).is_dir() else "other"


def differences(document: bytes, release: Release, ours: Verdict, theirs: Answer) -> Iterator[Difference]:
    outcome, theirs_outcome = _outcome(ours), _outcome_of(theirs)
    if (outcome, theirs_outcome) == ("aborts", "hung"):
        # A count below zero has it fill its memory first; on a busy machine its time is over before the memory is.
        return
    if outcome != theirs_outcome:
        words = f"{theirs_outcome} ({theirs.key}; {' / '.join(theirs.output)[:200]})"
        yield Difference(document, "outcome", f"{outcome} ({ours.key}: {ours.reason})", words)
    elif outcome == "refused" and ours.key != theirs.key:
        yield Difference(document, "key", f"{ours.key} ({ours.reason})", str(theirs.key))
    elif outcome == "taken":
        for name, expected in logged(ours, release).items():
            if theirs.effective.get(name) != expected:
                yield Difference(document, name, repr(expected), repr(theirs.effective.get(name)))
        names = {SHOWN.get(key, key) for key in keys(release)}
        for name in theirs.effective:
            if name not in names:
                yield Difference(document, name, "no such key", theirs.effective[name])


def logged(verdict: Verdict, release: Release) -> dict[str, str]:
    """What the library should log: name → text, for every key that the release logs and whose value is known."""
    values: dict[str, str] = {}
    for key, value in verdict.effective.items():
        row = keys(release)[key]
        # The release logs nothing about the key.
        if row.logged == "never" or (row.logged is not None and release < release_of(row.logged)):
            continue
        if key == "properties.rdma_dynamic_routing_order" and not verdict.effective["properties.rdma_dynamic_routing"]:
            continue
        if key in _NONE:
            value = value or "none"
        if key.endswith(".mount_table") and not any((value or {}).values()):
            continue
        if value is None or (key.endswith(".rdma_dev_addr_list") and not value):
            continue
        # The log is read line by line, and a text may hold what ends a line.
        text = _text(key, value).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        values[SHOWN.get(key, key)] = next(iter(text.splitlines()), "").strip()
    return values


def _text(key: str, value: Any) -> str:
    if key == "properties.rdma_dynamic_routing":
        return str(int(value))
    if isinstance(value, bool):
        return str(value).lower()
    if key == "profile.cufile_stats":
        return str(value - 2**32 if value >= 2**31 else value)
    if isinstance(value, list):
        return " ".join(map(str, value)).strip()
    if isinstance(value, dict):
        return "; ".join(f"{path}: {' '.join(addresses)}" for path, addresses in value.items() if addresses)
    return str(value)


def _outcome(verdict: Verdict) -> str:
    return "taken" if verdict.accepted else "aborts" if verdict.aborts else "refused"


def _outcome_of(answer: Answer) -> str:
    if answer.hung:
        return "hung"
    if answer.error is None:
        return "aborts"
    return "refused" if answer.accepted is False else "taken"
