"""The path that I/O on each mount of the fleet takes."""

from __future__ import annotations

from typing import Iterator, List, Mapping

from ..expectation import Expectation
from ..explain import BROKEN, COMPAT, DIRECT, Path, path_of
from ..facts import HostFacts, UndecidedError, Unknown, known
from ..facts.storage import Mount
from .registry import UNKNOWN_HINT, Answer, check, failed, passed, unknown

#: What the fleet asks for → the paths that satisfy it.
SATISFIES = {
    "direct": DIRECT,
    "nvidia-fs": ("nvidia-fs",),
    "p2pdma": ("p2pdma",),
    "compat": (COMPAT, *DIRECT),
}
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
    for item in expectation.storage:
        mount_point, wanted = item.get("mount", ""), item.get("path", "direct")
        expected = WORDS.get(wanted, wanted)
        try:
            yield _judge(facts, mount_point, wanted, expected)
        except UndecidedError as reason:
            yield unknown(str(reason), UNKNOWN_HINT, mount_point, expected)


def _judge(facts: HostFacts, mount_point: str, wanted: str, expected: str) -> Answer:
    mounts: Mapping[str, Mount] = known(facts.storage.mounts)
    mount = mounts.get(mount_point)
    if mount is None:
        hint = "Mount it, and have it mounted at boot (/etc/fstab); then validate again"
        return failed("nothing is mounted there", hint, subject=mount_point, expected=expected)
    result = path_of(facts, mount)
    taken = result.path if result.proven is None or isinstance(result.proven, Unknown) else result.proven
    if isinstance(taken, Unknown):
        return unknown(taken.reason, _doubts(result), mount_point, expected)
    if isinstance(result.proven, Unknown) and taken in DIRECT and wanted != COMPAT:
        words = "{} is expected, and not proven: {}".format(taken, result.proven.reason)
        return unknown(words, UNPROVEN_HINT, mount_point, expected)
    words = "{}{}".format(taken, _reasons(result, taken))
    evidence = [
        "{} on {} type {} ({})".format(mount.source, mount.mount_point, mount.filesystem, ",".join(mount.options)),
        *_proven(result),
        *("{}: {}".format(cause.what, cause.fix) for cause in result.causes),
        *(line for cause in result.causes[:1] for line in cause.evidence),
    ]
    if taken in SATISFIES.get(wanted, ()):
        return passed(words + _proof(result), evidence, mount_point, expected)
    words += _proof(result) if result.proofs else ""
    fixes = list(dict.fromkeys(cause.fix for cause in result.causes if cause.fix))
    hint = "; ".join(fixes[:FIXES]) or "ask for another path in the fleet file"
    if taken == COMPAT and wanted != COMPAT:
        hint += "; or, if CPU memory is good enough for this mount, set its path to compat in the fleet file"
    hint = hint[0].upper() + hint[1:]
    return failed(words, hint, evidence, mount_point, expected)


def _reasons(result: Path, taken: str) -> str:
    if taken in (COMPAT, BROKEN) and result.causes:
        more = len(result.causes) - 1
        others = " (and {} more, see the evidence)".format(more) if more else ""
        return ": " + result.causes[0].what + others
    return ""


def _doubts(result: Path) -> str:
    """What to do about a path that is not known: about what makes it doubtful, if something does."""
    fixes = "; ".join(dict.fromkeys(cause.fix for cause in result.suspects)) or UNKNOWN_HINT
    return "{}{}; or see all of it: gdsdeploy explain".format(fixes[0].upper(), fixes[1:])


def _proven(result: Path) -> List[str]:
    """What each try showed, and the lines behind it."""
    found = []
    for item in result.proofs:
        said = item.path.reason if isinstance(item.path, Unknown) else "{}: {}".format(item.path, item.how)
        found += ["GPU {}: {}".format(item.gpu or "(none)", said), *item.evidence[:PROOF_LINES]]
    return found


def _proof(result: Path) -> str:
    if result.proofs:
        why = " (not proven: {})".format(result.proven.reason) if isinstance(result.proven, Unknown) else ""
        return why or " (proven by a read through cuFile{})".format("; " + result.surprise if result.surprise else "")
    if isinstance(result.gpu, Unknown):
        return " (not proven: {})".format(result.gpu.reason)
    return " (not proven: no I/O was tried)" if result.gpu else " (not proven: this host has no GPU)"
