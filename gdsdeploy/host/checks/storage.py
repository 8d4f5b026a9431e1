"""The path that I/O on each mount of the fleet takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, List, Sequence

from ..explain import COMPAT, Cause, MountPath, Path, described, proof_of, storage_paths
from ..facts import HostFacts, Unknown
from ..model.expectation import Expectation
from .registry import UNKNOWN_HINT, Answer, check, failed, passed, unknown

UNPROVEN_HINT = "Validate again while nothing else reads or writes; see docs/proof.md for what a proof needs"
#: Lines of evidence of one proof.
PROOF_LINES = 2
#: Steps named in one hint; the evidence has them all.
FIXES = 4
WORDS = {
    "direct": "a direct path (nvidia-fs or p2pdma)",
    "nvidia-fs": "the path through nvidia-fs",
    "p2pdma": "the path through PCI P2PDMA",
    "compat": "any path, through CPU memory too",
}


@check(
    "storage.path",
    "I/O on this mount takes the path that the fleet asks for",
    expects="the path of the fleet file",
    prevents="everything else green and the data still going through CPU memory",
    unknown_hint="The reason above says what could not be read; run it as root",
)
def path(facts: HostFacts, expectation: Expectation) -> Iterator[Answer]:
    wanted = [(item.get("mount", ""), item.get("path", "direct")) for item in expectation.storage]
    for item in storage_paths(facts, wanted):
        yield replace(_answer(item), path=item.taken if isinstance(item.taken, str) else "")


def _answer(item: MountPath) -> Answer:
    expected = WORDS.get(item.wanted, item.wanted)
    if item.path is None or item.mounted is None:
        if isinstance(item.taken, Unknown):
            return unknown(described(item), UNKNOWN_HINT, item.mount, expected)
        hint = "Mount it, and have it mounted at boot (/etc/fstab); then validate again"
        return failed(described(item), hint, subject=item.mount, expected=expected)
    if isinstance(item.taken, Unknown):
        return unknown(described(item), _doubts(item.path), item.mount, expected)
    if isinstance(item.satisfies, Unknown):
        return unknown(described(item), UNPROVEN_HINT, item.mount, expected)
    mounted, causes = item.mounted, item.path.causes
    evidence = [
        "{} on {} type {} ({})".format(
            mounted.source, mounted.mount_point, mounted.filesystem, ",".join(mounted.options)
        ),
        *_proven(item.path),
        *(f"{cause.what}: {cause.fix}" for cause in causes),
        *(line for cause in causes[:1] for line in cause.evidence),
    ]
    if item.satisfies:
        return passed(f"{described(item)} {proof_of(item)}", evidence, item.mount, expected)
    words = f"{described(item)} {proof_of(item)}" if item.path.proofs else described(item)
    return failed(words, _hint(item, causes), evidence, item.mount, expected)


def _hint(item: MountPath, causes: Sequence[Cause]) -> str:
    fixes = list(dict.fromkeys(cause.fix for cause in causes if cause.fix))
    hint = "; ".join(fixes[:FIXES]) or "ask for another path in the fleet file"
    if item.taken == COMPAT and item.wanted != COMPAT:
        hint += "; or, if CPU memory is good enough for this mount, set its path to compat in the fleet file"
    return hint[0].upper() + hint[1:]


def _doubts(result: Path) -> str:
    """What to do about a path that is not known: about what makes it doubtful, if something does."""
    fixes = "; ".join(dict.fromkeys(cause.fix for cause in result.suspects)) or UNKNOWN_HINT
    return f"{fixes[0].upper()}{fixes[1:]}; or see all of it: gdsdeploy explain"


def _proven(result: Path) -> List[str]:
    """What each try showed, and the lines behind it."""
    found = []
    for item in result.proofs:
        said = item.path.reason if isinstance(item.path, Unknown) else f"{item.path}: {item.how}"
        found += ["GPU {}: {}".format(item.gpu or "(none)", said), *item.evidence[:PROOF_LINES]]
    return found
