"""Generated documents, our verdict and each library's: where they part.

``python -m tests.cufile.differential SEED COUNT [VERSION…]`` asks about COUNT documents for each library and prints
every disagreement that is not in deviations.yml.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gdsdeploy import console
from gdsdeploy.cufile.check import MachineFacts, Report, check
from gdsdeploy.cufile.document import DocumentInvalid
from gdsdeploy.cufile.model import release_of
from tests.cufile.compare import Difference, differences, look, outcome
from tests.cufile.documents import FIXED, document, edges
from tests.cufile.effective import keys_of
from tests.cufile.libraries import SOURCES, library


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
