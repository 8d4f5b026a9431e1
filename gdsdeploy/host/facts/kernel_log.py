"""The kernel's messages about this stack since the boot: from the journal and from dmesg, as one log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from .document import Document
from .unknown import Maybe, Unknown

#: Program in the evidence → its name in messages and quotes.
SOURCES = {"journal": "journalctl -k -b", "dmesg": "dmesg"}
#: A line of journalctl's format short-monotonic: the time as dmesg writes it, then host and identifier.
_JOURNAL = re.compile(r"^(\[ *\d+\.\d+\]) \S+ kernel: ")
_TIME = re.compile(r"^\[ *(\d{1,12}\.\d+)\] ")
#: start_kernel() prints it before everything else (linux_banner), so it is the first line that a full ring drops.
_BANNER = re.compile(r"^(\[ *0\.0+\] )?Linux version ")
#: The kernel's rate limit (lib/ratelimit.c): lines of one of NVIDIA's functions were left out.
_SUPPRESSED = re.compile(r"\bnv\w*: \d+ callbacks suppressed")


@dataclass(frozen=True)
class KernelLog:
    """Lines as dmesg prints them, oldest first."""

    lines: Tuple[str, ...]
    #: the program that printed the most of them, e.g. ``dmesg``
    source: str
    #: True, or unknown with the reason why messages since the boot may be missing
    since_boot: Maybe[bool]
    #: lines with which the kernel says that it left out repeated ones
    suppressed: Tuple[str, ...] = ()


def kernel_log(document: Document) -> KernelLog:
    """Both sources together: one may have lines that the other lost, and one that reaches back to the boot suffices."""
    logs = {program: _lines(document.printed(program)) for program in SOURCES}
    complete = [_reaches_boot(document, program, lines) for program, lines in logs.items()]
    reasons = "; ".join(answer.reason for answer in complete if isinstance(answer, Unknown))
    incomplete = Unknown(f"messages since the boot may be missing: {reasons}")
    lines = _merged([line for lines in logs.values() for line in lines])
    return KernelLog(
        lines=tuple(line for line in lines if not _SUPPRESSED.search(line)),
        source=SOURCES[max(logs, key=lambda program: len(logs[program]))],
        since_boot=True if True in complete else incomplete,
        suppressed=tuple(line for line in lines if _SUPPRESSED.search(line)),
    )


def any_messages(document: Document) -> Maybe[bool]:
    """True where a source could be read at all, however far back it reaches."""
    results = [document.ran(program) for program in SOURCES]
    if any(not isinstance(result, Unknown) and result.status == 0 for result in results):
        return True
    texts = [result.reason if isinstance(result, Unknown) else result.stderr.strip() for result in results]
    return Unknown("; ".join(filter(None, texts)) or "the kernel's messages could not be read")


def _lines(text: str) -> List[str]:
    return [_JOURNAL.sub(r"\1 ", line) for line in text.splitlines()]


def _reaches_boot(document: Document, program: str, lines: Sequence[str]) -> Maybe[bool]:
    run = document.ran(program)
    if isinstance(run, Unknown):
        return run
    if run.status != 0:
        return Unknown(f"{SOURCES[program]}: {run.stderr.strip() or 'exit status ' + str(run.status)}")
    if any(map(_BANNER.match, lines)):
        return True
    return Unknown(f"{SOURCES[program]} doesn't show the kernel's first message")


def _merged(lines: Sequence[str]) -> List[str]:
    """Each line once, by time; a line without a time follows the one before it."""
    times: Dict[str, float] = {}
    last = 0.0
    for line in lines:
        match = _TIME.match(line)
        last = float(match.group(1)) if match else last
        times.setdefault(line, last)
    return sorted(times, key=lambda line: times[line])
