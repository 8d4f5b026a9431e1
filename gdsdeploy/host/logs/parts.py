"""Split a text into parts by what printed them: a cufile.log, a report of gdscheck, the kernel, a build, and others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Dict, Iterator, List, NamedTuple, Optional, Pattern, Tuple

from .. import data
from ..gdscheck import grammar
from ..gdscheck.pasted import plain

CUFILE, GDSCHECK, KERNEL, BUILD, MODPROBE = "cufile", "gdscheck", "kernel", "build", "modprobe"
PACKAGES, LSPCI, SMI, STATS, PROGRAM, OTHER = "packages", "lspci", "smi", "stats", "program", "other"
KINDS = (CUFILE, GDSCHECK, KERNEL, BUILD, MODPROBE, PACKAGES, LSPCI, SMI, STATS, PROGRAM, OTHER)
#: Most characters looked at of one line.
LINE_LIMIT = 2000
#: Characters, at least, that are split into lines at once.
_AT_ONCE = 1 << 20

#: What the kernel's lines begin with: a time of dmesg, or the journal's prefix; before it, the file that grep names.
_STAMP = (
    r"(?:<\d+>)?\[(?:[ \d]*\d\.\d{3,}| *\+\d+\.\d+|[A-Z][a-z]{2} ?\d+ [\d:]+"
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]+ \d{4})\]\s"
    r"|(?:[A-Z][a-z]{2} +\d+ [\d:]+|\d{4}-\d\d-\d\d[T ]\S+) \S+ kernel: (?:\[ *\d+\.\d+\] )?"
    r"|\d{4}-\d\d-\d\dT[\d:]+,\d+\S*\s"
)
_KERNEL_PREFIX = re.compile(rf"\s*(?:[\w./-]+:(?:\d+:)?)?(?:{_STAMP})")
_FENCE = re.compile(r"\s*(?:```|~~~|</?(?:details|summary|pre|code)\b)")
#: A libcufile message whose beginning was cut off, or that has what a container or grep put before it.
_CUT_LOG = re.compile(
    r"(?:.{0,200}\[pid=(?P<pid>\d+) tid=\d+\] +|\s*)"
    r"(?P<level>ERROR|WARN|NOTICE|INFO|DEBUG|TRACE) +[\w-]+:\d+ +(?P<text>.*)$"
)
#: Digits as zeros: lines that differ by numbers alone are of one kind, and what may match them is looked up once.
#: For marks decimal ones, for keys of caches hexadecimal ones, too.
ZEROS = {ord(digit): "0" for digit in "123456789"}
_HEXADECIMAL = {ord(digit): "0" for digit in "123456789abcdefABCDEF"}
#: These go on until something else begins; a line after another one may be prose.
_GOES_ON = frozenset({GDSCHECK, BUILD, LSPCI, SMI, STATS, PACKAGES, PROGRAM})


class Mark(NamedTuple):
    """A row of log_parts.json; its schema describes the fields."""

    kind: str
    pattern: str
    samples: Tuple[str, ...]


@lru_cache(maxsize=1)
def _marks() -> Tuple[Tuple[str, Pattern[str]], ...]:
    """One pattern for each kind, in the order of the table."""
    patterns: Dict[str, List[str]] = {}
    for mark in data.rows("log_parts", Mark):
        patterns.setdefault(mark.kind, []).append(mark.pattern)
    return tuple((kind, re.compile("|".join(of_kind))) for kind, of_kind in patterns.items())


class Line(NamedTuple):
    """One line; ``text`` is what was printed, without time, prefix and marks of Markdown."""

    file: str
    #: from 1
    number: int
    text: str
    kind: str
    #: of a libcufile message
    level: str = ""
    pid: str = ""
    #: equal for lines that differ by numbers alone
    key: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True)
class Part:
    """Neighbouring lines of one kind."""

    kind: str
    file: str
    lines: Tuple[Line, ...]


def split(content: bytes, file: str) -> List[Part]:
    """The parts of a file's content, in order; every line that isn't blank is in one.  Never raises."""
    parts: List[Tuple[str, List[Line]]] = []
    for line in _lines(plain(content), file):
        if not parts or parts[-1][0] != line.kind:
            parts.append((line.kind, []))
        parts[-1][1].append(line)
    return [Part(kind, file, tuple(lines)) for kind, lines in parts]


def _lines(text: str, file: str) -> Iterator[Line]:
    kinds: Dict[str, Optional[str]] = {}
    # Equal texts are one object: most lines of a long log differ by numbers alone.
    same: Dict[str, str] = {}
    current = OTHER
    for number, (raw, key) in enumerate(_with_keys(text), 1):
        if not raw or raw.isspace():
            continue
        if len(raw) > LINE_LIMIT:
            raw, key = raw[:LINE_LIMIT], key[:LINE_LIMIT]
        message = grammar.LOG.match(raw)
        if message:
            current = CUFILE
            begin = message.start("text")
            level, pid, key = (same.setdefault(word, word) for word in (message["level"], message["pid"], key[begin:]))
            yield Line(file, number, raw[begin:].strip(), CUFILE, level, pid, key)
            continue
        key = same.setdefault(key, key)
        if key not in kinds:
            kinds[key] = _kind(raw)
        kind = kinds[key]
        if kind == "":
            current = OTHER
            continue
        current = kind or (current if current in _GOES_ON else OTHER)
        yield _line(file, number, raw, current, key)


def _with_keys(text: str) -> Iterator[Tuple[str, str]]:
    """Each line, and what it shares with those that differ by numbers alone; some at a time, to save memory."""
    begin = 0
    while begin <= len(text):
        end = text.find("\n", begin + _AT_ONCE)
        some = text[begin : len(text) if end < 0 else end]
        yield from zip(some.split("\n"), some.translate(_HEXADECIMAL).split("\n"))
        begin = len(text) + 1 if end < 0 else end + 1


def _line(file: str, number: int, raw: str, kind: str, key: str) -> Line:
    prefix = _KERNEL_PREFIX.match(raw) if kind == KERNEL else None
    if prefix:
        return Line(file, number, raw[prefix.end() :].strip(), KERNEL, key=key[prefix.end() :])
    cut = _CUT_LOG.match(raw) if kind == CUFILE else None
    if cut:
        begin = cut.start("text")
        return Line(file, number, raw[begin:].strip(), CUFILE, cut["level"], cut["pid"] or "", key[begin:])
    return Line(file, number, raw.strip(), kind, key=key)


def _kind(raw: str) -> Optional[str]:
    """Whose line it is; None: any; empty: a mark of Markdown, after which another part begins."""
    if _FENCE.match(raw):
        return ""
    text = raw.strip()
    if _KERNEL_PREFIX.match(raw):
        return KERNEL
    if _CUT_LOG.match(raw):
        return CUFILE
    if _is_report(text):
        return GDSCHECK
    zeros = raw.translate(ZEROS)
    return next((kind for kind, mark in _marks() if mark.match(zeros)), None)


def _is_report(text: str) -> bool:
    """Whether this line is one of a report of gdscheck."""
    if text in grammar.SECTIONS or text == grammar.END or text.startswith((grammar.FAILED, "GPU index ")):
        return True
    if (
        grammar.HEADER.match(text)
        or grammar.GPU.match(text)
        or grammar.NO_GPU.match(text)
        or grammar.SETTING.match(text)
    ):
        return True
    row = grammar.ROW.match(text)
    is_row = row is not None and (row[1] in grammar.LABELS or grammar.offers(row[2].strip()) is not None)
    return is_row or bool(grammar.RDMA.match(text)) or bool(grammar.LOGGED_FACT.match(text))
