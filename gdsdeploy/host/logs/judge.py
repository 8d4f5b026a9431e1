"""What a text shows: causes in order, harmless lines, unknown ones, and the path that the text itself names.

The answer as a JSON object, and for a terminal: the causes first, then what one command decides, then what was read.

Signs, setting and rules together: the causes of a text, in order.

Files with pasted text, read within bounds: what is no text is one plain error.
"""

from __future__ import annotations

import gc
import os
import re
import shlex
import sys
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..errors import UsageError
from ..gdscheck import document
from ..gdscheck.reader import BROKEN, COMPAT, DIRECT, REFUSED, UNKNOWN, encoding
from ..io import reading
from ..io.wording import joined, line as one_line, wrapped
from ..libcufile import errors as cufile_errors
from ..model import causes, compat
from ..subjects.kernel import NVIDIA, XID, meanings as kernel_meanings
from .parts import (
    BUILD,
    CUFILE,
    GDSCHECK,
    KERNEL,
    OTHER,
    PROGRAM,
    Candidates,
    Line,
    Part,
    Setting,
    Shown,
    Sign,
    causes_of,
    distinct,
    half_set,
    hosts,
    remarks,
    reports,
    setting,
    sign_index,
    split,
)

#: How sure a cause is: a line names it; a line has it as its most usual cause; a line has it as one of several.
SHOWN, LIKELY, POSSIBLE = "shown", "likely", "possible"
CERTAINTIES = (SHOWN, LIKELY, POSSIBLE)
#: What the text says about the path of I/O.
PATHS = (DIRECT, COMPAT, BROKEN, UNKNOWN)


@dataclass(frozen=True)
class Quote:
    """A line, what it means, and how often the text has lines of the same kind."""

    line: Line
    means: str
    count: int = 1


@dataclass(frozen=True)
class CauseFound(causes.KnownCause):
    """A cause, with the lines that show it.

    Where no row of data/causes.json has it, its id is ``compat.`` and a compatibility rule, ``kernel.`` and a kernel
    message, or ``cufile.`` and an error code.
    """

    quotes: Tuple[Quote, ...] = ()
    certainty: str = SHOWN


class Answer(NamedTuple):
    """What all files together show."""

    parts: Tuple[Part, ...]
    setting: Setting
    #: the root cause first, possible ones last
    causes: Tuple[CauseFound, ...]
    harmless: Tuple[Quote, ...]
    #: lines of errors without a meaning here; at most judge.UNKNOWN_LINES
    unknown: Tuple[Quote, ...]
    #: what one command would decide, or what to add; empty where nothing is open
    decide: str
    #: one of PATHS
    path: str
    #: verdicts on reports of gdscheck, and their warnings
    remarks: Tuple[str, ...] = ()
    #: lines with a meaning that decide nothing
    notes: Tuple[Quote, ...] = ()

    @property
    def recognised(self) -> bool:
        """Whether anything in the text was recognised."""
        return bool(self.causes or self.harmless or self.notes or any(part.kind != "other" for part in self.parts))


VERSION = 1


def as_document(answer: Answer) -> Dict[str, Any]:
    """``{"version", "path", "causes", "decide", "harmless", "notes", "unknown", "setting", "parts", "remarks"}``."""
    return {
        "version": VERSION,
        "path": answer.path,
        "causes": [_cause_row(cause) for cause in answer.causes],
        "decide": answer.decide or None,
        "harmless": [_quote_row(quote) for quote in answer.harmless],
        "notes": [_quote_row(quote) for quote in answer.notes],
        "unknown": [_quote_row(quote) for quote in answer.unknown],
        "setting": {
            subject: [{"value": value, "line": line.place, "text": line.text} for value, line in values.items()]
            for subject, values in answer.setting.shown.items()
        },
        "parts": [
            {"kind": part.kind, "file": part.file, "first": part.lines[0].number, "lines": len(part.lines)}
            for part in answer.parts
        ],
        "remarks": list(answer.remarks),
    }


