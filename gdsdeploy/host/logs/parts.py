"""Split a text into parts by what printed them: a cufile.log, a report of gdscheck, the kernel, a build, and others.

Lines and what they show: data/log_signs.json, and what other tables say about the same kinds of lines.

The environment that all parts of a text show together: versions, devices, and how the host is set up.

What a report of gdscheck, whole or from a libcufile log, shows about causes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
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
from ..gdscheck import document, reader
from ..gdscheck.reader import REFUSED, Report, plain
from ..libcufile import p2pdma
from ..model.compat import VERSIONS, holds
from ..subjects.kernel import meanings as kernel_meanings

CUFILE, GDSCHECK, KERNEL, BUILD, MODPROBE = "cufile", "gdscheck", "kernel", "build", "modprobe"
PACKAGES, LSPCI, SMI, STATS, PROGRAM, OTHER = "packages", "lspci", "smi", "stats", "program", "other"
#: Journals of services, systemctl's status of them, and the logs of the GPU operator's pods.
SERVICE = "service"
KINDS = (CUFILE, GDSCHECK, KERNEL, BUILD, MODPROBE, PACKAGES, LSPCI, SMI, STATS, PROGRAM, SERVICE, OTHER)
#: Most characters looked at of one line.
LINE_LIMIT = 2000

#: What the kernel's lines begin with: a time of dmesg, or the journal's prefix; before it, the file that grep names.
#: Seconds of ten digits are UCX's, since 1970.
_STAMP = (
    r"(?:<\d+>)?\[(?:[ \d]{0,8}\d\.\d{3,}| *\+\d+\.\d+|[A-Z][a-z]{2} ?\d+ [\d:]+"
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]+ \d{4})\]\s"
    r"|(?:[A-Z][a-z]{2} +\d+ [\d:]+|\d{4}-\d\d-\d\d[T ]\S+) \S+ kernel: (?:\[ *\d+\.\d+\] )?"
    r"|\d{4}-\d\d-\d\dT[\d:]+,\d+\S*\s"
)
_KERNEL_PREFIX = re.compile(rf"\s*(?:[\w./-]+:(?:\d+:)?)?(?:{_STAMP})")
#: The first line of a unit in systemctl's status.
_UNIT = re.compile(r"\s*[●×○*] (?P<unit>[\w@.-]+\.service)\b")
#: The host in the prefix of a journal or of syslog, and in uname's line, with which nvidia-bug-report.sh begins.
_HOST = re.compile(
    r"\s*(?:[\w./-]+:(?:\d+:)?)?(?:[A-Z][a-z]{2} +\d+ [\d:]{8}|\d{4}-\d\d-\d\dT[\d:]{8}\S{0,16})"
    r" (?P<journal>(?![A-Z]+ )[A-Za-z0-9][\w.-]{0,63}) [\w@./-]{1,80}(?:\[\d+\])?: "
    r"|\s*(?:uname: )?Linux (?P<uname>[A-Za-z0-9][\w.-]{0,63}) \d+\.\d+\S* #"
)
#: Names that no host keeps, or that a reporter put in place of one.
_NO_HOST = frozenset({"localhost", "host", "hostname", "version"})
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
    #: in systemctl's status, the unit that the line is about
    unit: str = ""
    #: that wrote the line, where its prefix names it, without its domain
    host: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"


class Part(NamedTuple):
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
    current, unit = OTHER, ""
    for number, whole in enumerate(text.split("\n"), 1):
        if not whole or whole.isspace():
            continue
        raw = whole[:LINE_LIMIT]
        key = raw.translate(_HEXADECIMAL)
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
        kind, named = kinds[key], _HOST.match(raw)
        if kind is None and named and named["journal"]:
            # What a unit prints, such as gdscheck at boot.
            raw, key = raw[named.end() :], key[named.end() :]
            kind = kinds[key] = kinds[key] if key in kinds else _kind(raw)
        if kind == "":
            current = OTHER
            continue
        current = kind or (current if current in _GOES_ON else OTHER)
        header = _UNIT.match(raw) if current == SERVICE else None
        unit = "" if current != SERVICE else header["unit"] if header else unit
        host = (named["journal"] or named["uname"]).split(".")[0].lower() if named else ""
        yield _line(file, number, raw, current, key)._replace(unit=unit, host=same.setdefault(host, host))


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


#: What lines of a report of gdscheck begin with, and what its other rows look like.
_OF_REPORTS = (reader.FAILED, "GPU index ", "cuFile initialization failed")
_ROWS_OF_REPORTS = (reader.HEADER, reader.GPU, reader.NO_GPU, reader.SETTING, reader.RDMA, reader.LOGGED_FACT)


def _is_report(text: str) -> bool:
    """Whether this line is one of a report of gdscheck."""
    if text in reader.SECTIONS or text == reader.END or text.startswith(_OF_REPORTS):
        return True
    row = reader.ROW.match(text)
    is_row = row is not None and (row[1] in reader.LABELS or reader.offers(row[2].strip()) is not None)
    return is_row or any(pattern.match(text) for pattern in _ROWS_OF_REPORTS)


def hosts(parts: Iterable[Part]) -> Tuple[str, ...]:
    """Names of the hosts whose journals or ``uname`` the parts have, in the order of their first lines."""
    names = dict.fromkeys(line.host for part in parts for line in part.lines if line.host)
    return tuple(name for name in names if name not in _NO_HOST)


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


class Fact(NamedTuple):
    """A row of log_facts.json."""

    subject: str
    pattern: str
    sample: str
    value: str = ""


Row = TypeVar("Row")
#: (pattern, row) of each row that may match, in the order of the table.
Candidates = Sequence[Tuple[Pattern[str], Row]]


class Index(Generic[Row]):
    """Finds the rows whose pattern may match a line, by a text that each line of one of its alternatives has."""

    def __init__(self, rows: Iterable[Row], pattern_of: Callable[[Row], str]) -> None:
        patterns = [(pattern_of(row), row) for row in rows]
        self._rows = [(re.compile(pattern), row) for pattern, row in patterns]
        texts = [(text, place) for place, (pattern, _) in enumerate(patterns) for text in literals(pattern)]
        self._texts = [(text.translate(_HEXADECIMAL), place) for text, place in texts]

    def candidates(self, line: str) -> Candidates[Row]:
        """The same for all lines that differ by numbers alone, so that callers may keep it by a line's key."""
        lower = line.lower().translate(_HEXADECIMAL)
        return [self._rows[place] for place in sorted({place for text, place in self._texts if text in lower})]


