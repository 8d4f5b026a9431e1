"""Split a text into parts by what printed them: a cufile.log, a report of gdscheck, the kernel, a build, and others.

Lines and what they show: data/log_signs.json, and what other tables say about the same kinds of lines.

The environment that all parts of a text show together: versions, devices, and how the host is set up.

What a report of gdscheck, whole or from a libcufile log, shows about causes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import (
    Callable,
    Dict,
    FrozenSet,
    Generic,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Pattern,
    Sequence,
    Tuple,
    TypeVar,
)

from .. import data
from ..facts.kernel import meanings as kernel_meanings
from ..gdscheck import BROKEN, COMPAT, DIRECT, REFUSED, UNKNOWN, Report, document, reader
from ..gdscheck.reader import plain
from ..model.compat import VERSIONS, holds

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
        message = reader.LOG_LINE.match(raw)
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
    if text in reader.SECTIONS or text == reader.END or text.startswith((reader.FAILED, "GPU index ")):
        return True
    if reader.HEADER.match(text) or reader.GPU.match(text) or reader.NO_GPU.match(text) or reader.SETTING.match(text):
        return True
    row = reader.ROW.match(text)
    is_row = row is not None and (row[1] in reader.LABELS or reader.offers(row[2].strip()) is not None)
    return is_row or bool(reader.RDMA.match(text)) or bool(reader.LOGGED_FACT.match(text))


_WORD = re.compile("[a-z]{4,}")


@dataclass(frozen=True)
class Sign:
    """A row of the table; its schema describes the fields."""

    id: str
    part: str
    pattern: str
    sample: str
    means: str
    cause: str = ""
    others: Tuple[str, ...] = ()
    harmless: bool = False
    when: Mapping[str, str] = field(default_factory=dict, hash=False)
    source: str = ""
    certainty: str = ""
    own: bool = False


@dataclass(frozen=True)
class Fact:
    """A row of log_facts.json."""

    subject: str
    pattern: str
    sample: str
    value: str = ""


Row = TypeVar("Row")
#: (place in the table, pattern, row) of each row that may match.
Candidates = Sequence[Tuple[int, Pattern[str], Row]]


class Index(Generic[Row]):
    """Finds the rows whose pattern may match a line, by a word or a text that each line of the pattern has."""

    def __init__(self, rows: Iterable[Row], pattern_of: Callable[[Row], str]) -> None:
        self._by_word: Dict[str, List[Tuple[int, Pattern[str], Row]]] = {}
        self._by_text: List[Tuple[str, Tuple[int, Pattern[str], Row]]] = []
        for place, row in enumerate(rows):
            pattern = pattern_of(row)
            entry = (place, re.compile(pattern), row)
            words = {choice: key_word(choice) for choice in choices(pattern)}
            for choice, word in words.items():
                if word:
                    self._by_word.setdefault(word, []).append(entry)
                else:
                    self._by_text.append((max(literals(choice), key=len, default="").lower(), entry))
        self._words: FrozenSet[str] = frozenset(self._by_word)

    def candidates(self, line: str) -> Candidates[Row]:
        """Patterns that may match, in the order of the table."""
        lower = line.lower()
        by_place = {entry[0]: entry for text, entry in self._by_text if text in lower}
        for word in self._words.intersection(_WORD.findall(lower)):
            by_place.update((entry[0], entry) for entry in self._by_word[word])
        return [by_place[place] for place in sorted(by_place)]


def choices(pattern: str) -> List[str]:
    """The alternatives of a pattern: what ``|`` separates outside of groups and sets."""
    pieces, depth, at, start = [], 0, 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif char == "[":
            at = _end_of_set(pattern, at)
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            pieces.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*pieces, pattern[start:]]


def key_word(pattern: str) -> str:
    """The longest word that every line has which the pattern matches; empty where none is certain.

    Only whole words count: a letter beside a group, a set or the pattern's end may continue in the line.
    """
    words = [
        word for piece in _literals(pattern) for word in re.findall("(?<=[^a-z])[a-z]{4,}(?=[^a-z])", piece.lower())
    ]
    return max(words, key=len, default="")


def literals(pattern: str) -> List[str]:
    """The pieces of text that every match has, for tests that compare them with the programs' own strings."""
    return [piece.strip("\n") for piece in _literals(pattern) if piece.strip()]


