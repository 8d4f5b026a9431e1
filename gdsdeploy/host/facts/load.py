"""What mounts delivered while they were busy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping

from .document import Document
from .unknown import Maybe, Unknown

_TIMES = ("p50", "p99", "max")


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
        latency = (
            f"latency p50 {self.p50 * 1000:.3g} ms, p99 {self.p99 * 1000:.3g} ms, max {self.longest * 1000:.3g} ms"
        )
        block = self.block / (1 << 20)
        return f"{size(self.rate)}/s read by {self.readers} readers, {block:g} MiB each time; {latency}"


def size(number: float) -> str:
    """Bytes as makers of storage count them: kB, MB and GB of 1000."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"


def loads(document: Document) -> Maybe[Mapping[str, Maybe[Loaded]]]:
    """By the mount that was read from; where nothing could be, why.  Empty where nobody asked for it."""
    if not document.has("load"):
        return Unknown("the evidence does not say whether reading under load was asked for")
    return {path: _loaded(document, path) for path in document.paths("load")}


def _loaded(document: Document, path: str) -> Maybe[Loaded]:
    value = document.record("load", path, "could not be tried under load")
    if isinstance(value, Unknown):
        return value
    if not isinstance(value, dict):
        return Unknown(f"nothing was read on {path}")
    return loaded(path, value)


def loaded(path: str, value: Mapping[str, Any]) -> Maybe[Loaded]:
    """A measurement as host/odirect/load.py gives it."""
    latency = value.get("latency")
    times: Mapping[str, Any] = latency if isinstance(latency, Mapping) else {}
    numbers: List[Any] = [
        *(value.get(key) for key in ("rate", "readers", "block")),
        *(times.get(key) for key in _TIMES),
    ]
    if any(isinstance(item, bool) or not isinstance(item, (int, float)) or not item >= 0 for item in numbers):
        return Unknown(f"the record of reading on {path} under load is malformed")
    return Loaded(*numbers)
