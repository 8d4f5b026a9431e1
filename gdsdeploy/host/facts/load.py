"""The read rates of mounts under load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping

from .document import Document
from .unknown import Maybe, Unknown, why_not


@dataclass(frozen=True)
class Loaded:
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


def loads(document: Document) -> Maybe[Mapping[str, Maybe[Loaded]]]:
    """Mount point → its reading, or the reason why there is none.  Empty where the caller requested no reading."""
    if not document.has("load"):
        return Unknown("the evidence does not say whether reading under load was asked for")
    records = {path: document.record("load", path, "could not be tried under load") for path in document.paths("load")}
    return {
        path: loaded(path, record) if isinstance(record, dict) else why_not(record, f"nothing was read on {path}")
        for path, record in records.items()
    }


def loaded(path: str, value: Mapping[str, Any]) -> Maybe[Loaded]:
    """A measurement of host/odirect/load.py as facts."""
    latency = value.get("latency")
    times: Mapping[str, Any] = latency if isinstance(latency, Mapping) else {}
    numbers: List[Any] = [value.get(key) for key in ("rate", "readers", "block")]
    numbers += [times.get(key) for key in ("p50", "p99", "max")]
    if any(isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0 for number in numbers):
        return Unknown(f"the record of reading on {path} under load is malformed")
    return Loaded(*numbers)
