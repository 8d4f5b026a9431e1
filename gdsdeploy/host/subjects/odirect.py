"""Whether direct I/O on a mount really bypasses the page cache: tried in a scratch file by host/odirect.

Whether mounts deliver the fleet's rate while several readers keep them busy.
"""

from __future__ import annotations

import fcntl
import os
import struct
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..facts.document import Document, collected
from ..facts.unknown import Maybe, UndecidedError, Unknown, known, require
from ..io.mounts import AUTOFS
from ..io.reading import inode_flags
from ..model.expectation import Expectation
from ..paths import BTRFS
from .register import Answer, Steps, answer, check, collector, failed, not_applicable, passed
from .types import EvidenceRequest, HostFacts, Recorder

#: Seconds for one mount, whose servers may be gone.
SECONDS = 5.0
#: linux/btrfs.h: _IOR(0x94, 31, struct btrfs_ioctl_fs_info_args), of 1024 bytes.
_BTRFS_FS_INFO = 0x8400941F
#: fs/xfs/libxfs/xfs_fs.h: _IOR('X', 126, struct xfs_fsop_geom), of 256 bytes; place of its flags.
_XFS_GEOMETRY, _XFS_FLAGS = 0x8100587E, 92


@collector("odirect")
def collect_odirect(recorder: Recorder, request: EvidenceRequest) -> None:
    mounts = recorder.mounts()
    for path in request.mounts:
        inside(recorder, path)
    for path in request.scratch:
        # Where nothing is mounted yet, the trial would test the filesystem below.
        mount = mounts.visible.get(path)
        if mount is not None and mount.filesystem != AUTOFS:
            # Its modules cost some milliseconds, and many hosts need none of them.
            from ..odirect.trials import audit

            recorder.document["odirect"][path] = audit(path, SECONDS, mount.id)


def inside(recorder: Recorder, path: str) -> None:
    """Ask the filesystem that ``path`` lies on, if it is of a kind that answers at once."""
    mount = recorder.mounts().at(path)
    read = {"btrfs": btrfs_inside, "xfs": xfs_inside}.get(mount.filesystem if mount is not None else "")
    if read is None:
        return
    record = recorder.value("insides", path, read)
    recorder.value("inodes", path, inode_flags)
    if "fsid" in record:
        folder = "{}/{}".format(BTRFS, record["fsid"])
        recorder.text(folder + "/checksum")
        recorder.paths(folder + "/allocation/data", folder + "/devices")


def btrfs_inside(path: str) -> Dict[str, Any]:
    """{"fsid": as sysfs names it, "devices": how many}"""
    import uuid

    answer = _ask(path, _BTRFS_FS_INFO, 1024)
    _, devices = struct.unpack_from("=QQ", answer)
    return {"fsid": str(uuid.UUID(bytes=answer[16:32])), "devices": devices}


def xfs_inside(path: str) -> Dict[str, Any]:
    """{"geometry": the flags of the filesystem's geometry}"""
    return {"geometry": struct.unpack_from("=I", _ask(path, _XFS_GEOMETRY, 256), _XFS_FLAGS)[0]}


def _ask(path: str, request: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(descriptor, request, bytes(size))
    finally:
        os.close(descriptor)


#: Results of one piece of direct I/O.  FELL_BACK: written through the cache, and dropped from it afterwards; WRONG:
#: other bytes came back.
BYPASSED, BUFFERED, FELL_BACK, REFUSED, WRONG, NOT_PROVEN = RESULTS = (
    "bypassed", "buffered", "fell back", "refused", "wrong data", "not proven",
)  # fmt: skip
#: The trial that stands for all of them where files cannot be opened for direct I/O at all.
OPEN = "open"
#: Trials whose offset, length and memory are aligned, of files that are large enough for a block of their own.
ALIGNED = (
    OPEN, "read", "overwrite", "extending write", "write into a hole", "write into preallocated space",
)  # fmt: skip
TINY = ("read of a tiny file", "write to a tiny file")


class Trial(NamedTuple):
    """One piece of direct I/O; ``pages``: of the page cache that it used; ``error``: an errno's name, or empty."""

    name: str
    result: str
    pages: int
    error: str

    def words(self) -> str:
        if self.result == REFUSED:
            return f"{self.name}: refused ({self.error})"
        if self.result in (BUFFERED, FELL_BACK):
            how = "through the page cache" if self.result == BUFFERED else "through the page cache, and dropped from it"
            return "{}: {} ({} page{})".format(self.name, how, self.pages, "" if self.pages == 1 else "s")
        return "{}: {}{}".format(self.name, self.result, f" ({self.error})" if self.error else "")


class Audit(NamedTuple):
    """The trials in one folder, in their order."""

    folder: str
    trials: Tuple[Trial, ...]
    #: the call that showed the page cache; None: none worked there
    instrument: Optional[str]
    #: bytes that memory and offset have to be multiples of, as the kernel says; None: it says nothing
    alignment: Optional[Tuple[int, int]]

    def of(self, names: Tuple[str, ...]) -> Tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.name in names)

    @property
    def summary(self) -> str:
        """All of it in one sentence."""
        aligned = self.of(ALIGNED)
        bypassed = sum(trial.result == BYPASSED for trial in aligned)
        words = [f"{bypassed} of {len(aligned)} aligned kinds of I/O bypass the page cache"]
        if self.unaligned:
            words.append("unaligned ones: " + ", ".join(sorted({trial.result for trial in self.unaligned})))
        words += [trial.words() for trial in self.of(TINY) if trial.result != BYPASSED][:1]
        if self.alignment is not None:
            words.append("alignment: memory {}, offset {} bytes".format(*self.alignment))
        return "; ".join(words)

    @property
    def unaligned(self) -> Tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if "unaligned" in trial.name)


