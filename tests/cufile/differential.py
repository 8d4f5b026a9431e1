"""Generated documents, our report and each library's answer: where they part.

``python -m tests.cufile.differential SEED COUNT [VERSION…]`` asks about COUNT documents for each library and prints
every disagreement that is not in deviations.yml.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gdsdeploy import console
from gdsdeploy.cufile.check import MachineFacts, Report, What, check
from gdsdeploy.cufile.document import DocumentInvalid
from gdsdeploy.cufile.model import BUFFER, CACHE, GPU_SIZES, keys, release_of
from gdsdeploy.host.subjects.cufile_json import SHOWN
from tests.cufile.documents import FIXED, document, edges
from tests.cufile.effective import IN_VAIN, keys_of, values_of
from tests.cufile.libraries import SOURCES, library
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
    return "taken" if report.accepted else "aborts" if any(stop.aborts for stop in report.stops or ()) else "refused"


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


@dataclass(frozen=True)
class Deviation:
    id: str
    versions: Sequence[str] | str
    document: str
    reason: str
    when: dict[str, list[Any]] = field(default_factory=dict)
    mentions: str = ""

    def concerns(self, version: str) -> bool:
        return self.versions == "all" or version in self.versions

    def excuses(self, difference: Difference) -> bool:
        if self.mentions:
            return self.mentions.encode() in difference.document or self.mentions in difference.what
        try:
            values = dict(keys_of(difference.document))
        except DocumentInvalid:
            return False
        return bool(self.when) and all(values.get(key) in some for key, some in self.when.items())


@functools.cache
def deviations() -> tuple[Deviation, ...]:
    rows = yaml.safe_load(Path(__file__).with_name("deviations.yml").read_text(encoding="utf-8"))
    return tuple(Deviation(**row) for row in rows)


def judged(text: bytes, version: str) -> Report:
    """What we say of a document on this machine."""
    return check(text, release_of(version), MachineFacts(look, p2pdma=None))


def disagreements(version: str, documents: Sequence[bytes]) -> tuple[list[Difference], Counter[str]]:
    """Where the library of that version parts from us, known deviations left out; and how many of each outcome."""
    expected = [deviation for deviation in deviations() if deviation.concerns(version)]
    unexcused: list[Difference] = []
    outcomes: Counter[str] = Counter()
    answers = library(version).ask_all([b"{}", *documents])
    empty = next(answers)
    for text, answer in zip(documents, answers, strict=True):
        report = judged(text, version)
        outcomes[outcome(report)] += 1
        unexcused += [
            difference
            for difference in differences(text, report, answer, empty)
            if not any(deviation.excuses(difference) for deviation in expected)
        ]
    return unexcused, outcomes


def generated(seed: int, version: str, count: int) -> list[bytes]:
    random_ = random.Random(f"{seed} {version}")
    release = release_of(version)
    return [*FIXED, *edges(release), *(document(random_, release) for _ in range(count))]


def main(seed: int, count: int, versions: Sequence[str]) -> int:
    total = 0
    for version in versions:
        unexcused, outcomes = disagreements(version, generated(seed, version, count))
        total += len(unexcused)
        counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
        console.data(f"{version}: {outcomes.total()} documents ({counts}), {len(unexcused)} disagreements")
        for difference in sorted(unexcused, key=lambda one: len(one.document))[:20]:
            console.data(f"  {difference}")
    return total


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or tuple(SOURCES))))