def _cause_row(cause: CauseFound) -> Dict[str, Any]:
    return {
        "id": cause.id,
        "title": cause.title,
        "certainty": cause.certainty,
        "lines": [_quote_row(quote) for quote in cause.quotes],
        "fix": cause.fix,
        "reference": cause.reference,
        "decide": cause.decide or None,
        "path": cause.path or None,
    }


def _quote_row(quote: Quote) -> Dict[str, Any]:
    return {
        "file": quote.line.file,
        "line": quote.line.number,
        "text": quote.line.text,
        "means": quote.means or None,
        "count": quote.count,
    }


WIDTH = 100
_wrapped = partial(wrapped, width=WIDTH)
#: Most characters quoted of a line.
QUOTED = 300
_PATHS = {
    "direct": "by this text, I/O takes a direct path",
    "compat": "by this text, I/O goes through CPU memory (compat mode)",
    "broken": "by this text, cuFile calls fail",
    "unknown": "",
}


def render(answer: Answer) -> str:
    """Lines of at most WIDTH characters, except for quotes and longer words."""
    lines: List[str] = []
    sure = [cause for cause in answer.causes if cause.certainty != POSSIBLE]
    possible = [cause for cause in answer.causes if cause.certainty == POSSIBLE]
    for number, cause in enumerate(sure, 1):
        lines += [*_cause(cause, f"{number}. "), ""]
    if not answer.causes:
        lines += ["No line shows a cause." if answer.recognised else "Nothing in this text is known here.", ""]
    if possible:
        lines += ["Possible; this text doesn't decide it:"]
        lines += [text for cause in possible for text in _cause(cause, "   ")] + [""]
    if answer.decide:
        lines += ["To decide, run:", *_wrapped(answer.decide, "   "), ""]
    unknown = ("Errors without a known meaning:", answer.unknown)
    for heading, quotes in (unknown, ("Also said:", answer.notes), ("Harmless:", answer.harmless)):
        if quotes:
            lines += [heading, *(text for quote in quotes for text in _quote(quote)), ""]
    return joined([*lines, *_read(answer)])


def _cause(cause: CauseFound, first: str) -> Iterator[str]:
    how = f" ({cause.certainty})" if cause.certainty == LIKELY else ""
    yield from _wrapped(f"{cause.title}{how} [{cause.id}]", first)
    for quote in cause.quotes:
        yield from _quote(quote)
    yield from _wrapped(cause.fix, "   do    ")
    yield from _wrapped(cause.reference, "   read  ")


def _quote(quote: Quote) -> Iterator[str]:
    count = f" ({quote.count} such lines)" if quote.count > 1 else ""
    yield f"   {one_line(quote.line.place)}: {one_line(quote.line.text[:QUOTED])}{count}"
    if quote.means:
        yield from _wrapped(quote.means, "      = ")


def _read(answer: Answer) -> Iterator[str]:
    if _PATHS[answer.path]:
        yield from _wrapped(_PATHS[answer.path], "Path: ")
    for remark in answer.remarks[:10]:
        yield from _wrapped(remark, "Note: ")
    shown = "; ".join(
        "{} {}".format(subject, " or ".join(distinct(values)))
        for subject, values in sorted(answer.setting.shown.items())
    )
    if shown:
        yield from _wrapped(shown, "Shown: ")
    kinds: Dict[str, int] = {}
    for part in answer.parts:
        kinds[part.kind] = kinds.get(part.kind, 0) + len(part.lines)
    counted = ", ".join(
        f"{kind} ({number} line{'' if number == 1 else 's'})" for kind, number in kinds.items() if kind != OTHER
    )
    yield from _wrapped(counted or "no part of a known kind", "Read: ")


