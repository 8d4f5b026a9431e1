"""The results of the trials of direct I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple

from .document import Document
from .unknown import Maybe, Unknown, all_known

#: Results of one piece of direct I/O: see host/odirect/trials.py.
BYPASSED, BUFFERED, FELL_BACK, REFUSED, WRONG, NOT_PROVEN = (
    "bypassed", "buffered", "fell back", "refused", "wrong data", "not proven",
)  # fmt: skip
RESULTS = (BYPASSED, BUFFERED, FELL_BACK, REFUSED, WRONG, NOT_PROVEN)
#: The trial that stands for all of them where files cannot be opened for direct I/O at all.
OPEN = "open"
#: Trials whose offset, length and memory are aligned, of files that are large enough for a block of their own.
ALIGNED = (
    OPEN, "read", "overwrite", "extending write", "write into a hole", "write into preallocated space",
)  # fmt: skip
TINY = ("read of a tiny file", "write to a tiny file")


@dataclass(frozen=True)
class Trial:
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


@dataclass(frozen=True)
class Audit:
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
    return {path: _audit(document, path) for path in document.paths("odirect")}


def _audit(document: Document, path: str) -> Maybe[Audit]:
    value = document.record("odirect", path, "could not be tried")
    if not isinstance(value, dict):
        return Unknown(f"{path} is not there") if value is None else value
    records = value.get("trials")
    if not isinstance(records, dict):
        return Unknown(f"the record of direct I/O on {path} is malformed")
    trials = all_known(_trial(str(name), record) for name, record in records.items())
    if isinstance(trials, Unknown):
        return trials
    if not trials:
        return Unknown(f"no direct I/O was tried on {path}")
    instrument = value.get("instrument")
    instrument = instrument if isinstance(instrument, str) else None
    return Audit(path, trials, instrument, _alignment(value.get("alignment")))


def _alignment(value: Any) -> Optional[Tuple[int, int]]:
    memory, offset = (value.get(key) for key in ("memory", "offset")) if isinstance(value, dict) else (None, None)
    return (memory, offset) if isinstance(memory, int) and isinstance(offset, int) else None


def _trial(name: str, value: Any) -> Maybe[Trial]:
    result = value.get("result") if isinstance(value, dict) else None
    if result not in RESULTS:
        return Unknown(f"the result of {name!r} is not understood")
    pages, error = value.get("pages", 0), value.get("error", "")
    return Trial(name, result, pages if isinstance(pages, int) else 0, error if isinstance(error, str) else "")
