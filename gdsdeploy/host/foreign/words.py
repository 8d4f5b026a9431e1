"""What was found, in words."""

from __future__ import annotations

import re
import shlex
from typing import Dict, List, Match

from ..io.wording import first_few, line
from .model import ADOPT, NOTE, REFUSE, TAKE_OVER, ForeignInstall, Trace, kind

#: Pieces that a sentence names; the rest is counted.
NAMED = 3
#: Answer → what provision does.
ANSWERS = {
    REFUSE: "provision refuses this",
    TAKE_OVER: "provision takes this over",
    ADOPT: "the lock can adopt this",
    NOTE: "good to know",
}


def sentence(install: ForeignInstall) -> str:
    """What it is, and the first pieces of evidence."""
    return f"{kind(install.kind).title}: {first_few(evidence(install), NAMED, '; ')}"


def evidence(install: ForeignInstall) -> List[str]:
    """A line for each piece."""
    return [_trace(trace) for trace in install.traces]


def way_out(install: ForeignInstall, release: str) -> str:
    """What to do about it, with the names of this host quoted for a shell.

    release: of the locked kernel; empty: a word stands for it.
    """
    row = kind(install.kind)
    names = [shlex.quote(line(trace.name)) for trace in install.traces]
    values: Dict[str, str] = {
        "release": release or "RELEASE",
        "names": first_few(list(dict.fromkeys(names)), 2 * NAMED),
        "commands": "; ".join(row.command.replace("{name}", name) for name in names[: 2 * NAMED]),
    }

    def value(match: Match[str]) -> str:
        return values[match.group(1)]

    # In one pass: a name may have braces.
    text = re.sub(r"\{(release|names|commands)\}", value, row.way_out)
    return f"{row.harmless}. {text}" if install.answer == NOTE and row.harmless else text


def _trace(trace: Trace) -> str:
    return line(f"{trace.name} ({trace.detail})" if trace.detail else trace.name)