def audits(document: Document) -> Mapping[str, Maybe[Audit]]:
    """Folder → its audit, or the reason why there is none."""
    return {path: known(partial(_audit, document, path)) for path in document.paths("odirect")}


def _audit(document: Document, path: str) -> Audit:
    value = collected(document.record("odirect", path, "could not be tried"), f"{path} is not there")
    records = value.get("trials")
    if not isinstance(records, dict):
        raise UndecidedError(f"the record of direct I/O on {path} is malformed")
    trials = tuple(_trial(str(name), record) for name, record in records.items())
    if not trials:
        raise UndecidedError(f"no direct I/O was tried on {path}")
    instrument = value.get("instrument")
    instrument = instrument if isinstance(instrument, str) else None
    return Audit(path, trials, instrument, _alignment(value.get("alignment")))


def _alignment(value: Any) -> Optional[Tuple[int, int]]:
    memory, offset = (value.get(key) for key in ("memory", "offset")) if isinstance(value, dict) else (None, None)
    return (memory, offset) if isinstance(memory, int) and isinstance(offset, int) else None


def _trial(name: str, value: Any) -> Trial:
    result = value.get("result") if isinstance(value, dict) else None
    if result not in RESULTS:
        raise UndecidedError(f"the result of {name!r} is not understood")
    pages, error = value.get("pages", 0), value.get("error", "")
    return Trial(name, result, pages if isinstance(pages, int) else 0, error if isinstance(error, str) else "")


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
    for mount in expectation.storage:
        point = mount.get("mount", "")
        yield answer(_bypassed(facts, point, mount), subject=point)


def _bypassed(facts: HostFacts, point: str, mount: Mapping[str, Any]) -> Steps:
    is_compat, mounts = mount.get("path") == "compat", known(lambda: facts.storage.mounts)
    is_mounted = isinstance(mounts, Unknown) or point in mounts
    unseen = Unknown(f"{point} was not tried")
    audit = facts.storage.audits.get(point, unseen) if is_mounted else unseen
    if mount.get("scratch") == "no":
        yield not_applicable("not tried: " + NO_TRIAL)
    elif is_compat and isinstance(audit, Unknown):
        yield not_applicable(NOT_NEEDED + "not tried")
    elif not is_mounted:
        yield not_applicable(NOT_MOUNTED)
    else:
        if not is_compat:
            # The trial may have tested the filesystem below.
            require(mounts)
        yield _judge(require(audit), is_compat)


def _judge(audit: Audit, may_buffer: bool) -> Answer:
    evidence = _lines(audit)
    bad = [trial for trial in audit.trials if trial.result == WRONG]
    if not bad and may_buffer:
        return passed(NOT_NEEDED + audit.summary, evidence)
    bad = bad or [trial for trial in audit.of(ALIGNED) if trial.result not in (BYPASSED, NOT_PROVEN)]
    if bad:
        more = f" (and {len(bad) - 1} more, see the evidence)" if len(bad) > 1 else ""
        return failed(bad[0].words() + more, HINTS.get(bad[0].result, BUFFERED_HINT), evidence)
    for trial in audit.of(("read", "overwrite", "extending write")):
        if trial.result == NOT_PROVEN:
            reason = f"{trial.name}: {trial.error or 'its pages could not be followed in the page cache'}"
            raise UndecidedError(reason, "Stop the programs that use the mount, and validate again")
    return passed(audit.summary, evidence)


