"""Mounts: the path of their I/O, and O_DIRECT."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, List, Sequence

from ..explain.explanation import MountPath, description, proof_of, storage_paths
from ..facts import HostFacts, Unknown, storage
from ..facts.processes import Program, Proof
from ..facts.storage import ALIGNED, BYPASSED, FILESYSTEM, NOT_PROVEN, ON, POSSIBLE, REFUSED, WRONG, Audit, Mount
from ..facts.unknown import if_known, known
from ..libcufile.counters import NOT_COUNTED, Observed, route, route_words
from ..model.expectation import Expectation
from ..subjects.condition import COMPAT, Cause
from ..subjects.register import UNKNOWN_HINT, Answer, capitalized, check, failed, not_applicable, passed, unknown

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


#: Condition → what to do where it is on.
FIXES = {
    storage.JOURNALLING: "mount it with data=ordered, and remove the folder's flag: chattr -j",
    storage.INLINE: "make the filesystem without inline_data",
    storage.CHECKSUMS: "use ext4 or XFS, or a Btrfs folder with chattr +C",
    storage.COMPRESSION: "mount it without compression, and remove the folder's flag: chattr -c",
    storage.DEDUPLICATION: "put the filesystem on a device that keeps each block",
    storage.ENCRYPTION: "keep the data in a folder that is not encrypted, on disks that encrypt themselves",
    storage.CACHE: "use ext4 or XFS, or OpenZFS 2.3 or newer",
    storage.COW: "use ext4 or XFS on a volume that isn't thin, or a Btrfs folder with chattr +C",
}
NOT_NEEDED = "not needed: the fleet accepts CPU memory here; "
NO_TRIAL = "the fleet file allows no scratch file on it"
NOT_MOUNTED = "nothing is mounted here: the check storage.path reports it"
HINTS = {
    WRONG: "Do not use this mount: other bytes came back than were written; read the kernel's messages",
    REFUSED: "Use a filesystem that takes O_DIRECT: ext4, XFS, or a network filesystem with RDMA",
}
BUFFERED_HINT = "See the check odirect.conditions for the filesystem's reason, and docs/odirect.md"


@check(
    "odirect.bypass",
    "direct I/O on this mount bypasses the page cache",
    expects="every aligned read and write bypasses it, on mounts with a direct path",
    prevents="data that goes through CPU memory although each program opens its files with O_DIRECT",
    unknown_hint="The reason above names what prevented the trial; run it as root",
)
def bypass(facts: HostFacts, expectation: Expectation) -> Iterator[Answer]:
    mounts = known(lambda: facts.storage.mounts)
    for mount in expectation.storage:
        mount_point, is_compat = mount.get("mount", ""), mount.get("path") == "compat"
        is_mounted = isinstance(mounts, Unknown) or mount_point in mounts
        audit = facts.storage.audits.get(mount_point) if is_mounted else None
        if mount.get("scratch") == "no":
            yield not_applicable("not tried: " + NO_TRIAL, mount_point)
        elif is_compat and not isinstance(audit, Audit):
            yield not_applicable(NOT_NEEDED + "not tried", mount_point)
        elif not is_mounted:
            yield not_applicable(NOT_MOUNTED, mount_point)
        elif isinstance(mounts, Unknown) and not is_compat:
            # The trial may have tested the filesystem below.
            yield unknown(mounts.reason, UNKNOWN_HINT, mount_point)
        elif isinstance(audit, Audit):
            yield _judge_odirect(audit, mount_point, is_compat)
        else:
            reason = audit.reason if isinstance(audit, Unknown) else f"{mount_point} was not tried"
            yield unknown(reason, UNKNOWN_HINT, mount_point)


def _judge_odirect(audit: Audit, mount_point: str, may_buffer: bool) -> Answer:
    evidence = _lines(audit)
    bad = [trial for trial in audit.trials if trial.result == WRONG]
    if not bad and may_buffer:
        return passed(NOT_NEEDED + audit.summary, evidence, mount_point)
    bad = bad or [trial for trial in audit.of(ALIGNED) if trial.result not in (BYPASSED, NOT_PROVEN)]
    if bad:
        more = f" (and {len(bad) - 1} more, see the evidence)" if len(bad) > 1 else ""
        return failed(bad[0].words() + more, HINTS.get(bad[0].result, BUFFERED_HINT), evidence, mount_point)
    for trial in audit.of(("read", "overwrite", "extending write")):
        if trial.result == NOT_PROVEN:
            reason = f"{trial.name}: its pages could not be followed in the page cache"
            return unknown(reason, "Stop the programs that use the mount, and validate again", mount_point)
    return passed(audit.summary, evidence, mount_point)


def _lines(audit: Audit) -> List[str]:
    instrument = f"seen with {audit.instrument}" if audit.instrument else "nothing shows the page cache here"
    # The evidence of one finding is short: all expected results share one line.
    bypassed = ", ".join(trial.name for trial in audit.trials if trial.result == BYPASSED)
    others = [trial.words() for trial in audit.trials if trial.result != BYPASSED]
    first = f"direct I/O tried in {audit.folder}, {instrument}"
    return [first, *(["bypassed: " + bypassed] if bypassed else []), *others]


@check(
    "odirect.conditions",
    "no filesystem feature on this mount examines or transforms the data",
    expects="no journalled, inline, checksummed, compressed, deduplicated, encrypted, copied or separately cached data",
    prevents="a mount option or a folder's flag that takes its files off the direct path one by one",
)
def untransformed(facts: HostFacts, expectation: Expectation) -> Iterator[Answer]:
    mounts = known(lambda: facts.storage.mounts)
    for mount in expectation.storage:
        mount_point = mount.get("mount", "")
        if isinstance(mounts, Unknown):
            yield unknown(mounts.reason, UNKNOWN_HINT, mount_point)
        elif mount_point not in mounts:
            yield not_applicable(NOT_MOUNTED, mount_point)
        else:
            yield _judge_conditions(facts, mounts[mount_point], mount.get("path") == "compat")


def _judge_conditions(facts: HostFacts, mount: Mount, is_compat: bool) -> Answer:
    point = mount.mount_point
    states = storage.conditions(facts.document, facts.storage, mount, point)
    rows = [row for row in states if row.name in FILESYSTEM]
    on, possible = ([row.name for row in rows if row.state == state] for state in (ON, POSSIBLE))
    evidence = [
        f"{row.name} {row.state}: {line}" for row in rows if row.state in (ON, POSSIBLE) for line in row.evidence
    ]
    if is_compat:
        words = "on: " + ", ".join(on) if on else "none is known to be on"
        return not_applicable(NOT_NEEDED + words, point)
    if on:
        hint = "; ".join(dict.fromkeys(FIXES[name] for name in on))
        return failed(", ".join(on), capitalized(hint), evidence, point)
    unread = [(row.name, row.state.reason) for row in rows if isinstance(row.state, Unknown)]
    if unread and if_known(lambda: mount.device, True) is not None:
        return unknown("{}: {}".format(*unread[0]), UNKNOWN_HINT, point)
    words = "none is on here" + ("; some files may have: " + ", ".join(possible) if possible else "")
    return passed(words + (f"; behind the mount: {unread[0][1]}" if unread else ""), evidence, point)


def _is_of_host(program: Program) -> bool:
    return not if_known(lambda: program.container, True)
