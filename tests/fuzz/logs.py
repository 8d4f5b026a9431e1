"""Pasted text of any mixture: pieces of real logs, cut, among each other, in the marks of Markdown, damaged."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from random import Random

from gdsdeploy.host.logs.judge import DIRECT, POSSIBLE, answer_to, as_document, render
from gdsdeploy.host.logs.parts import signs
from tests.fuzz.mutation import damaged

EVIDENCE = Path(__file__).parents[1] / "evidence"
FILES = (
    "gdscheck*/*.txt",
    "gdscheck-live/*.log",
    "h200/*.log",
    "h200/*.txt",
    "gpu/*/*.log",
    "kmod/*.log",
    "kmod/*.txt",
)
#: Most lines of a piece that is cut.
PIECE = 150
#: What no text may hold that is called direct: found by other means than the answer is.
CONTRADICTIONS = re.compile(
    r"\] ERROR +\S+:\d+ (?!unable to load, +liburcu|Error Loading numa)"
    r"|(?<!\w)NVRM: Xid \(PCI:0000:3b:00\): (?:48|62|74|79|119)\b"
    r"|Platform verification (?:error|failed)|cuFile initialization failed|driver is not loaded"
    r"|NVMe Driver not registered with nvidia-fs|Unknown symbol nvidia_p2p|modprobe: ERROR|\.c:\d+:\d+: error: "
)
#: A row that offers a direct path.
CLAIM = re.compile(r"(?m)^\W*[A-Z][A-Za-z0-9 ]+ *: +\W*(?:Supported\b|(?:\w+, )*(?:nvfs|p2pdma|dmabuf|c2c)\b)")


@functools.cache
def seeds() -> list[bytes]:
    """Every real log and recording, and what the tables have as samples."""
    real = [path.read_bytes() for pattern in FILES for path in sorted(EVIDENCE.glob(pattern))]
    log = " 20-11-2026 14:07:56:621 [pid={} tid=506] ERROR  cufio:339 {}"
    samples = [
        log.format(place % 5, sign.sample) if sign.part == "cufile" else sign.sample
        for place, sign in enumerate(signs())
    ]
    return [*real, "\n".join(samples).encode()]


def mixture(data: bytes, random: Random) -> bytes:
    """One to four pieces, of which the first is of ``data``."""
    pieces = [_piece(one, random) for one in (data, *random.choices(seeds(), k=random.randint(0, 3)))]
    random.shuffle(pieces)
    if random.random() < 0.3:
        lines = [(place + random.random() * 30, line) for piece in pieces for place, line in enumerate(piece)]
        pieces = [[line for _, line in sorted(lines)]]
    end = random.choice((b"\n", b"\n", b"\r\n"))
    whole = end.join(end.join(_marked(piece, random)) for piece in pieces) + random.choice((b"\n", b""))
    if random.random() < 0.1:
        whole = whole.decode("utf-8", "replace").encode(random.choice(("utf-16", "utf-16-le", "utf-16-be")))
    return damaged(whole, random) if random.random() < 0.3 else whole


def _piece(data: bytes, random: Random) -> list[bytes]:
    lines = data.split(b"\n")
    if len(lines) <= PIECE and random.random() < 0.6:
        return lines
    begin = random.randrange(len(lines))
    return lines[begin : begin + random.randint(1, PIECE)]


def _marked(lines: list[bytes], random: Random) -> list[bytes]:
    way = random.randrange(7)
    if way == 0:
        return [b"```", *lines, b"```"]
    if way == 1:
        return [b"> " + line for line in lines]
    if way == 2:
        return [b"**" + line.strip() + b"**" if line.strip() else line for line in lines]
    if way == 3:
        host = random.choice((b"gpu7", b"gpu8"))
        return [b"Nov 26 12:00:00 " + host + b" " + random.choice((b"kernel: ", b"dkms[7]: ")) + line for line in lines]
    return [b"So this is what it said:", *lines] if way == 4 else lines


def read(data: bytes) -> None:
    """Answer in every form; raises AssertionError for a path that the whole text contradicts."""
    answer = answer_to([("paste", data)])
    json.dumps(as_document(answer))
    shown = render(answer)
    assert shown
    if answer.path == DIRECT:
        # Without zeros, UTF-16 of these words is the words.
        whole = data.replace(b"\0", b"").decode("utf-8", "replace")
        contradiction = CONTRADICTIONS.search(whole)
        assert contradiction is None, f"direct, in spite of: {contradiction}"
        assert CLAIM.search(whole), "direct, and no row offers it"
        assert all(cause.certainty == POSSIBLE and cause.id.startswith("compat.") for cause in answer.causes)