#: A piece of a pattern: an escaped character, a set, a number of repetitions, or one character.
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{[^}]*\}|.", re.DOTALL)
#: Of these, one that stands for a character of the line.
_CHARACTER = re.compile(r"\\[^A-Za-z0-9]|[^.+^$()\[]")


def literals(pattern: str) -> FrozenSet[str]:
    """For each alternative of a pattern the longest text that all its matches have, in lower case; it may be empty."""
    alternatives, depth = [[""]], 0
    for piece in _PIECE.findall(pattern):
        texts = alternatives[-1]
        if piece == "|" and depth == 0:
            alternatives.append([""])
        elif piece[0] in "?*{":
            # What is before it may be missing.
            texts[-1:] = [texts[-1][:-1], ""]
        elif depth == 0 and _CHARACTER.fullmatch(piece):
            texts[-1] += piece[-1].lower()
        else:
            depth += {"(": 1, ")": -1}.get(piece, 0)
            texts.append("")
    return frozenset(max(texts, key=len) for texts in alternatives)


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
_CONTINUES = (".", "-", "+", "~")
#: A condition: the subject has another value than this one has.
_OTHER = re.compile("!=([a-z_]+)")
#: Most values kept of one subject, e.g. GPU models.
VALUES = 8


def distinct(values: Iterable[str]) -> List[str]:
    """The values that no other one has more of, in their order: 6.17.0 goes where 6.17.0-5-generic is."""
    kept = list(dict.fromkeys(values))
    return [
        value
        for value in kept
        if not any(other != value and other.startswith(value) and other[len(value)] in _CONTINUES for other in kept)
    ]


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
        values = distinct(self.values(subject))
        return values[0] if len(values) == 1 else None

    @cached_property
    def single(self) -> Dict[str, str]:
        """Subject → its one value; empty where the text shows several."""
        return {subject: self.value(subject) or "" for subject in self.shown}

    def meets(self, conditions: Mapping[str, str]) -> Optional[bool]:
        """Whether all conditions hold; None: the text doesn't show one of the subjects."""
        answers = [self._meets(subject, text) for subject, text in conditions.items()]
        return False if False in answers else None if None in answers else True

    def against(self, conditions: Mapping[str, str]) -> Optional[Line]:
        """The line that shows that one of the conditions holds, for all values of its subject; None: no line does.

        ``any`` holds for whatever the text shows of a subject.
        """
        for subject, text in conditions.items():
            values = self.values(subject)
            if values and (text == "any" or all(_holds(subject, text, value) for value in values)):
                return self.shown[subject][values[-1]]
        return None

    def _meets(self, subject: str, text: str) -> Optional[bool]:
        other = _OTHER.fullmatch(text)
        if other:
            pair = self.value(subject), self.value(other[1])
            return None not in pair and len(distinct(filter(None, pair))) > 1
        values = self.values(subject)
        if not values:
            return None
        answers = {_holds(subject, text, value) for value in values}
        # Of several devices or versions, the line may be about any.
        return answers.pop() if len(answers) == 1 else None


