"""Whether mounts deliver the fleet's rate while several readers keep them busy."""

from __future__ import annotations

from functools import partial
from typing import Any, Iterator, List, Mapping, NamedTuple

from ..facts.document import Document, collected
from ..facts.unknown import Maybe, UndecidedError, Unknown, known, require
from ..model.expectation import Expectation
from .register import Answer, answer, check, collector, failed, not_applicable, passed
from .types import EvidenceRequest, HostFacts, Recorder

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
    """Mount point → its reading, or the reason why there is none.  Empty where the caller requested no reading."""
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
            yield answer(_judge(facts, point, rate), UNREAD_HINT, subject=point, expected=expected)
        else:
            yield not_applicable("the fleet sets no rate for this mount", point)


def _judge(facts: HostFacts, point: str, rate: float) -> Iterator[Answer]:
    if not facts.storage.loads:
        yield not_applicable("no reading under load was requested (--load)")
        return
    load = require(facts.storage.loads.get(point, Unknown("it was not read from")))
    yield passed(load.summary) if load.rate >= rate else failed(load.summary, SLOW_HINT)