#: Most lines quoted for one cause, most harmless kinds of lines, and most unknown ones.
QUOTES, HARMLESS_LINES, UNKNOWN_LINES = 4, 20, 20
#: Ranks of causes that no row of causes.json has.
#: A rule about versions is a better answer than the compiler's line; without a build others come first.
BUILD_RULE_RANK, RULE_RANK, DRIVER_RANK, KERNEL_RANK, CODE_RANK = 235, 890, 140, 530, 940
#: The fix of versions that don't go together, where the rule names none that do.
CHOOSE = "choose other versions; with gdsdeploy: gdsdeploy lock chooses those that fit together"
#: Most combinations of versions that rules judge, where a text shows several of a subject.
COMBINATIONS = 16
#: What the id of a cause begins with that a compatibility rule is.
RULE = "compat."
#: Levels of libcufile's log at which it speaks of a fault or of its mode.
FAULT_LEVELS = ("ERROR", "WARN", "NOTICE")
_BLANKS, _ZEROS = re.compile("  +"), re.compile("00+")
_CODE = re.compile(
    r"(?:\berr(?:or)?(?:num|no| code)?|\bstatus|\bret(?:urned|val| code)?|cuFile\w*|\bcode)\W{0,4}-?(?P<code>50\d\d)\b"
)
_CODE_NAME = re.compile(r"\bCU_FILE_(?!SUCCESS)[A-Z_]+\b")
#: Kernel lines about this stack that sound like a fault.
_FAULT = re.compile(
    r"(?i)(?:nvidia|nvrm|nvfs|nv_peer|cufile|nvme).*(?:error|fail|unable|invalid|unknown|cannot|bug\b|xid)"
)


def _doubt(certainty: str) -> int:
    return CERTAINTIES.index(certainty)


class _Match(NamedTuple):
    """One line and what it shows."""

    line: Line
    sign: Sign
    means: str
    certainty: str
    #: what texts of the tables may name: the pattern's groups, and the setting
    values: Mapping[str, str]


class _Collector:
    """Lines by what they show, each kind with its first lines and their number."""

    def __init__(self) -> None:
        self.causes: Dict[str, List[_Match]] = {}
        #: sign → number of its lines that are quoted
        self.quotes: Dict[str, int] = {}
        self.harmless: Dict[str, Quote] = {}
        self.unknown: Dict[str, Quote] = {}
        self.notes: Dict[str, Quote] = {}
        self.codes: Dict[int, Quote] = {}

    def add(self, ident: str, match: _Match) -> None:
        """A line shows a cause."""
        lines = self.causes.setdefault(ident, [])
        surer = all(_doubt(match.certainty) < _doubt(other.certainty) for other in lines)
        if len(lines) < QUOTES or surer:
            lines.append(match)
            self.quotes[match.sign.id] = self.quotes.get(match.sign.id, 0) + 1

    def take(self, match: _Match) -> None:
        """A line has a sign."""
        sign, line = match.sign, match.line
        if sign.harmless:
            self.count(self.harmless, sign.id, line, match.means, HARMLESS_LINES)
        elif sign.cause:
            self.add(sign.cause, match)
            for other in sign.others:
                self.add(other, match._replace(certainty=POSSIBLE))
        elif sign.id.startswith("kernel."):
            xid = XID.search(line.text)
            self.add(f"kernel.xid-{xid[2]}" if xid else sign.id, match)
        else:
            self.count(self.notes, sign.id, line, match.means, HARMLESS_LINES)

    @property
    def has_errors(self) -> bool:
        """Whether a line tells of an error, though of no cause."""
        return bool(self.unknown or self.codes or self.notes)

    @staticmethod
    def count(table: Dict[Any, Quote], key: Any, line: Line, means: str, most: int) -> None:
        """Keep the first line of a kind and the number of all of them."""
        if key in table:
            table[key] = Quote(table[key].line, table[key].means, table[key].count + 1)
        elif len(table) < most:
            table[key] = Quote(line, means)


