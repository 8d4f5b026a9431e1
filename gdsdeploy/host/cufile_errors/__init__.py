"""What the error codes mean that cuFile returns, what usually causes them, and where that shows.

The table is ``data/cufile_errors.json``.  Its numbers and names come from the ``cufile.h`` of releases 1.11 to 1.20,
from CUDA's CUresult and from Linux.  A release has a code if its library holds the message of that code.
"""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from typing import Any, Dict, List, Tuple

from .. import data
from .entry import CUDA, CUFILE, ERRNO, RDMA, Cause, Entry, entry_from

__all__ = [
    "CUDA",
    "CUFILE",
    "ERRNO",
    "RDMA",
    "Cause",
    "Entry",
    "UnknownCodeError",
    "document",
    "entries",
    "lookup",
    "text",
]

_PREFIX = re.compile(r"^(CU_FILE_RDMA_|CU_FILE_|CUDA_ERROR_)")
_NUMBER = re.compile(
    r"^(?:(?P<family>cufile|cuda|cu_err|errno|rdma)\s*[:= ]\s*)?(?P<sign>[+-]?)(?P<digits>\d{1,9})$", re.I
)


class UnknownCodeError(LookupError):
    """No such code is known; ``nearest`` are the names or numbers that look most like it."""

    def __init__(self, message: str, nearest: Tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.nearest = nearest


@lru_cache(maxsize=1)
def entries() -> Tuple[Entry, ...]:
    """All of them: cuFile's by number, then those that it passes on."""
    return data.rows("cufile_errors", entry_from)


def lookup(word: str) -> Tuple[Entry, ...]:
    """What ``word`` can mean, the most likely first; never empty.

    ``5027`` and ``-5027`` (as reads and writes return it), ``27`` (the number above 5000, and a CUDA code if there is
    one), ``CU_FILE_HANDLE_NOT_REGISTERED`` with or without its prefix and in any case, ``100``, ``cuda:100`` or
    ``CUDA_ERROR_NO_DEVICE``, ``-22``, ``errno:22`` or ``EINVAL``.
    Raises UnknownCodeError.
    """
    asked = word.strip()
    number = _NUMBER.match(asked)
    if number:
        return _by_number(
            asked, (number.group("family") or "").lower(), number.group("sign"), int(number.group("digits"))
        )
    name = re.sub(r"[\s-]+", "_", asked).upper()
    bare = _PREFIX.sub("", name)
    found = tuple(entry for entry in entries() if name in _names(entry)) or tuple(
        entry for entry in entries() if bare and bare in (_PREFIX.sub("", known) for known in _names(entry))
    )
    if found:
        return found
    near = sorted(entries(), key=lambda entry: _likeness(bare, _PREFIX.sub("", entry.name)), reverse=True)
    raise UnknownCodeError(f"no error code is named {word!r}", tuple(_shown(entry) for entry in near[:3]))


def _likeness(asked: str, name: str) -> float:
    """How much a name, or the best of its words, looks like what was asked for: 0 to 1."""
    whole = difflib.SequenceMatcher(None, asked, name).ratio()
    return max(whole, *(difflib.SequenceMatcher(None, asked, part).ratio() for part in name.split("_")))


def _names(entry: Entry) -> Tuple[str, ...]:
    return (entry.name, *entry.other_names)


def _shown(entry: Entry) -> str:
    return f"{number(entry)} {entry.name}"


def number(entry: Entry) -> str:
    """The code as users meet it: ``5027``, ``cuda:100``, ``-22``."""
    if entry.family == CUDA:
        return f"cuda:{entry.code}"
    return f"-{entry.code}" if entry.family == ERRNO else str(entry.code)


def _by_number(asked: str, family: str, sign: str, value: int) -> Tuple[Entry, ...]:
    wanted: List[Tuple[str, int]] = []
    if family in ("cuda", "cu_err"):
        wanted = [(CUDA, value)]
    elif family == "errno":
        wanted = [(ERRNO, value)]
    elif value >= 5000:
        wanted = [(CUFILE, value), (RDMA, value)]
    elif family:
        wanted = [(CUFILE, 5000 + value), (RDMA, 6000 + value)] if family == "cufile" else [(RDMA, 6000 + value)]
    elif sign == "-":
        wanted = [(ERRNO, value)]
    else:
        wanted = [(CUFILE, 5000 + value), (CUDA, value)]
    known = {(entry.family, entry.code): entry for entry in entries()}
    found = tuple(known[key] for key in wanted if key in known)
    if found:
        return found
    families = {key[0] for key in wanted}
    near = sorted(
        (entry for entry in entries() if entry.family in families),
        key=lambda entry: min(abs(entry.code - code) for kind, code in wanted if kind == entry.family),
    )
    raise UnknownCodeError(f"no error code {asked} is known", tuple(_shown(entry) for entry in near[:3]))


def document(word: str) -> Dict[str, Any]:
    """The answer to ``word`` as a JSON object: ``{"asked", "entries": [{"code", "family", "name", "meaning", …}]}``.

    Raises UnknownCodeError.
    """
    return {"asked": word, "entries": [_as_dict(entry) for entry in lookup(word)]}


def _as_dict(entry: Entry) -> Dict[str, Any]:
    return {
        "family": entry.family,
        "code": entry.code,
        "name": entry.name,
        "other_names": list(entry.other_names),
        "meaning": entry.meaning,
        "releases": entry.releases,
        "seen": entry.seen,
        "causes": [{"what": item.what, "evidence": item.evidence, "fix": item.fix} for item in entry.causes],
    }


def text(word: str) -> str:
    """The answer to ``word`` for a terminal.  Raises UnknownCodeError."""
    return "\n\n".join(_text(entry) for entry in lookup(word))


def _text(entry: Entry) -> str:
    lines = [
        f"{number(entry)} {entry.name}: {entry.meaning}",
        f"  libcufile: {entry.releases}",
    ]
    if entry.seen:
        lines.append(f"  seen: {entry.seen}")
    for place, cause in enumerate(entry.causes, 1):
        lines += [
            f"  {place}. {cause.what}",
            f"     evidence: {cause.evidence}",
            f"     fix: {cause.fix}",
        ]
    return "\n".join(lines)