def _literals(pattern: str) -> Iterator[str]:
    depth, piece, at = 0, "", 0
    pieces: List[str] = []
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            escaped = pattern[at + 1 : at + 2]
            at += 2
            if escaped.isalnum():
                pieces, piece = [*pieces, piece], ""
            elif depth == 0:
                piece += escaped
            continue
        if char == "[":
            at = _end_of_set(pattern, at)
            pieces, piece = [*pieces, piece], ""
        elif char in "()":
            depth += 1 if char == "(" else -1
            pieces, piece = [*pieces, piece], ""
        elif char == "|" and depth == 0:
            return
        elif char in "?*{":
            pieces, piece = [*pieces, piece[:-1]], ""
            at = pattern.find("}", at) if char == "{" else at
        elif char in "^$":
            piece += "\n"
        elif char in ".+":
            pieces, piece = [*pieces, piece], ""
        elif depth == 0:
            piece += char
        at += 1
    yield from (text for text in [*pieces, piece] if text)


def _end_of_set(pattern: str, start: int) -> int:
    at = start + 1
    at += pattern[at : at + 1] == "^"
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at


@lru_cache(maxsize=1)
def signs() -> Tuple[Sign, ...]:
    """Rows of log_signs.json."""
    return data.rows("log_signs", Sign)


@lru_cache(maxsize=64)
def sign_index(kind: str, faults: bool) -> Index[Sign]:
    """The signs that are looked for in lines of a kind: first those of the kind, then all others, but for a cufile.log.

    faults: for lines that libcufile itself calls a fault; broad signs are for these alone.  The kernel's messages that
    explain HOST knows come after the table's.
    """
    kernel = (
        Sign(
            "kernel." + row.id,
            KERNEL,
            row.pattern,
            row.sample,
            row.what,
            certainty="" if row.fault else "likely",
            harmless=not row.fault and row.cause != "application",
        )
        for row in kernel_meanings()
    )
    fitting = [sign for sign in (*signs(), *kernel) if not sign.own or (faults and sign.part == kind)]
    own = [sign for sign in fitting if sign.part == kind]
    others = [sign for sign in fitting if sign.part != kind]
    return Index(own if kind == CUFILE else [*own, *others], lambda sign: sign.pattern)


@lru_cache(maxsize=1)
def sign_facts() -> Index[Fact]:
    """What shows the environment."""
    return Index(data.rows("log_facts", Fact), lambda fact: fact.pattern)


#: What may follow a version in its longer form.
_CONTINUES = ("", ".", "-", "+", "~")
#: Most values kept of one subject, e.g. GPU models.
VALUES = 8


@dataclass(frozen=True)
class Setting:
    """Subject → value → the first line that shows it.  Several values of one subject are all kept."""

    shown: Mapping[str, Mapping[str, Line]]

    def values(self, subject: str) -> Tuple[str, ...]:
        """What the text shows of a subject, in its order."""
        return tuple(self.shown.get(subject, ()))

    def value(self, subject: str) -> Optional[str]:
        """The one value of a subject; None where the text shows none, or several.

        6.17.0 and 6.17.0-5-generic are one: the longer one has more of it.
        """
        values = self.values(subject)
        longest = max(values, key=len, default="")
        same = all(longest.startswith(value) and longest[len(value) :][:1] in _CONTINUES for value in values)
        return longest if values and same else None

    def meets(self, conditions: Mapping[str, str]) -> Optional[bool]:
        """Whether all conditions hold; None: the text doesn't show one of the subjects."""
        answers = [self._meets(subject, text) for subject, text in conditions.items()]
        return False if False in answers else None if None in answers else True

    def _meets(self, subject: str, text: str) -> Optional[bool]:
        values = self.values(subject)
        if not values:
            return None
        return any(holds(subject, (text,), value) for value in values if value[:1].isdigit() or subject not in VERSIONS)


def setting(parts: Iterable[Part]) -> Setting:
    """Draw the setting from all parts."""
    shown: Dict[str, Dict[str, Line]] = {}
    candidates: Dict[str, Candidates[Fact]] = {}
    for line in (line for part in parts for line in part.lines):
        _look(line, candidates, shown)
    return Setting(shown)