def _holds(subject: str, text: str, value: str) -> bool:
    # What stands where a version belongs may be none.
    return (value[:1].isdigit() or subject not in VERSIONS) and holds(subject, (text,), value) is True


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
        cache[line.key] = [entry for entry in sign_facts().candidates(line.text) if entry[0].search(line.text)]
    for pattern, fact in cache[line.key]:
        if len(shown.get(fact.subject, ())) < VALUES:
            match = pattern.search(line.text)
            name = match and (fact.value or match.lastgroup)
            if match and name:
                value = match["v"].strip() if name == "v" else name
                shown.setdefault(fact.subject, {}).setdefault(value, line)


#: Levels of a log's lines that may be rows.
_ROWS = ("INFO", "WARN", "NOTICE")


#: What has keys of P2PDMA.
_P2PDMA_SECTIONS = ("properties.", "block.", "fs.")


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
    takes_p2pdma = any(value == "true" for key, value in report.config.items() if key.endswith("use_pci_p2pdma"))
    if report.nvidia_fs_minimum and not report.nvidia_fs and whole and not takes_p2pdma:
        yield Says("nvidia-fs.not-loaded", "libcufile version", "the report names no loaded nvidia-fs")
    elif report.nvidia_fs and whole and "NVMe" in report.storage and not offered:
        yield Says("nvme.no-hooks", "NVMe ", "nvidia-fs is loaded, and no storage driver is registered with it")
    for gpu in report.gpus:
        if not gpu.gds and "Model Not Supported" in gpu.reason:
            yield Says("gpu.class", f"GPU {gpu.index}", f"GPU {gpu.index} {gpu.name}: {gpu.reason}")
            break


def half_set(parts: Iterable[Part]) -> Iterator[Tuple[Line, str]]:
    """Lines of P2PDMA keys that do nothing because their other half is off, and what each means.

    From libcufile 1.16 on gdscheck prints a key for each storage after the mode's; of a file's reports the last counts.
    """
    reported: Dict[Tuple[str, str], Dict[str, Tuple[Line, bool]]] = {}
    for line in (line for part in parts if part.kind in (GDSCHECK, CUFILE) for line in part.lines):
        row = reader.SETTING.match(line.text) if line.text.startswith(_P2PDMA_SECTIONS) else None
        if row and row[1].endswith("use_pci_p2pdma"):
            if row[1] == p2pdma.GLOBAL:
                reported[line.file, line.pid] = {}
            reported.setdefault((line.file, line.pid), {})[row[1]] = (line, row[2].strip() == "true")
    for keys in reported.values():
        mode = keys.pop(p2pdma.GLOBAL, None)
        on = [line for line, is_on in keys.values() if is_on]
        if mode and keys and mode[1] and not on:
            yield mode[0], "P2PDMA is on, and no storage's own key is true, so it does nothing"
        elif mode and not mode[1] and on:
            yield on[0], f"this storage's key does nothing without {p2pdma.GLOBAL}: true"


def remarks(report: Report) -> List[str]:
    """The report's verdict in words, and its warnings; nothing about rows without a heading that are no report."""
    if not reader.says_something(report):
        return []
    return [f"gdscheck's rows say {report.verdict}: {reason}" for reason in document.reasons(report)] + [
        *document.warnings(report)
    ]
