"""Our report on a document beside the library's own answer, and where they part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy.cufile.check import Report, What
from gdsdeploy.cufile.model import BUFFER, CACHE, GPU_SIZES, keys
from gdsdeploy.host.facts.cufile import SHOWN
from tests.cufile.effective import IN_VAIN, values_of
from tests.cufile.library import Answer


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


def outcome(report: Report) -> str:
    return "taken" if report.accepted else "aborts" if report.aborts else "refused"


def differences(document: bytes, ours: Report, theirs: Answer, empty: Answer) -> Iterator[Difference]:
    """empty: the library's answer to an empty document, with its defaults."""
    stops = ours.stops or ()
    outcomes = {"aborts" if stop.aborts else "refused" for stop in stops} or {"taken"}
    theirs_outcome = _outcome_of(theirs)
    if "aborts" in outcomes and theirs_outcome == "hung":
        # A count below zero has it fill its memory first; on a busy machine its time is over before the memory is.
        return
    if theirs_outcome not in outcomes:
        words = f"{theirs_outcome} ({theirs.key}; {' / '.join(theirs.output)[:200]})"
        yield Difference(document, "outcome", f"{outcomes} {stops}", words)
    elif theirs_outcome == "refused" and (theirs.key or "") not in {stop.key for stop in stops if not stop.aborts}:
        # Of several it names the one that it reads first.
        yield Difference(document, "key", str(stops), str(theirs.key))
    elif theirs_outcome == "taken":
        yield from _effective(document, ours, theirs, empty)


def _effective(document: bytes, ours: Report, theirs: Answer, empty: Answer) -> Iterator[Difference]:
    names = {SHOWN.get(key, key) for key in keys(ours.release)}
    for name, value in theirs.effective.items():
        if name not in names:
            yield Difference(document, name, "no such key", value)
    replaced = (CACHE, BUFFER) if SHOWN[GPU_SIZES] in theirs.effective else ()
    if theirs.effective and not ours.errors:
        for row in values_of(document, theirs, empty.effective, ours.release):
            # An empty list counts as a missing key.
            if row.state in IN_VAIN and row.intended and row.key not in replaced:
                yield Difference(document, row.key, str(row.intended), str(row.effective))


def _outcome_of(answer: Answer) -> str:
    if answer.hung:
        return "hung"
    if answer.error is None:
        return "aborts"
    return "refused" if answer.accepted is False else "taken"
