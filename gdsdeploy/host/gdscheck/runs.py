"""Read a file: the output of one or several runs of gdscheck, or a libcufile log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, List, Optional, Tuple

from . import grammar
from .pasted import plain
from .reader import LINE_LIMIT, Reader, parse_lines
from .report import REFUSED, Report

#: Most bytes read of a file, in less than 300 MiB of memory: hundreds of reports, or a log of 100,000 messages.
LIMIT = 8 * 1024 * 1024
GDSCHECK, LOG, NOTHING = "gdscheck", "cufile.log", "unknown"


@dataclass(frozen=True)
class Recording:
    """The content of a file.

    ``runs``: at least one, in their order; the last one counts.  ``kind``: ``gdscheck``, ``cufile.log`` or ``unknown``.
    ``cut``: the file is larger than LIMIT, and its end was not read.
    """

    runs: Tuple[Report, ...]
    kind: str
    cut: bool = False

    @property
    def report(self) -> Report:
        """The last run."""
        return self.runs[-1]


def read(data: bytes, exit_status: Optional[int] = None) -> Recording:
    """Read the content of a file; ``exit_status``: the status of its last run, which the file may name too.

    A recording may end each run with a line like ``rc=255``.  Never raises.
    """
    lines = plain(data[:LIMIT]).split("\n")
    cut = len(data) > LIMIT
    if _is_log(lines):
        return Recording(_log_runs(lines), LOG, cut)
    runs = _output_runs(lines, exit_status)
    return Recording(runs, GDSCHECK if any(_is_something(run) for run in runs) else NOTHING, cut)


def _is_something(run: Report) -> bool:
    return bool(run.storage or run.errors or run.release or run.nvidia_fs_minimum or run.config or run.sections)


def _is_log(lines: List[str]) -> bool:
    """A log has messages in its own format, and no report outside of them."""
    return any(grammar.LOG.match(line[:LINE_LIMIT]) for line in lines) and not any(
        line.strip() in grammar.SECTIONS for line in lines
    )


def _log_runs(lines: List[str]) -> Tuple[Report, ...]:
    # The last line has no end: it may be cut.
    matches = (grammar.LOG.match(line[:LINE_LIMIT]) for line in lines[:-1])
    return log_runs((match["pid"], match["level"], match["text"]) for match in matches if match)


def log_runs(messages: Iterable[Tuple[str, str, str]]) -> Tuple[Report, ...]:
    """The runs in a log's messages (process, level, text), in the order of their last messages; at least one.

    Several processes may write to a log, and each may open the library several times.  The errors of all processes
    that wrote no report are one run: which of them has the cause, only the lines together tell.
    """
    readers: Dict[str, Reader] = {}
    runs: List[Reader] = []
    last: Dict[int, int] = {}
    errors: List[Tuple[Reader, str]] = []
    for place, (pid, level, message) in enumerate(messages):
        text = message.strip()
        reader = readers.get(pid)
        if reader is None or _begins(text, reader):
            reader = readers[pid] = Reader(log=True)
            runs.append(reader)
        last[id(reader)] = place
        reader.logged(level, text)
        if level == "ERROR":
            errors.append((reader, text))
    runs.sort(key=lambda reader: last[id(reader)])
    reports = [reader.report(None) for reader in _merged(runs, errors)]
    # A process that wrote no row and no error doesn't matter here.
    telling = [report for report in reports if _is_something(report)]
    return tuple(telling or [*reports, Reader(log=True).report(None)][:1])


def _merged(runs: List[Reader], errors: List[Tuple[Reader, str]]) -> Iterator[Reader]:
    """The runs; one in place of all those that have errors and neither a report nor one that ends the library."""
    only_errors = [reader for reader in runs if reader.errors and not reader.headings and not reader.fatal]
    members = set(map(id, only_errors))
    for reader in runs:
        if id(reader) not in members:
            yield reader
        elif reader is only_errors[-1]:
            whole = Reader(log=True)
            for other, text in errors:
                if id(other) in members:
                    whole.logged("ERROR", text)
            yield whole


def _begins(text: str, reader: Reader) -> bool:
    """Whether this message begins another report."""
    header = grammar.HEADER.match(text)
    if header and header["release"]:
        return "release" in reader.header
    return text == grammar.HEADINGS[0] and text in reader.headings


def _output_runs(lines: List[str], exit_status: Optional[int]) -> Tuple[Report, ...]:
    pieces = _pieces(lines)
    if exit_status is not None:
        pieces[-1] = (pieces[-1][0], exit_status)
    *others, (last, status) = pieces
    whole_end = lines[-1] == ""
    runs = (*(parse_lines(*other) for other in others), parse_lines(last, status, whole_end))
    if others and not all(run.complete or run.verdict == REFUSED for run in runs):
        # Pieces that aren't whole may be one run's lines among another's.
        return (parse_lines([line for piece, _ in pieces for line in piece], status, whole_end),)
    return runs


def _pieces(lines: List[str]) -> List[Tuple[List[str], Optional[int]]]:
    """Split at each line with an exit status, and where a report begins after the end of another."""
    pieces: List[Tuple[List[str], Optional[int]]] = [([], None)]
    ended = False
    for line in lines:
        text = line.strip()[:LINE_LIMIT]
        status = grammar.STATUS.match(text)
        piece, piece_status = pieces[-1]
        if status and piece_status is None and any(map(str.strip, piece)):
            pieces[-1] = (piece, int(status[1]))
            ended = True
            continue
        starts = (text != "" and piece_status is not None) or _starts(text, piece)
        if ended and starts:
            pieces.append(([line], None))
            ended = False
            continue
        piece.append(line)
        ended = ended or text == grammar.END or text.startswith(grammar.FAILED)
    if len(pieces) > 1 and not any(_is_row(line) for line in pieces[-1][0]) and pieces[-1][1] is None:
        # Text after the last status: the prompt, or a remark.
        rest, _ = pieces.pop()
        pieces[-1][0].extend(rest)
    return pieces


def _starts(text: str, piece: List[str]) -> bool:
    """Whether this line begins a report, if the previous one has ended."""
    header = grammar.HEADER.match(text)
    if header and (header["release"] or header["nvfs"]):
        return True
    if text == grammar.HEADINGS[0] or grammar.SYSMEM.search(text):
        return True
    return text != "" and grammar.ERRORS.search(text) is not None and grammar.END in (line.strip() for line in piece)


def _is_row(line: str) -> bool:
    text = line.strip()[:LINE_LIMIT]
    return bool(grammar.HEADER.match(text) or text in grammar.SECTIONS or grammar.ERRORS.search(text))
