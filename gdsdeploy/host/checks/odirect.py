"""Whether direct I/O on the mounts of the fleet bypasses CPU memory, and the conditions that could prevent it."""

from __future__ import annotations

from typing import Iterator, List

from ..facts import HostFacts, Unknown, conditions
from ..facts.conditions import FILESYSTEM, ON, POSSIBLE
from ..facts.odirect import ALIGNED, BYPASSED, NOT_PROVEN, REFUSED, WRONG, Audit
from ..facts.storage import Mount
from ..model.expectation import Expectation
from .registry import UNKNOWN_HINT, Answer, capitalized, check, failed, not_applicable, passed, subject, unknown

subject("odirect", after="storage")

#: Condition → what to do where it is on.
FIXES = {
    conditions.JOURNALLING: "mount it with data=ordered, and remove the folder's flag: chattr -j",
    conditions.INLINE: "make the filesystem without inline_data",
    conditions.CHECKSUMS: "use ext4 or XFS, or a Btrfs folder with chattr +C",
    conditions.COMPRESSION: "mount it without compression, and remove the folder's flag: chattr -c",
    conditions.DEDUPLICATION: "put the filesystem on a device that keeps each block",
    conditions.ENCRYPTION: "keep the data in a folder that is not encrypted, on disks that encrypt themselves",
    conditions.CACHE: "use ext4 or XFS, or OpenZFS 2.3 or newer",
    conditions.COW: "use ext4 or XFS on a volume that isn't thin, or a Btrfs folder with chattr +C",
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
    mounts = facts.storage.mounts
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
            yield _judge(audit, mount_point, is_compat)
        else:
            reason = audit.reason if isinstance(audit, Unknown) else f"{mount_point} was not tried"
            yield unknown(reason, UNKNOWN_HINT, mount_point)


def _judge(audit: Audit, mount_point: str, may_buffer: bool) -> Answer:
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
    mounts = facts.storage.mounts
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
    states = conditions.conditions(facts.document, facts.storage, mount, point)
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
    if unread and mount.device is not None:
        return unknown("{}: {}".format(*unread[0]), UNKNOWN_HINT, point)
    words = "none is on here" + ("; some files may have: " + ", ".join(possible) if possible else "")
    return passed(words + (f"; behind the mount: {unread[0][1]}" if unread else ""), evidence, point)