def judge(parts: Sequence[Part]) -> Answer:
    """The answer to what ``parts`` hold, of one or several files that belong together.  Never raises."""
    env, machines = setting(parts), hosts(parts)
    # What one host shows neither makes a cause of another's line nor denies it.
    of_all = env if len(machines) < 2 else Setting({})
    collector = _Collector()
    _read_lines(parts, of_all, collector)
    shown = reports(parts)
    told = [*_from_signs(collector), *_from_reports(shown), *_half_set(parts), *_from_rules(of_all, parts)]
    causes_found = _ordered(_merged(_not_denied(told, of_all)))
    if not any(cause.certainty != POSSIBLE for cause in causes_found):
        causes_found = _ordered(_merged([*causes_found, *_from_codes(collector)]))
    doubts = [cause for cause in causes_found if cause.certainty != POSSIBLE or not cause.id.startswith(RULE)]
    path = _path(causes_found, shown, clean=not (doubts or collector.has_errors))
    return Answer(
        parts=tuple(parts),
        setting=env,
        causes=tuple(causes_found),
        harmless=tuple(collector.harmless.values()),
        notes=tuple(collector.notes.values()),
        unknown=tuple(collector.unknown.values()),
        decide="" if path == DIRECT else _decide(causes_found, parts),
        path=path,
        remarks=tuple(dict.fromkeys([*_mixed(machines), *(text for one in shown for text in remarks(one.report))])),
    )


def _mixed(machines: Sequence[str]) -> Iterator[str]:
    if len(machines) > 1:
        names = ", ".join(machines[:4]) + (", …" if len(machines) > 4 else "")
        yield f"{len(machines)} hosts are mixed here ({names}), so versions decide nothing; ask about each host alone"


def _read_lines(parts: Sequence[Part], env: Setting, collector: _Collector) -> None:
    # Of each kind of line: the signs that may match, and whether it tells of an error if none does.
    cache: Dict[Tuple[str, ...], Tuple[Candidates[Sign], bool, int]] = {}
    for line in (line for part in parts for line in part.lines):
        key = (line.kind, line.level, line.unit, line.key)
        if key not in cache:
            is_fault = line.level == "ERROR" or (line.kind == KERNEL and _FAULT.search(line.text) is not None)
            candidates = sign_index(line.kind, line.level in FAULT_LEVELS).candidates(_words(line))
            cache[key] = (candidates, is_fault, _code_in_words(line))
        candidates, is_error, code = cache[key]
        if not (candidates and _signs_of(line, candidates, env, collector)) and is_error:
            alike = _ZEROS.sub("0", line.key)
            means = document.meaning(line.text).means if line.level and alike not in collector.unknown else ""
            collector.count(collector.unknown, alike, line, means, UNKNOWN_LINES)
        if line.kind in (PROGRAM, OTHER, CUFILE) and "50" in line.text:
            number = _CODE.search(line.text)
            code = int(number["code"]) if number else code
        if code:
            collector.count(collector.codes, code, line, "", UNKNOWN_LINES)


def _code_in_words(line: Line) -> int:
    """The code that an application's line has by its name, or in the library's words for it; 0: none."""
    if line.kind not in (PROGRAM, OTHER):
        return 0
    name = _CODE_NAME.search(line.text)
    if name:
        try:
            return cufile_errors.lookup(name[0])[0].code
        except cufile_errors.UnknownCodeError:
            return 0
    entry = cufile_errors.by_words(line.text) if "cufile" in line.text.lower() else None
    return entry.code if entry else 0


def _words(line: Line) -> str:
    if line.unit:
        # As the journal says it: systemctl names the unit in its first line alone.
        return f"{line.unit}: {line.text}"
    # The library joins what it prints with blanks, of which some are part of its words, too.
    return _BLANKS.sub(" ", line.text) if line.kind == CUFILE and "  " in line.text else line.text


def _signs_of(line: Line, candidates: Candidates[Sign], env: Setting, collector: _Collector) -> bool:
    is_sign = False
    text = _words(line)
    for pattern, sign in candidates:
        match = pattern.search(text)
        holds = env.meets(sign.when) if match and sign.when else True
        if match is None or holds is False:
            continue
        # What may be a cause on this host isn't harmless.
        if sign.harmless and is_sign:
            break
        is_sign = True
        # Two lines of a sign say as much as a thousand.
        if collector.quotes.get(sign.id, 0) < 2:
            certainty = POSSIBLE if holds is None else sign.certainty or (LIKELY if sign.others else SHOWN)
            values = {**env.single, **{name: text for name, text in match.groupdict("").items() if text}}
            collector.take(_Match(line, sign, causes.filled(sign.means, values), certainty, values))
        if holds is not None:
            break
    return is_sign


