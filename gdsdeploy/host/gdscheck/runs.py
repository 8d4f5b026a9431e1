"""Read a file: output of gdscheck, of one run or of several after each other, or a libcufile log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from . import grammar
from .reader import LINE_LIMIT, Reader, parse_lines
from .report import Report

#: Bytes of a file that are read, in less than 300 MiB of memory: hundreds of reports, or a log of 100,000 messages.
LIMIT = 8 * 1024 * 1024
GDSCHECK, LOG, NOTHING = "gdscheck", "cufile.log", "unknown"
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


@dataclass(frozen=True)
class Recording:
    """What a file holds.

    ``runs``: in their order, at least one; the last is the one that counts.  ``kind``: ``gdscheck``, ``cufile.log`` or
    ``unknown`` (nothing of either).  ``cut``: it is larger than LIMIT, and its end was not read.
    """

    runs: Tuple[Report, ...]
    kind: str
    cut: bool = False

    @property
    def report(self) -> Report:
        """The last run."""
        return self.runs[-1]


def read(data: bytes, exit_status: Optional[int] = None) -> Recording:
    """Read what a file holds; ``exit_status`` is that of its last run, and overrules what the file says of it.

    A recording may end each run with a line like ``rc=255``.  Never raises.
    """
    cut = len(data) > LIMIT
    text = _clean(data[:LIMIT])
    lines = text.split("\n")
    if _is_log(lines):
        runs = _logged(lines)
        kind = LOG
    else:
        runs = _printed(lines, exit_status)
        kind = GDSCHECK if any(_is_something(run) for run in runs) else NOTHING
    return Recording(runs, kind, cut)


def _clean(data: bytes) -> str:
    text = data.decode("utf-8-sig", "replace")
    return _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


def _is_something(run: Report) -> bool:
    return bool(run.storage or run.errors or run.release or run.nvidia_fs_minimum or run.config or run.sections)


def _is_log(lines: List[str]) -> bool:
    """A log has messages in its own format, and no report outside of them."""
    messages = sum(1 for line in lines if grammar.LOG.match(line[:LINE_LIMIT]))
    return messages > 0 and not any(line.strip() in grammar.SECTIONS for line in lines)


def _logged(lines: List[str]) -> Tuple[Report, ...]:
    """The runs of a log: processes may write to it at the same time, and each may open the library again."""
    readers: Dict[str, Reader] = {}
    done: List[Reader] = []
    for number, line in enumerate(lines, 1):
        found = grammar.LOG.match(line[:LINE_LIMIT])
        # The last line has no end: what it says may be half of it.
        if found is None or number == len(lines):
            continue
        pid, text = found.group("pid"), found.group("text").strip()
        reader = readers.get(pid)
        if reader is None or _begins(text, reader):
            reader = readers[pid] = Reader(log=True)
            done.append(reader)
        reader.logged(found.group("level"), text)
    reports = [reader.report(None) for reader in done]
    # A process that wrote no row and no error has nothing to say here.
    kept = [report for report in reports if _is_something(report)]
    return tuple(kept or [*reports, Reader(log=True).report(None)][:1])


def _begins(text: str, reader: Reader) -> bool:
    """Whether this message begins a report anew."""
    header = grammar.HEADER.match(text)
    if header and header.group("release"):
        return "release" in reader.header
    return text == grammar.HEADINGS[0] and text in reader.headings


def _printed(lines: List[str], exit_status: Optional[int]) -> Tuple[Report, ...]:
    pieces = _pieces(lines)
    if exit_status is not None:
        pieces[-1] = (pieces[-1][0], exit_status)
    last = len(pieces) - 1
    whole_end = lines[-1] == ""
    runs = tuple(
        parse_lines(piece, status, last_is_whole=number < last or whole_end)
        for number, (piece, status) in enumerate(pieces)
    )
    if len(runs) > 1 and not all(run.complete or run.verdict == "refused" for run in runs):
        # Pieces that are not whole may be one run's lines among another's.
        return (parse_lines([line for piece, _ in pieces for line in piece], pieces[-1][1], whole_end),)
    return runs


def _pieces(lines: List[str]) -> List[Tuple[List[str], Optional[int]]]:
    """Split at each line with an exit status, and where a report begins after the end of another."""
    pieces: List[Tuple[List[str], Optional[int]]] = [([], None)]
    ended = False
    for line in lines:
        text = line.strip()[:LINE_LIMIT]
        status = grammar.STATUS.match(text)
        piece, known = pieces[-1]
        if status and known is None and any(item.strip() for item in piece):
            pieces[-1] = (piece, int(status.group(1)))
            ended = True
            continue
        starts = (text != "" and known is not None) or _starts(text, piece)
        if ended and starts:
            pieces.append(([line], None))
            ended = False
            continue
        piece.append(line)
        ended = ended or text == grammar.END or text.startswith(grammar.FAILED)
    if len(pieces) > 1 and not any(_is_row(line) for line in pieces[-1][0]) and pieces[-1][1] is None:
        # Words after the last status: the prompt, or a remark.
        rest, _ = pieces.pop()
        pieces[-1][0].extend(rest)
    return pieces


def _starts(text: str, piece: List[str]) -> bool:
    """Whether this line begins a report, if the one before has ended."""
    header = grammar.HEADER.match(text)
    if header and (header.group("release") or header.group("nvfs")):
        return True
    if text == grammar.HEADINGS[0] or grammar.SYSMEM.search(text):
        return True
    return text != "" and grammar.ERRORS.search(text) is not None and grammar.END in (line.strip() for line in piece)


def _is_row(line: str) -> bool:
    text = line.strip()[:LINE_LIMIT]
    return bool(grammar.HEADER.match(text) or text in grammar.SECTIONS or grammar.ERRORS.search(text))
