"""Error codes that cuFile returns: their meaning, their usual causes, and the evidence for each.

The table is ``data/cufile_errors.json``.  Its numbers and names come from the ``cufile.h`` of releases 1.11 to 1.20,
from CUDA's CUresult and from Linux.  A release has a code if its library contains the message of that code.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .. import data

#: Families of codes, by who defines the number.
CUFILE, CUDA, ERRNO, RDMA = "cufile", "cuda", "errno", "rdma"
_PREFIX = re.compile(r"^(CU_FILE_RDMA_|CU_FILE_|CUDA_ERROR_)")
_NUMBER = re.compile(
    r"^(?:(?P<family>cufile|cuda|cu_err|errno|rdma)\s*[:= ]\s*)?(?P<sign>[+-]?)(?P<digits>\d{1,9})$", re.I
)


class CodeCause(NamedTuple):
    """One usual cause of a code: ``evidence`` says where it shows, ``fix`` what to do."""

    what: str
    evidence: str
    fix: str


class ErrorCode(NamedTuple):
    """One code.

    ``code`` is the number in its family: 5027 (cufile), 100 (cuda: a CUresult), 22 (errno), 6001 (rdma).  -1 says
    that errno has the number.
    """

    family: str
    code: int
    name: str
    #: names that other releases gave the number
    other_names: Tuple[str, ...]
    meaning: str
    #: the releases of libcufile that have it, as far as their libraries and headers show
    releases: str
    #: which runs returned it; the causes of other codes come from the libraries' messages and NVIDIA's documentation
    seen: str
    #: most usual first
    causes: Tuple[CodeCause, ...]
    #: what the library itself prints for the code, or the beginning of it
    words: str = ""


class UnknownCodeError(LookupError):
    """No such code is known; ``nearest`` are the most similar names or numbers."""

    def __init__(self, message: str, nearest: Tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.nearest = nearest


def _error_code(
    causes: Tuple[Dict[str, str], ...], seen: str = "", other_names: Tuple[str, ...] = (), **fields: Any
) -> ErrorCode:
    rows = tuple(CodeCause(**cause) for cause in causes)
    return ErrorCode(causes=rows, seen=seen, other_names=other_names, **fields)


def entries() -> Tuple[ErrorCode, ...]:
    """All codes: cuFile's by number, then those that it passes on."""
    return data.rows("cufile_errors", _error_code)


def lookup(word: str) -> Tuple[ErrorCode, ...]:
    """The possible meanings of ``word``, the most likely first; never empty.

    ``5027`` and ``-5027`` (as reads and writes return it), ``27`` (the number above 5000, and a CUDA code if there is
    one), ``CU_FILE_HANDLE_NOT_REGISTERED`` with or without its prefix and in any case, ``100``, ``cuda:100`` or
    ``CUDA_ERROR_NO_DEVICE``, ``-22``, ``errno:22`` or ``EINVAL``, ``524`` (an errno,
    where neither cuFile nor CUDA has the number); a text with the library's own words for a code.
    Raises UnknownCodeError.
    """
    text = word.strip()
    match = _NUMBER.match(text)
    if match:
        return _by_number(text, (match["family"] or "").lower(), match["sign"], int(match["digits"]))
    name = re.sub(r"[\s-]+", "_", text).upper()
    bare = _PREFIX.sub("", name)
    names = {code: (code.name, *code.other_names) for code in entries()}
    matches = tuple(code for code in names if name in names[code]) or tuple(
        code for code in names if bare and bare in (_PREFIX.sub("", other) for other in names[code])
    )
    if matches:
        return matches
    printed = by_words(text)
    if printed is not None:
        return (printed,)
    near = sorted(names, key=lambda code: _likeness(bare, _PREFIX.sub("", code.name)), reverse=True)
    raise UnknownCodeError(f"no error code is named {word!r}", _shown(near))


def by_words(text: str) -> Optional[ErrorCode]:
    """The code whose words the library prints in ``text``; None: there are no such words.  The longest ones count."""
    shown = text.lower()
    matches = [code for code in entries() if code.words and code.words.lower() in shown]
    return max(matches, key=lambda code: len(code.words), default=None)


def _likeness(bare: str, name: str) -> float:
    """How similar a name, or its most similar word, is to the requested one: 0 to 1."""
    # Only a wrong name asks.
    import difflib

    return max(difflib.SequenceMatcher(None, bare, part).ratio() for part in (name, *name.split("_")))


def _shown(near: List[ErrorCode]) -> Tuple[str, ...]:
    return tuple(f"{number(code)} {code.name}" for code in near[:3])


def number(code: ErrorCode) -> str:
    """The code as users meet it: ``5027``, ``cuda:100``, ``-22``."""
    # Of a call, -1 is never EPERM.
    errno = "errno:" if code.code == 1 else "-"
    return {CUDA: "cuda:", ERRNO: errno}.get(code.family, "") + str(abs(code.code))


def _by_number(text: str, family: str, sign: str, value: int) -> Tuple[ErrorCode, ...]:
    if family in ("cuda", "cu_err"):
        keys = [(CUDA, value)]
    elif family == "errno":
        keys = [(ERRNO, value)]
    elif value >= 5000:
        keys = [(CUFILE, value), (RDMA, value)]
    elif family:
        keys = [(CUFILE, 5000 + value), (RDMA, 6000 + value)] if family == "cufile" else [(RDMA, 6000 + value)]
    elif sign == "-":
        # cuFileRead's "-1 on error, so errno is set" (NVIDIA's cuFile API Reference Guide) is no EPERM.
        keys = [(ERRNO, -value), (ERRNO, value)]
    else:
        keys = [(CUFILE, 5000 + value), (CUDA, value)]
    by_key = {(code.family, code.code): code for code in entries()}
    matches = tuple(by_key[key] for key in keys if key in by_key)
    if not matches and not family:
        # Of other calls than cuFile's, programs print errno without a sign.
        matches = tuple(by_key[key] for key in [(ERRNO, value)] if key in by_key)
    if matches:
        return matches
    distances = [
        (min(abs(code.code - target) for kind, target in keys if kind == code.family), code)
        for code in entries()
        if code.family in dict(keys)
    ]
    near = [code for _, code in sorted(distances, key=lambda pair: pair[0])]
    raise UnknownCodeError(f"no error code {text} is known", _shown(near))


def document(word: str) -> Dict[str, Any]:
    """The answer to ``word`` as a JSON object: ``{"asked", "entries": [{"family", "code", "name", "meaning", …}]}``.

    Raises UnknownCodeError.
    """
    rows = [
        {**code._asdict(), "other_names": list(code.other_names), "causes": [cause._asdict() for cause in code.causes]}
        for code in lookup(word)
    ]
    return {"asked": word, "entries": rows}


def text(word: str) -> str:
    """The answer to ``word`` for a terminal.  Raises UnknownCodeError."""
    return "\n\n".join(_text(code) for code in lookup(word))


def _text(code: ErrorCode) -> str:
    lines = [f"{number(code)} {code.name}: {code.meaning}", f"  libcufile: {code.releases}"]
    lines += [f"  seen: {code.seen}"] if code.seen else []
    for place, cause in enumerate(code.causes, 1):
        lines += [f"  {place}. {cause.what}", f"     evidence: {cause.evidence}", f"     fix: {cause.fix}"]
    return "\n".join(lines)