def _from_signs(collector: _Collector) -> Iterator[CauseFound]:
    rows = {"kernel." + row.id: row for row in kernel_meanings()}
    shown = {ident for ident, lines in collector.causes.items() if any(one.certainty == SHOWN for one in lines)}
    for ident, lines in collector.causes.items():
        # What else a line may come from needs no mention where another line shows what it comes from.
        matches = [one for one in lines if one.sign.cause in (ident, "") or one.sign.cause not in shown]
        if not matches:
            continue
        certainty = min((one.certainty for one in matches), key=_doubt)
        best = [one for one in matches if one.certainty == certainty]
        quotes = tuple(Quote(one.line, one.means) for one in best[:QUOTES])
        if causes.has(ident):
            row = causes.row(ident, best[0].values)
            yield CauseFound(**vars(row), quotes=quotes, certainty=certainty)
        elif ident.startswith("kernel."):
            message = rows.get(best[0].sign.id)
            if message is not None:
                rank = DRIVER_RANK if message.module == NVIDIA else KERNEL_RANK
                words = (ident, message.what, message.fix, message.source, rank)
                yield CauseFound(*words, follows=message.follows, quotes=quotes, certainty=certainty)


def _from_reports(shown: Iterable[Shown]) -> Iterator[CauseFound]:
    for one in shown:
        for says in causes_of(one.report):
            if causes.has(says.cause):
                quotes = (Quote(one.line(says.line), says.means),)
                yield CauseFound(**vars(causes.row(says.cause)), quotes=quotes, certainty=SHOWN)


def _half_set(parts: Sequence[Part]) -> Iterator[CauseFound]:
    for line, means in half_set(parts):
        yield CauseFound(**vars(causes.row("cufile.p2pdma-half-set")), quotes=(Quote(line, means),), certainty=SHOWN)


def _from_rules(env: Setting, parts: Sequence[Part]) -> Iterator[CauseFound]:
    """Versions that the compatibility rules refuse together."""
    built = any(part.kind == BUILD for part in parts)
    choices = {subject: _versions(env, subject, built) for subject in compat.SUBJECTS}
    # Who built a module is seldom in a log; NVIDIA's own is the usual one.
    for subject in ("driver_origin", "nvidia_fs_origin"):
        choices[subject] = choices[subject] or ["nvidia"]
    # Nor is the flavour: the rules about what compiles are tried with that of GPUDirect Storage.
    assumed = set() if choices["flavour"] else {"flavour"}
    choices["flavour"] = choices["flavour"] or ["open"]
    choices = {subject: values for subject, values in choices.items() if values}
    rules = {rule.id: rule for rule in compat.rules_with(())}
    # Of several values, which one counts isn't known: a rule speaks where it does for each.
    verdicts = [
        {verdict.rule: verdict for verdict in compat.judge(dict(zip(choices, values)), rules.values())}
        for values in islice(product(*choices.values()), COMBINATIONS + 1)
    ]
    against = [
        verdicts[0][rule]
        for rule in verdicts[0]
        if len(verdicts) <= COMBINATIONS and all(_speaks(one.get(rule)) for one in verdicts)
    ]
    # A module that runs has been built.
    runs = not built and bool(env.values("nvidia_fs_loaded"))
    for verdict in against:
        rule = rules[verdict.rule]
        if runs and {"kernel", "nvidia_fs"} <= rule.looks_at and not verdict.warning:
            continue
        guessed = bool(assumed & rule.looks_at)
        if guessed and not {"driver", "kernel"} <= rule.looks_at:
            continue
        subjects = dict.fromkeys(
            _source(env, subject) for subject in rule.looks_at if env.values(_source(env, subject))
        )
        quotes = [
            Quote(env.shown[subject][value], f"{subject}: {value}")
            for subject in sorted(subjects)
            for value in choices.get(subject) or distinct(env.values(subject))
        ]
        fix = f"use {rule.fixed}" if rule.fixed else CHOOSE
        yield CauseFound(
            RULE + rule.id,
            rule.says.strip().rstrip("."),
            fix,
            rule.source,
            BUILD_RULE_RANK if built else RULE_RANK,
            quotes=tuple(quotes[:QUOTES]),
            # In a build, refused versions are the cause; a rule that only warns is one of several.
            certainty=(LIKELY if verdict.allowed or guessed else SHOWN)
            if built
            else (POSSIBLE if verdict.allowed or guessed else LIKELY),
        )


