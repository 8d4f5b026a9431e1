"""Mounts: the path of their I/O, and O_DIRECT."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, List, Sequence

from ..explain.explanation import MountPath, description, proof_of, storage_paths
from ..facts import HostFacts, Unknown
from ..facts.unknown import if_known
from ..libcufile.counters import NOT_COUNTED, Observed, route, route_words
from ..model.expectation import Expectation
from ..subjects.condition import COMPAT, Cause
from ..subjects.processes import Program
from ..subjects.proof import Proof
from ..subjects.register import UNKNOWN_HINT, Answer, capitalized, check, failed, passed, unknown

UNPROVEN_HINT = "Validate again while no other program reads or writes; docs/proof.md lists what a proof needs"
#: Lines of evidence of one proof.
PROOF_LINES = 2
#: Steps named in one hint; the evidence has them all.
FIXES_NAMED = 4
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
    prevents="I/O through CPU memory on a host where every other check passes",
    unknown_hint="The reason above names what could not be read; run it as root",
)
def path(facts: HostFacts, expectation: Expectation) -> Iterator[Answer]:
    requests = [(mount.get("mount", ""), mount.get("path", "direct")) for mount in expectation.storage]
    for result in storage_paths(facts, requests):
        answer = _answer(result)
        evidence = [*answer.evidence, *_at_work(facts, result.mount)]
        path_name = result.path_name if isinstance(result.path_name, str) else ""
        yield replace(answer, path=path_name, evidence=evidence)


def _at_work(facts: HostFacts, mount: str) -> Iterator[str]:
    """What running programs with files on the mount have done since they opened cuFile, wherever their files are."""
    for program in if_known(lambda: facts.processes.programs, ()):
        if _is_of_host(program) and any(file.mount == mount for file in program.files):
            way = route(Observed(program.counters))
            if way.path != NOT_COUNTED:
                yield f"{program.label} has files here, and its I/O took: {route_words(way.path, '', way.operations)}"


def _answer(result: MountPath) -> Answer:
    expected, observation = WORDS.get(result.requirement, result.requirement), description(result)
    if result.path is None or result.mounted is None:
        if isinstance(result.path_name, Unknown):
            return unknown(observation, UNKNOWN_HINT, result.mount, expected)
        hint = "Mount it, and have it mounted at boot (/etc/fstab); then validate again"
        return failed(observation, hint, subject=result.mount, expected=expected)
    if isinstance(result.path_name, Unknown):
        fixes = "; ".join(dict.fromkeys(cause.fix for cause in result.path.suspects)) or UNKNOWN_HINT
        hint = f"{capitalized(fixes)}; or see all of it: gdsdeploy explain"
        return unknown(observation, hint, result.mount, expected)
    if isinstance(result.satisfies, Unknown):
        return unknown(observation, UNPROVEN_HINT, result.mount, expected)
    mounted, causes = result.mounted, result.path.causes
    options = ",".join(mounted.options)
    evidence = [
        f"{mounted.source} on {mounted.mount_point} type {mounted.filesystem} ({options})",
        *(line for proof in result.path.proofs for line in _proof_lines(proof)),
        *(f"{cause.what}: {cause.fix}" for cause in causes),
        *(line for cause in causes[:1] for line in cause.evidence),
    ]
    if result.satisfies:
        return passed(f"{observation} {proof_of(result)}", evidence, result.mount, expected)
    words = f"{observation} {proof_of(result)}" if result.path.proofs else observation
    return failed(words, _hint_of_mount(result, causes), evidence, result.mount, expected)


def _hint_of_mount(result: MountPath, causes: Sequence[Cause]) -> str:
    fixes = list(dict.fromkeys(cause.fix for cause in causes if cause.fix))
    hint = "; ".join(fixes[:FIXES_NAMED]) or "ask for another path in the fleet file"
    if result.path_name == COMPAT and result.requirement != COMPAT:
        hint += "; or, if CPU memory is good enough for this mount, set its path to compat in the fleet file"
    return capitalized(hint)


def _proof_lines(proof: Proof) -> List[str]:
    result = proof.path.reason if isinstance(proof.path, Unknown) else f"{proof.path}: {proof.how}"
    return ["GPU {}: {}".format(proof.gpu or "(none)", result), *proof.evidence[:PROOF_LINES]]


def _is_of_host(program: Program) -> bool:
    return not if_known(lambda: program.container, True)
