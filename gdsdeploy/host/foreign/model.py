"""Kinds of foreign installs, and what was found of one.

What was found, in words.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Dict, List, Mapping, Match, Tuple

from .. import data
from ..io.wording import first_few, line

#: Answers: provision refuses the host; it takes over; the lock adopts it; it is only good to know.
REFUSE, TAKE_OVER, ADOPT, NOTE = "refuse", "take-over", "adopt", "note"
#: The strongest first.
ANSWERS = (REFUSE, TAKE_OVER, ADOPT, NOTE)


@dataclass(frozen=True)
class Kind:
    """A row of the table; its schema describes the fields."""

    id: str
    title: str
    recognized: str
    answer: str
    way_out: str
    source: str
    #: when provision refuses; otherwise what is found is a note
    refused_when: str = ""
    #: why such a note is harmless
    harmless: str = ""
    #: for each piece that was found; ``{name}`` is the piece
    command: str = ""


@dataclass(frozen=True)
class Trace:
    """One piece of evidence: a path, a package or a line, and a remark about it."""

    name: str
    detail: str = ""


@dataclass(frozen=True)
class ForeignInstall:
    """What is on a host of one kind.  ``breaks``: a provision would not lead to the locked stack."""

    kind: str
    traces: Tuple[Trace, ...]
    breaks: bool = False

    @property
    def answer(self) -> str:
        """One of ANSWERS."""
        answer = kind(self.kind).answer
        return answer if answer != REFUSE or self.breaks else NOTE

    def to_json(self) -> Dict[str, Any]:
        """``{"kind", "answer", "breaks", "traces": [{"name", "detail"}]}``."""
        traces = [asdict(trace) for trace in self.traces]
        return {"kind": self.kind, "answer": self.answer, "breaks": self.breaks, "traces": traces}


def install_from(value: Any) -> ForeignInstall:
    """The inverse of :meth:`ForeignInstall.to_json`; raises ValueError for anything else."""
    traces = value.get("traces") if isinstance(value, dict) else None
    if not isinstance(traces, list) or not isinstance(value.get("breaks"), bool):
        raise ValueError("foreign: not a finding")
    if not isinstance(value.get("kind"), str) or value["kind"] not in kinds():
        raise ValueError("foreign: no kind of this version")
    pieces: List[Trace] = []
    for trace in traces:
        texts = [trace.get(key) for key in ("name", "detail")] if isinstance(trace, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("foreign: not a piece of evidence")
        pieces.append(Trace(*(str(text) for text in texts)))
    return ForeignInstall(str(value["kind"]), tuple(pieces), value["breaks"])


@dataclass(frozen=True)
class Locked:
    """What the lock has for the host: the kernel's release, package → version, the addresses of its repositories.

    No address: they aren't known.
    """

    kernel_release: str
    packages: Mapping[str, str] = field(default_factory=dict)
    repositories: Tuple[str, ...] = ()


@lru_cache(maxsize=1)
def kinds() -> Mapping[str, Kind]:
    """Id → kind, in the order of the table."""
    return {row.id: row for row in data.rows("foreign", Kind)}


def kind(ident: str) -> Kind:
    """The kind with this id; raises KeyError."""
    return kinds()[ident]


#: Pieces that a sentence names; the rest is counted.
NAMED = 3
#: Answer → what provision does.
ANSWER_WORDS = {
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