def _source(env: Setting, subject: str) -> str:
    """Which subject of the text tells of one of the rules'; the driver's files tell of it where nothing else does."""
    files = next((name for name in ("driver_file", "driver_library") if env.values(name)), subject)
    return files if subject == "driver" and not env.values(subject) else subject


def _versions(env: Setting, subject: str, built: bool) -> List[str]:
    """The versions that rules judge: in a build, those of its own lines, if these name some."""
    lines = env.shown.get(_source(env, subject), {})
    own = distinct(value for value, line in lines.items() if built and line.kind == BUILD)
    return own or distinct(lines)


def _speaks(verdict: Optional[compat.Verdict]) -> bool:
    return verdict is not None and verdict.kind in (compat.REFUSED, compat.WARNED)


def _from_codes(collector: _Collector) -> Iterator[CauseFound]:
    """Error codes of cuFile that the text names, where no line says more."""
    for number, quote in collector.codes.items():
        try:
            entry = cufile_errors.lookup(str(number))[0]
        except cufile_errors.UnknownCodeError:
            continue
        usual = entry.causes[0]
        quotes = (Quote(quote.line, f"{entry.name}: {entry.meaning}", quote.count),)
        reference = "gdsdeploy explain --error " + str(number)
        title = f"{entry.name}; usually {usual.what}"
        words = (f"cufile.{number}", title, usual.fix, reference)
        yield CauseFound(*words, CODE_RANK, usual.evidence, quotes=quotes, certainty=LIKELY)


def _not_denied(all_causes: Iterable[CauseFound], env: Setting) -> Iterator[CauseFound]:
    """Without the causes that the text itself denies; of these, what they are instead, with the line that denies."""
    for cause in all_causes:
        against = env.against(cause.unless)
        if against is None:
            yield cause
        elif cause.instead:
            quotes = (*cause.quotes[: QUOTES - 1], Quote(against, "yet this line says otherwise"))
            yield CauseFound(**vars(causes.row(cause.instead)), quotes=quotes, certainty=cause.certainty)


def _merged(all_causes: Iterable[CauseFound]) -> List[CauseFound]:
    """Each cause once, with the quotes of all that show it."""
    by_id: Dict[str, CauseFound] = {}
    for cause in all_causes:
        other = by_id.get(cause.id)
        if other is None:
            by_id[cause.id] = cause
            continue
        best, rest = sorted((other, cause), key=lambda one: _doubt(one.certainty))
        quotes = {quote.line[:2]: quote for quote in (*best.quotes, *rest.quotes)}
        by_id[cause.id] = replace(best, quotes=tuple(list(quotes.values())[:QUOTES]))
    return list(by_id.values())


def _ordered(in_any_order: Iterable[CauseFound]) -> List[CauseFound]:
    """Root causes first; what follows from them behind; those that are only possible, last.

    Of equal ones the one whose line is the last comes first.  What follows from another cause needs that one's fix.
    """
    found = list(in_any_order)

    def key(cause: CauseFound) -> Tuple[bool, bool, int, int, str]:
        last = max((quote.line.number for quote in cause.quotes), default=0)
        return cause.certainty == POSSIBLE, _root(cause, found) is not None, cause.rank, -last, cause.id

    ordered = sorted(found, key=key)
    return [_behind(cause, _root(cause, ordered)) for cause in ordered]


def _root(cause: CauseFound, found: Sequence[CauseFound]) -> Optional[CauseFound]:
    """The first cause that a line shows and from which this one follows."""
    shown = (other for other in found if other.certainty != POSSIBLE)
    return next((other for other in shown if causes.is_after(cause.link, other.link)), None)