def _lines(audit: Audit) -> List[str]:
    instrument = f"seen with {audit.instrument}" if audit.instrument else "nothing shows the page cache here"
    # The evidence of one finding is short: all expected results share one line.
    bypassed = ", ".join(trial.name for trial in audit.trials if trial.result == BYPASSED)
    others = [trial.words() for trial in audit.trials if trial.result != BYPASSED]
    first = f"direct I/O tried in {audit.folder}, {instrument}"
    return [first, *(["bypassed: " + bypassed] if bypassed else []), *others]


# Reading under load

SLOW_HINT = (
    "Validate again with --load while no other program uses the mount; then compare the links of its disks or"
    " adapters (gdsdeploy topology) and the health of the storage with a host that delivers it"
)
UNREAD_HINT = "Remove the reason above, and validate again with --load; see docs/validate.md"


@collector("load")
def collect_load(recorder: Recorder, request: EvidenceRequest) -> None:
    audits, section = recorder.document["odirect"], recorder.document["load"]
    # These stay where the time runs out.
    section.update({path: {"error": "no time was left to read from it"} for path, _ in request.load})
    for path, seconds in request.load:
        mount = recorder.mounts().visible.get(path)
        if mount is None:
            # The scratch file would lie on the filesystem below.
            section[path] = {"error": "nothing is mounted there"}
        elif "error" in audits.get(path, {}):
            # The server may be gone: don't wait for it twice.
            section[path] = {"error": audits[path]["error"]}
        else:
            from ..odirect.load import measured

            section[path] = measured(path, seconds, mount=mount.id)


class Loaded(NamedTuple):
    """Reading of one mount with direct I/O, all readers at once."""

    #: bytes a second
    rate: float
    readers: int
    #: bytes of one read
    block: int
    #: seconds of one read
    p50: float
    p99: float
    longest: float

    @property
    def summary(self) -> str:
        """All of it in one sentence."""
        p50, p99, longest = (seconds * 1000 for seconds in (self.p50, self.p99, self.longest))
        rate = f"{size(self.rate)}/s read by {self.readers} readers, {self.block / (1 << 20):g} MiB each time"
        return f"{rate}; latency p50 {p50:.3g} ms, p99 {p99:.3g} ms, max {longest:.3g} ms"


def size(number: float) -> str:
    """Bytes in decimal units: kB, MB and GB."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def loads(document: Document) -> Mapping[str, Maybe[Loaded]]:
    """Mount point → its reading, or why it was not read.  Empty if the caller requested no reading."""
    if not document.has("load"):
        raise UndecidedError("the evidence does not say whether reading under load was asked for")
    return {path: known(partial(_load, document, path)) for path in document.paths("load")}


def _load(document: Document, path: str) -> Loaded:
    record = document.record("load", path, "could not be tried under load")
    return loaded(path, collected(record, f"nothing was read on {path}"))


def loaded(path: str, value: Mapping[str, Any]) -> Loaded:
    """A measurement of host/odirect/load.py as facts; raises UndecidedError."""
    latency = value.get("latency")
    times: Mapping[str, Any] = latency if isinstance(latency, Mapping) else {}
    numbers: List[Any] = [value.get(key) for key in ("rate", "readers", "block")]
    numbers += [times.get(key) for key in ("p50", "p99", "max")]
    if any(isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0 for number in numbers):
        raise UndecidedError(f"the record of reading on {path} under load is malformed")
    return Loaded(*numbers)


@check(
    "storage.load",
    "this mount delivers the fleet's rate while several readers keep it busy",
    expects="the rate of the fleet file; tried only on request, and where there is one",
    prevents="a slow disk, a bad cable or a link at half its width, which no check of the configuration notices",
)
def read_rate(facts: HostFacts, expectation: Expectation) -> Iterator[Answer]:
    for mount in expectation.storage:
        point, limits = mount.get("mount", ""), mount.get("load")
        rate = limits.get("read") if isinstance(limits, dict) else None
        if isinstance(rate, (int, float)):
            expected = f"at least {size(rate)}/s read"
            yield answer(_judge_load(facts, point, rate), UNREAD_HINT, subject=point, expected=expected)
        else:
            yield not_applicable("the fleet sets no rate for this mount", point)


def _judge_load(facts: HostFacts, point: str, rate: float) -> Iterator[Answer]:
    if not facts.storage.loads:
        yield not_applicable("no reading under load was requested (--load)")
        return
    load = require(facts.storage.loads.get(point, Unknown("it was not read from")))
    yield passed(load.summary) if load.rate >= rate else failed(load.summary, SLOW_HINT)