def _look(line: Line, cache: Dict[str, Candidates[Fact]], shown: Dict[str, Dict[str, Line]]) -> None:
    if line.key not in cache:
        # What doesn't fit one line doesn't fit others that differ by numbers alone.
        cache[line.key] = [entry for entry in sign_facts().candidates(line.text) if entry[1].search(line.text)]
    for _, pattern, fact in cache[line.key]:
        if len(shown.get(fact.subject, ())) < VALUES:
            match = pattern.search(line.text)
            if match:
                shown.setdefault(fact.subject, {}).setdefault(fact.value or match["v"].strip(), line)


#: Levels of a log's lines that may be rows.
_ROWS = ("INFO", "WARN", "NOTICE")


class Shown(NamedTuple):
    """A report in a file, and where it is."""

    report: Report
    #: of its file
    lines: Sequence[Line]

    def line(self, beginning: str) -> Line:
        """The line that begins so, or the first one."""
        return next((line for line in self.lines if line.text.startswith(beginning)), self.lines[0])


class Says(NamedTuple):
    """What a report says about a cause: the cause's id, how the line begins that shows it, and what it means."""

    cause: str
    line: str
    means: str


def reports(parts: Sequence[Part]) -> List[Shown]:
    """Every report in the parts, file by file, in order."""
    all_reports: List[Shown] = []
    printed: Dict[str, List[Line]] = {}
    logged: Dict[str, List[Line]] = {}
    for part in parts:
        table = {GDSCHECK: printed, CUFILE: logged}.get(part.kind)
        if table is not None:
            table.setdefault(part.file, []).extend(part.lines)
    for lines in printed.values():
        recording = reader.read_recording("\n".join([*(line.text for line in lines), ""]).encode("utf-8", "replace"))
        all_reports += [Shown(report, lines) for report in recording.runs]
    for lines in logged.values():
        # An error that a process repeats says nothing new about its report.
        first = {(line.pid, line.key): line for line in reversed(lines) if line.level == "ERROR"}
        messages = [
            (line.pid, line.level, line.text)
            for line in lines
            if line.level in _ROWS or (line.level == "ERROR" and first[line.pid, line.key] is line)
        ]
        telling = (report for report in reader.log_runs(messages) if report.storage or report.verdict == REFUSED)
        all_reports += [Shown(report, lines) for report in telling]
    return all_reports


def causes_of(report: Report) -> Iterator[Says]:
    """Everything in a report that rules a direct path out."""
    if report.config.get("properties.force_compat_mode") == "true":
        yield Says("cufile.force-compat", "properties.force_compat_mode", "compat mode is forced")
        return
    for contradiction in report.contradictions:
        proprietary = "Nvidia Driver Info Status" if "proprietary" in contradiction else ""
        cause = "nvidia-fs.proprietary-driver" if proprietary else "nvidia-fs.below-minimum"
        yield Says(cause, proprietary or "nvidia_fs version", contradiction)
    whole = "storage" in report.sections
    through = [row for label, row in report.storage.items() if label not in (reader.P2PDMA_ROW, reader.RDMA_ROW)]
    offered = any((reader.offers(row.value) or (False,))[0] for row in through)
    p2pdma = any(value == "true" for key, value in report.config.items() if key.endswith("use_pci_p2pdma"))
    if report.nvidia_fs_minimum and not report.nvidia_fs and whole and not p2pdma:
        yield Says("nvidia-fs.not-loaded", "libcufile version", "the report names no loaded nvidia-fs")
    elif report.nvidia_fs and whole and "NVMe" in report.storage and not offered:
        yield Says("nvme.no-hooks", "NVMe ", "nvidia-fs is loaded, and no storage driver is registered with it")
    for gpu in report.gpus:
        if not gpu.gds and "Model Not Supported" in gpu.reason:
            yield Says("gpu.class", f"GPU {gpu.index}", f"GPU {gpu.index} {gpu.name}: {gpu.reason}")
            break


def path_of(all_reports: Sequence[Report]) -> str:
    """What the reports say together: the worst of their verdicts; unknown where one can't be judged."""
    verdicts = {report.verdict for report in all_reports}
    if not verdicts or UNKNOWN in verdicts:
        return UNKNOWN
    for verdict in (REFUSED, BROKEN):
        if verdict in verdicts:
            return BROKEN
    return COMPAT if COMPAT in verdicts else DIRECT if verdicts == {DIRECT} else UNKNOWN


def remarks(report: Report) -> List[str]:
    """The report's verdict in words, and its warnings."""
    return [f"gdscheck's rows say {report.verdict}: {reason}" for reason in document.reasons(report)] + [
        *document.warnings(report)
    ]