def _behind(cause: CauseFound, root: Optional[CauseFound]) -> CauseFound:
    fix = f"repair {root.id} first: this usually follows from it" if root else cause.fix
    return replace(cause, fix=fix, decide="" if root else cause.decide)


def _path(ordered: Sequence[CauseFound], shown: Sequence[Shown], clean: bool) -> str:
    sure = {cause.path for cause in ordered if cause.certainty == SHOWN}
    verdicts = {one.report.verdict for one in shown}
    # Where one report can't be judged, the others don't say either.
    judged = set() if UNKNOWN in verdicts else verdicts
    if BROKEN in sure or judged & {BROKEN, REFUSED}:
        return BROKEN
    if COMPAT in sure or COMPAT in judged:
        return COMPAT
    return DIRECT if judged == {DIRECT} and clean else UNKNOWN


def _decide(ordered: Sequence[CauseFound], parts: Sequence[Part]) -> str:
    """The command that decides between what remains, or what the text lacks."""
    open_ones = [cause for cause in ordered if cause.certainty != SHOWN]
    several = ordered if len(ordered) > 1 else ()
    for cause in (*open_ones, *several):
        if cause.decide:
            return cause.decide
    if ordered:
        return ""
    kinds = {part.kind for part in parts}
    if KERNEL not in kinds:
        return "dmesg | grep -iE 'nvidia|nvfs|nvme|peermem'  # add what the kernel says"
    if GDSCHECK not in kinds:
        return "gdscheck -p  # add its whole output"
    return "gdsdeploy explain  # on the host itself"


STDIN = "-"
#: Most bytes of one file, and most lines, each of which takes some 200 bytes of memory.
LIMIT, LINES = 32 * 1024 * 1024, 500_000
#: Bytes that are looked at to tell whether a file is text, and the largest share of others in a text.
_SAMPLE, _SHARE = 65536, 0.1
_NO_TEXT = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f\ufffd]")


def read_texts(names: Sequence[str]) -> List[Tuple[str, bytes]]:
    """(name, content) of each file; ``-`` is standard input.

    Raises UsageError for what is no text or can't be read.
    """
    return [(name, _content(name)) for name in names]


def answer_to(contents: Sequence[Tuple[str, bytes]]) -> Answer:
    """The answer to all files together."""
    # A hundred thousand lines make no garbage, and looking for it would take as long as all the rest.
    enabled = gc.isenabled()
    gc.disable()
    try:
        return judge([part for name, data in contents for part in split(data, name)])
    finally:
        if enabled:
            gc.enable()


def _content(name: str) -> bytes:
    try:
        data = sys.stdin.buffer.read(LIMIT + 1) if name == STDIN else reading.beginning(name, LIMIT)
    except IsADirectoryError:
        hint = f"name the files in it: {shlex.quote(os.path.join(name, ''))}*"
        raise UsageError(f"{name} is a folder; {hint}") from None
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror or error}") from None
    shown = "standard input" if name == STDIN else name
    if len(data) > LIMIT:
        cut = f"tail -c {LIMIT // 2} {shlex.quote(name)} | gdsdeploy explain --log"
        raise UsageError(f"{shown} has more than {LIMIT // 1024 // 1024} MiB; give its end: {cut}")
    if data.count(b"\n") + data.count(b"\r") > 2 * LINES or data.count(b"\n") > LINES:
        cut = f"tail -n {LINES // 2} {shlex.quote(name)} | gdsdeploy explain --log"
        raise UsageError(f"{shown} has more than {LINES} lines; give its end: {cut}")
    if not data.strip(b"\0 \t\r\n"):
        raise UsageError(f"{shown} is empty")
    if not is_text(data):
        raise UsageError(f"{shown} is no text; unpack an archive first, and name the log in it")
    return data


def is_text(data: bytes) -> bool:
    """Whether the beginning is text; a log may have zeros where a host crashed."""
    sample = data[:_SAMPLE]
    if encoding(sample) != "utf-8-sig":
        return True
    rest = sample.replace(b"\0", b"")
    text = rest.decode("utf-8", "replace")
    return 2 * len(rest) >= len(sample) and len(_NO_TEXT.findall(text)) <= _SHARE * len(text)
