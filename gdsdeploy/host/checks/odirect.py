"""Whether direct I/O on the mounts of the fleet really bypasses CPU memory, and what could keep it from that."""

from __future__ import annotations

from typing import Iterator, List, Tuple

from ..facts import HostFacts, Unknown
from ..facts.conditions import (
    CHECKSUMS,
    COMPRESSION,
    COW,
    DEDUPLICATION,
    ENCRYPTION,
    FILESYSTEM,
    INLINE,
    JOURNALLING,
    ON,
    POSSIBLE,
    Condition,
    conditions,
)
from ..facts.odirect import ALIGNED, BYPASSED, NOT_PROVEN, REFUSED, WRONG, Audit
from ..facts.storage import Mount
from ..model.expectation import Expectation
from .registry import UNKNOWN_HINT, Answer, check, failed, passed, unknown

#: Condition → what to do where it is on.
FIXES = {
    JOURNALLING: "mount it with data=ordered, and take the flag off the folder: chattr -j",
    INLINE: "make the filesystem without inline_data",
    CHECKSUMS: "use ext4 or XFS, or a Btrfs folder with chattr +C",
    COMPRESSION: "mount it without compression, and take the flag off the folder: chattr -c",
    DEDUPLICATION: "put the filesystem on a device that keeps each block",
    ENCRYPTION: "keep the data in a folder that is not encrypted, on disks that encrypt themselves",
    COW: "use ext4 or XFS, or a Btrfs folder with chattr +C",
}
NOT_NEEDED = "not needed: the fleet accepts CPU memory here; "
NO_TRIAL = "the fleet file allows no scratch file on it"


@check(
    "odirect.bypass",
    "direct I/O on this mount bypasses the page cache",
    expects="every aligned read and write bypasses it, on mounts with a direct path",
    prevents="data that goes through CPU memory although each program opens its files with O_DIRECT",
    unknown_hint="The reason above says why it could not be tried; run it as root",
)
def bypass(facts: HostFacts, expectation: Expectation) -> Iterator[Answer]:
    for item in expectation.storage:
        mount_point, wanted = item.get("mount", ""), item.get("path", "direct")
        mounts = facts.storage.mounts
        mounted = isinstance(mounts, Unknown) or mount_point in mounts
        audit = facts.storage.audits.get(mount_point) if mounted else None
        if item.get("scratch") == "no":
            yield passed("not tried: " + NO_TRIAL, subject=mount_point)
        elif wanted == "compat" and not isinstance(audit, Audit):
            yield passed(NOT_NEEDED + "not tried", subject=mount_point)
        elif not mounted:
            # The check storage.path says so.
            continue
        elif isinstance(mounts, Unknown) and wanted != "compat":
            # What was tried may have been the filesystem below.
            yield unknown(mounts.reason, UNKNOWN_HINT, mount_point)
        elif isinstance(audit, Audit):
            yield _judge(audit, mount_point, wanted == "compat")
        else:
            reason = audit.reason if isinstance(audit, Unknown) else f"{mount_point} was not tried"
            yield unknown(reason, UNKNOWN_HINT, mount_point)


def _judge(audit: Audit, mount_point: str, buffered_is_fine: bool) -> Answer:
    bad = [item for item in audit.trials if item.result == WRONG]
    if not bad and buffered_is_fine:
        return passed(NOT_NEEDED + audit.summary, _lines(audit), mount_point)
    bad = bad or [item for item in audit.of(ALIGNED) if item.result not in (BYPASSED, NOT_PROVEN)]
    if bad:
        more = len(bad) - 1
        words = "{}{}".format(bad[0].words(), f" (and {more} more, see the evidence)" if more else "")
        return failed(words, _hint(bad[0].result), _lines(audit), mount_point)
    open_ = [item for item in audit.of(("read", "overwrite", "extending write")) if item.result == NOT_PROVEN]
    if open_:
        reason = f"{open_[0].name}: its pages could not be followed in the page cache"
        return unknown(reason, "Stop what uses the mount meanwhile, and validate again", mount_point)
    return passed(audit.summary, _lines(audit), mount_point)


def _hint(result: str) -> str:
    if result == WRONG:
        return "Do not use this mount: other bytes came back than were written; look at the kernel's messages"
    if result == REFUSED:
        return "Use a filesystem that takes O_DIRECT: ext4, XFS, or a network filesystem with RDMA"
    return "See the check odirect.conditions for what makes the filesystem do so, and docs/odirect.md"


def _lines(audit: object) -> List[str]:
    if not isinstance(audit, Audit):
        return []
    seen = f"seen with {audit.instrument}" if audit.instrument else "nothing shows the page cache here"
    first = f"direct I/O tried in {audit.folder}, {seen}"
    # The evidence of one finding is short: what is as it should be goes into one line.
    good = [item.name for item in audit.trials if item.result == BYPASSED]
    rest = [item.words() for item in audit.trials if item.result != BYPASSED]
    return [first, *(["bypassed: " + ", ".join(good)] if good else []), *rest]


@check(
    "odirect.conditions",
    "nothing on this mount examines or transforms the data on its way",
    expects="no journalled, inline, checksummed, compressed, deduplicated, encrypted or copied data",
    prevents="a mount option or a folder's flag that takes its files off the direct path one by one",
)
def untransformed(facts: HostFacts, expectation: Expectation) -> Iterator[Answer]:
    for item in expectation.storage:
        mount_point, wanted = item.get("mount", ""), item.get("path", "direct")
        mounts = facts.storage.mounts
        if isinstance(mounts, Unknown):
            yield unknown(mounts.reason, UNKNOWN_HINT, mount_point)
        elif mount_point in mounts:
            # Where nothing is mounted, the check storage.path says so.
            yield _conditions(facts, mounts[mount_point], wanted)


def _conditions(facts: HostFacts, mount: Mount, wanted: str) -> Answer:
    mount_point = mount.mount_point
    found = [item for item in conditions(facts.document, facts.storage, mount, mount_point) if item.name in FILESYSTEM]
    on = [item for item in found if item.state == ON]
    evidence = [line for item in found if item.state in (ON, POSSIBLE) for line in _said(item)]
    if wanted == "compat":
        words = "on: " + ", ".join(item.name for item in on) if on else "none is known to be on"
        return passed(NOT_NEEDED + words, evidence, mount_point)
    if on:
        hint = "; ".join(dict.fromkeys(FIXES[item.name] for item in on))
        return failed(", ".join(item.name for item in on), hint[0].upper() + hint[1:], evidence, mount_point)
    unseen = [(item.name, item.state.reason) for item in found if isinstance(item.state, Unknown)]
    if unseen and mount.device is not None:
        return unknown("{}: {}".format(*unseen[0]), UNKNOWN_HINT, mount_point)
    return passed(_rest(found, unseen), evidence, mount_point)


def _rest(found: List[Condition], unseen: List[Tuple[str, str]]) -> str:
    some = [item.name for item in found if item.state == POSSIBLE]
    words = "none is on here" + ("; some files may have: " + ", ".join(some) if some else "")
    return words + (f"; behind the mount: {unseen[0][1]}" if unseen else "")


def _said(item: Condition) -> List[str]:
    state = "" if isinstance(item.state, Unknown) else item.state
    return [f"{item.name} {state}: {line}" for line in item.said]
