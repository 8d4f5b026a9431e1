"""Split a text into parts by what printed them: a cufile.log, a report of gdscheck, the kernel, a build, and others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..gdscheck import grammar
from ..gdscheck.pasted import plain

CUFILE, GDSCHECK, KERNEL, BUILD, MODPROBE = "cufile", "gdscheck", "kernel", "build", "modprobe"
PACKAGES, LSPCI, SMI, STATS, PROGRAM, OTHER = "packages", "lspci", "smi", "stats", "program", "other"
KINDS = (CUFILE, GDSCHECK, KERNEL, BUILD, MODPROBE, PACKAGES, LSPCI, SMI, STATS, PROGRAM, OTHER)
#: Most characters looked at of one line.
LINE_LIMIT = 2000

#: A line with any time before it, or the journal's prefix: what the kernel prints.
_STAMP = (
    r"(?:<\d+>)?(?:\[[ \d]*\d\.\d{3,}\]|\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]+ \d{4}\])\s"
    r"|(?:[A-Z][a-z]{2} +\d+ [\d:]+|\d{4}-\d\d-\d\dT\S+) \S+ kernel: (?:\[ *\d+\.\d+\] )?"
)
_KERNEL_PREFIX = re.compile(rf"\s*(?:{_STAMP})")
_FENCE = re.compile(r"\s*(?:```|~~~|</?(?:details|summary|pre|code)\b)")
#: A libcufile message whose beginning was cut off.
_CUT_LOG = re.compile(r"\s*(?:\[?pid=\d+ tid=\d+\] +)?(?P<level>ERROR|WARN|NOTICE|INFO|DEBUG|TRACE) +(?:cufio[\w-]*|0|[\w-]+):\d+ +(?P<text>.*)$")
#: What a line begins with, or has in it, by kind; the first that fits counts.  The digits of a line are zeros here.
_MARKS = (
    (
        BUILD,
        r"DKMS make\.log|make(?:\[0+\])?: |\S+\.[chS]:0+:|\s*(?:CC|LD|AR|MODPOST)(?: \[M\])? |ERROR: modpost|In file included from"
        r"|Building module|Building initial module|Cleaning build area|Error! (?:Bad return|Your kernel headers|echo)|cc0?: |gcc: |g\+\+: "
        r"|\s*from /\S+\.h:|WARNING: modpost|Consult /var/lib/dkms|\S*conftest\.sh",
    ),
    (MODPROBE, r"(?:sudo )?(?:modprobe|insmod|rmmod|depmod|modinfo): "),
    (
        PACKAGES,
        r"[EWN]: |dpkg: |dpkg-\w+: |Errors were encountered while processing|The following packages have unmet|\s*Depends: "
        r"|(?:Setting up|Unpacking|Preparing to unpack|Selecting previously|Processing triggers for|Removing|Get:0+|Hit:0+) ?"
        r"|Reading package lists|Building dependency tree|Error: (?:Problem|Unable to find a match|Transaction|Failed to|GPG)"
        r"|\s*Problem(?: 0+)?: |\s*- (?:package|nothing provides|conflicting requests|cannot install|problem with)|Last metadata expiration|rpm: |warning: %"
        r"|No match for argument|\s*(?:Installing|Upgrading|Running scriptlet)\s*: ",
    ),
    (LSPCI, r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.0 [A-Z]|\s+(?:Capabilities: |ACSC|LnkC|LnkSta|Kernel (?:driver|modules)|Subsystem: |Region 0: |DevC|DevSta)"),
    (SMI, r"=+NVSMI LOG|\| NVIDIA-SMI |(?:\s*)(?:Driver Version|CUDA Version|Product Name|Product Architecture|GPU UUID|Attached GPUs)\s+: |NVIDIA-SMI has failed"),
    (STATS, r"GDS Version: |NVFS statistics\(|NVFS (?:Driver|stat)|(?:Reads|Writes|Active Shadow-Buffer|Mmap|Bar0-map|Error|Ops|Sparse Reads|Batches)\s*: (?:n|err|ops|cpu|Read|issued|[A-Z])"),
    (
        PROGRAM,
        r"Traceback \(most recent|\s*File \"[^\"]+\", line 0|\w*(?:Error|Exception): |terminate called|\s*what\(\): |\S+:0+:0+ \[0+\] NCCL |.*NCCL (?:INFO|WARN) "
        r"|Assertion failure, file index|\[\S+ \S+\] .*NIXL|.*\b(?:kvikio|KvikIO|DALI|NIXL|nixl|gdsio|LMCache|cudf|rapids)\b|.*\bcuFile\w*\b|.*\berr(?:or)?[ =:]+-?[56]000\b|.*\bibv_reg_mr\b",
    ),
    (KERNEL, r"NVRM: |nvidia[-_](?:fs|peermem|uvm|drm)\b.*: |nvidia: |nv_peer_mem|nvfs|Linux version |x00/PAT: |DMAR: |AMD-Vi: |BUG: |Call Trace:|mlx0_core |nvme nvme0|\S+: (?:Unknown symbol|disagrees about version|version magic)"),
)  # fmt: skip
_MARK = tuple((kind, re.compile(pattern)) for kind, pattern in _MARKS)
#: Digits as zeros: lines that differ by numbers alone are of one kind.
ZEROS = {ord(digit): "0" for digit in "123456789"}
#: These go on until something else begins; a line after another one may be prose.
_GOES_ON = frozenset({GDSCHECK, BUILD, LSPCI, SMI, STATS, PACKAGES, PROGRAM})


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

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True)
class Part:
    """Neighbouring lines of one kind."""

    kind: str
    file: str
    lines: Tuple[Line, ...]


def split(data: bytes, file: str) -> List[Part]:
    """The parts of a file's content, in order; every line that isn't blank is in one.  Never raises."""
    parts: List[Tuple[str, List[Line]]] = []
    for line in _lines(plain(data), file):
        if not parts or parts[-1][0] != line.kind:
            parts.append((line.kind, []))
        parts[-1][1].append(line)
    return [Part(kind, file, tuple(lines)) for kind, lines in parts]


def _lines(text: str, file: str) -> Iterator[Line]:
    kinds: Dict[str, Optional[str]] = {}
    current = OTHER
    for number, (raw, zeros) in enumerate(zip(text.split("\n"), text.translate(ZEROS).split("\n")), 1):
        if len(raw) > LINE_LIMIT:
            raw, zeros = raw[:LINE_LIMIT], zeros[:LINE_LIMIT]
        message = grammar.LOG.match(raw)
        if message:
            current = CUFILE
            yield Line(file, number, message["text"].strip(), CUFILE, message["level"], message["pid"])
            continue
        if not raw.strip():
            continue
        if zeros not in kinds:
            kinds[zeros] = _kind(raw, zeros)
        kind = kinds[zeros]
        if kind == "":
            current = OTHER
            continue
        yield _line(file, number, raw, kind or (current if current in _GOES_ON else OTHER))
        current = kind or (current if current in _GOES_ON else OTHER)


def _line(file: str, number: int, raw: str, kind: str) -> Line:
    if kind == KERNEL:
        return Line(file, number, _KERNEL_PREFIX.sub("", raw, count=1).strip(), KERNEL)
    cut = _CUT_LOG.match(raw) if kind == CUFILE else None
    if cut:
        return Line(file, number, cut["text"].strip(), CUFILE, cut["level"])
    return Line(file, number, raw.strip(), kind)


def _kind(raw: str, zeros: str) -> Optional[str]:
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
    return next((kind for kind, mark in _MARK if mark.match(zeros)), None)


def _is_report(text: str) -> bool:
    """Whether this line is one of a report of gdscheck."""
    if text in grammar.SECTIONS or text == grammar.END or text.startswith((grammar.FAILED, "GPU index ")):
        return True
    if grammar.HEADER.match(text) or grammar.GPU.match(text) or grammar.NO_GPU.match(text) or grammar.SETTING.match(text):
        return True
    row = grammar.ROW.match(text)
    known = row is not None and (row[1] in grammar.LABELS or grammar.offers(row[2].strip()) is not None)
    return known or bool(grammar.RDMA.match(text)) or bool(grammar.LOGGED_FACT.match(text))
