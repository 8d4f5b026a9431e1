"""An explanation for a terminal: the verdict of each mount first, then its causes; narrow, without colour."""

from __future__ import annotations

import textwrap
from typing import Iterator, List, Sequence, Set, Tuple

from ..facts import Unknown
from ..io.printable import line
from . import blocks
from .cause import BROKEN, COMPAT, NVIDIA_FS, P2PDMA, Cause, Path
from .explanation import Explained, Explanation
from .kinds import DMABUF, PEERMEM, Kind

WIDTH = 88
MEANS = {
    NVIDIA_FS: "straight between disk and GPU, through nvidia-fs",
    P2PDMA: "straight between disk and GPU, through PCI P2PDMA",
    COMPAT: "through CPU memory",
    BROKEN: "cuFile calls fail",
    PEERMEM: "straight between adapter and GPU, through nvidia-peermem",
    DMABUF: "straight between adapter and GPU, through DMA-BUF",
}


def render(explanation: Explanation) -> str:
    """Lines of at most WIDTH letters, but for words that are longer."""
    runs = ", ".join("{} {}".format(*item) for item in explanation.runs)
    lines = _wrapped("{}: {}".format(explanation.host, runs or "nothing is known"), "")
    said: Set[Tuple[str, str]] = set()
    for item in explanation.mounts:
        lines += ["", *_mount(item, said)]
    if not explanation.mounts:
        lines += ["", "no mount that may hold data for a GPU is known"]
    if explanation.kinds:
        lines += ["", "Kinds of storage (as of a mount that is in order itself)"]
        lines += [line for kind in explanation.kinds for line in _kind(kind, explanation)]
    if explanation.unseen:
        lines += ["", "What could not be seen"]
        lines += [line for reason in explanation.unseen for line in _wrapped(reason, "  - ")]
    return "\n".join(lines)


def _mount(item: Explained, said: Set[Tuple[str, str]]) -> List[str]:
    """``said``: causes that stand in full further up; those of this mount are added."""
    lines = _wrapped(f"{item.mount.mount_point}  {_verdict(item.path)}", "")
    lines += _wrapped(blocks.names(item.mount), "  ")
    if item.asked:
        lines += _wrapped(f"{item.asked} lies on this mount", "  ")
    lines += _causes(item.path.causes, "", said)
    lines += _causes(item.path.suspects, "Not proven because of this:", said)
    lines += _causes(item.path.notes, "Good to know:", said)
    lines += [line for words in _proofs(item.path) for line in _wrapped(words, "  ")]
    return lines


def _verdict(path: Path) -> str:
    if isinstance(path.path, Unknown):
        return f"NOT PROVEN: {path.path.reason}"
    return f"{path.path.upper()}: {MEANS[path.path]}"


def _proofs(path: Path) -> List[str]:
    """What I/O showed, with each GPU; that nothing was tried where that is worth saying."""
    lines = []
    for item in path.proofs:
        if isinstance(item.path, Unknown):
            lines.append("not proven with GPU {}: {}".format(item.gpu or "(none)", item.path.reason))
        else:
            lines.append("proven with GPU {}: {}: {}".format(item.gpu or "(none)", item.path.upper(), item.how))
    return [*lines, path.surprise] if lines else [_proof(path)]


def _proof(path: Path) -> str:
    if path.path in (COMPAT, BROKEN) and path.gpu is not False:
        return ""
    if isinstance(path.gpu, Unknown):
        return "(whether there is a GPU is not known)"
    if not path.gpu:
        return "(this host has no GPU: nothing can be proven)"
    return "" if isinstance(path.path, Unknown) else "(not proven: no I/O was tried)"


def _causes(causes: Sequence[Cause], heading: str, said: Set[Tuple[str, str]]) -> List[str]:
    if not causes:
        return []
    lines = ["  " + heading] if heading else []
    for number, cause in enumerate(causes, 1):
        mark = f"{number:>3}. "
        known = (cause.id, cause.what) in said
        lines += _wrapped("{} [{}]{}".format(cause.what, cause.id, ", see above" if known else ""), mark)
        if known:
            continue
        said.add((cause.id, cause.what))
        for label, words in (("seen", cause.evidence), ("do", (cause.fix,)), ("read", (cause.reference,))):
            for text in words:
                lines += _wrapped(text, f"     {label:<5}")
                label = ""
    return lines


def _kind(kind: Kind, explanation: Explanation) -> Iterator[str]:
    shown = "not proven" if isinstance(kind.path.path, Unknown) else kind.path.path
    if kind.here is not True:
        shown = "not known whether it is here" if isinstance(kind.here, Unknown) else "none here"
    said = f"; libcufile says: {kind.row}" if kind.row else ""
    yield f"  {kind.label:<22}{line(shown)}{line(said)}"
    known = {cause.id for item in explanation.mounts for cause in item.path.causes}
    # What a mount above says in full is not said again, and a kind that nothing uses needs no explanation.
    if kind.here is True:
        for cause in kind.path.causes:
            seen = cause.id in known
            yield from _wrapped(cause.what + (" (see above)" if seen else ": " + cause.fix), "      - ")


def _wrapped(words: str, first: str) -> List[str]:
    if not words:
        return []
    inner = " " * len(first)
    return textwrap.wrap(
        line(words),
        WIDTH,
        initial_indent=first,
        subsequent_indent=inner,
        break_long_words=False,
        break_on_hyphens=False,
    )
