"""Which versions go together, without a fleet: sets of versions, judged by the rules of compat.yml.

docs/fits.md has the words, the JSON object and the exit codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from itertools import combinations, islice, pairwise, product
from math import prod
from os import uname
from typing import TYPE_CHECKING, Any, Final

from gdsdeploy import lock
from gdsdeploy.errors import NameUnknown, did_you_mean
from gdsdeploy.files import yamlfile
from gdsdeploy.host.io.wording import aligned, joined, wrapped
from gdsdeploy.host.kmod.flavour import flavour_of, has_nvme_hooks
from gdsdeploy.host.model import compat
from gdsdeploy.host.model.compat import FITS, KINDS, REFUSED, UNKNOWN, WARNED, Rule, Value, Verdict, version_order
from gdsdeploy.host.model.system import gpu_class
from gdsdeploy.preflight.record import kept, with_records

if TYPE_CHECKING:
    from gdsdeploy.host.facts import HostFacts

VERSION: Final = 1
#: Most sets that are judged at once.
MOST: Final = 4000
ALL: Final = "all"
#: Of which the rules and the tags know versions, in the order of the output.
PARTS: Final = ("driver", "kernel", "nvidia_fs", "libcufile", "cuda")
#: Parts of which a branch stands for the versions in it that are known.
_BRANCHES: Final = ("driver", "nvidia_fs")
#: Most sets of which each gets its nearer versions as JSON: a series of kernels may be several.
_SEVERAL: Final = 4
#: Most sets of a row for which nearer versions are looked for.
_FEW: Final = 16
#: What a user can change, the easiest first.
_CHANGED: Final = ("driver", "nvidia_fs", "libcufile", "kernel")
#: Pairs of which one is compiled against the other.
_BUILT: Final = (("driver", "kernel"), ("nvidia_fs", "kernel"), ("nvidia_fs", "driver"))
#: What else is known of a part, and goes when another version takes its place.
_OF: Final = {
    "driver": ("driver_package",),
    "kernel": ("kernel_package", "kernel_flavour", "nvme_hooks"),
    "nvidia_fs": ("nvidia_fs_package",),
    "libcufile": ("cuda",),
}
#: What a host's part decides.
_FOLLOWS: Final = {"driver": "flavour", "nvidia_fs": "mode"}
_NUMBERS: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,5}")
_KERNEL: Final = re.compile(r"([0-9]{1,4}\.[0-9]{1,4})(?:[.+~_-][0-9A-Za-z.+~_-]{0,60})?")
_PACKAGE: Final = re.compile(r"(?:[0-9]{1,4}:)?[0-9][0-9A-Za-z.+~_-]{0,80}")
_WORD: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}")
#: A kernel's version alone, and in a condition of a rule.
_UPSTREAM: Final = re.compile(r"(?<![0-9.])[0-9]+(?:\.[0-9]+)+(?![0-9A-Za-z.+~_-])")


#: Subject → each value that was given of it, and the last version that this value stands for, as a user reads it.
Choices = Mapping[str, Mapping[str, str]]


def shown(subject: str) -> str:
    """As a user writes it."""
    return subject.replace("_", "-")


def _shipped(name: str) -> Any:
    """What a file of the folder lock has."""
    return yamlfile.shipped(resources.files(lock).joinpath(name).read_text(encoding="utf-8"))


@cache
def _cuda() -> dict[str, str]:
    """The first two numbers of a libcufile → the release of CUDA that it came with."""
    return {row["libcufile"]: row["cuda"] for row in _shipped("cuda.yml") if {"cuda", "libcufile"} <= row.keys()}


@cache
def known_versions(subject: str) -> tuple[str, ...]:
    """The versions of one of PARTS that its tags have or a rule names, the oldest first.

    Of kernels, two that follow each other have no other between them about which a rule says something else.
    """
    named = {
        version
        for rule in compat.rules_with(())
        for conditions in (rule.when, rule.needs, rule.refuses, rule.warns, rule.doubts)
        for text in conditions.get(subject, ())
        for version in _UPSTREAM.findall(text)
    }
    if subject == "kernel":
        named |= {_series(version) for version in named}
    elif subject in _BRANCHES:
        named = _releases(subject, named)
    return tuple(sorted(named, key=version_order))


def _releases(subject: str, named: set[str]) -> set[str]:
    """The tags, and of versions that rules name those that are newer than the tags of their branch."""
    tags = [tag for branch in _shipped("tags.yml")[subject]["tags"].values() for tag in branch]
    # The tags of each branch, and the branches, are there from the oldest on.
    newest = {_branch(subject, tag): tag for tag in tags}
    later = {v for v in named if version_order(v) > version_order(newest.get(_branch(subject, v), tags[0]))}
    # Rules name branches, too.
    return {*tags, *(v for v in later if not any(other.startswith(v + ".") for other in named))}


def _branch(subject: str, version: str) -> str:
    """580 of a driver; 2.28 of nvidia-fs."""
    return version.split(".")[0] if subject == "driver" else _series(version)


def _series(version: str) -> str:
    """The first two numbers."""
    return ".".join(version.split(".")[:2])


def read(words: Iterable[str], *, alone: bool) -> Choices:
    """What ``SUBJECT=VALUE[,VALUE…]`` stand for; raises NameUnknown.

    alone: whether nothing else is known of the set, as of a host.
    """
    choices: dict[str, Mapping[str, str]] = {}
    for word in words:
        name, _, text = word.partition("=")
        subject = name.strip().lower().replace("-", "_")
        values = [value.strip() for value in text.split(",") if value.strip()]
        if not values or not name:
            raise NameUnknown(f"{word!r} isn't written like driver=580.126.09", hint=EXAMPLES)
        if subject not in compat.SUBJECTS:
            names = list(map(shown, compat.SUBJECTS))
            near = did_you_mean(shown(subject), names)
            raise NameUnknown(f"there is no {name!r}{near}", hint=f"There are {', '.join(names)}")
        if subject in choices:
            raise NameUnknown(f"{shown(subject)} stands there twice; separate versions with commas")
        found = [item for value in values for item in _values(subject, value).items()]
        if subject in compat.VERSIONS:
            found.sort(key=lambda item: version_order(item[0]))
        choices[subject] = dict(found)
    if alone and len(choices) == 1:
        (name,) = map(shown, choices)
        raise NameUnknown(f"{name} alone goes together with nothing: name another part", hint=EXAMPLES)
    number = prod(map(len, choices.values()))
    if number > MOST:
        parts = " × ".join(f"{len(values)} {shown(subject)}" for subject, values in choices.items() if len(values) > 1)
        hint = f"Name branches in place of {ALL}, such as driver=570,580"
        raise NameUnknown(f"these are {number} sets ({parts}), and at most {MOST} are judged at once", hint=hint)
    return choices


EXAMPLES: Final = "For example: gdsdeploy fits driver=580.126.09 kernel=6.19.2 nvidia-fs=2.28.4 libcufile=1.20"


def _values(subject: str, text: str) -> dict[str, str]:
    """What one text of a list stands for, as in Choices; raises NameUnknown."""
    if subject != "kernel" or not (text == ALL or re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", text)):
        return {value: value for value in _words(subject, text)}
    points = [v for v in known_versions(subject) if text in (ALL, _series(v))] or [text]
    last = {point: _series(point) for point in points}
    for point, after in pairwise(points):
        if _series(point) == _series(after):
            last[point] += f".{int(after.split('.')[2]) - 1}"
    return last


def _words(subject: str, text: str) -> Sequence[str]:
    if subject not in compat.VERSIONS:
        from gdsdeploy.fleetfile.rules import WORDS  # imports every platform

        word = text.lower()
        words = WORDS.get(subject, (word,))
        if word == ALL and subject in WORDS:
            return words
        if not _WORD.fullmatch(word) or word not in words:
            # H100 is a model, hopper its class.
            model = gpu_class([text.upper()]) if subject == "gpu" else ""
            near = f"; its class is {model!r}" if model else did_you_mean(word, words)
            near = near or (f"; there are {', '.join(words)}" if subject in WORDS else "")
            raise NameUnknown(f"{shown(subject)}: there is no {text!r}{near}")
        return (word,)
    if text == ALL and subject in PARTS:
        return known_versions(subject)
    _require_version(subject, text)
    versions = known_versions(subject) if subject in PARTS else ()
    if subject in _BRANCHES and text not in versions:
        within = [version for version in versions if version.startswith(text + ".")]
        if not within and "." not in text:
            branches = ", ".join(dict.fromkeys(version.split(".")[0] for version in versions))
            hint = f"Write a whole version, such as {versions[-1]}, or one of the branches {branches}"
            raise NameUnknown(f"{shown(subject)}: no version of a branch {text} is known", hint=hint)
        return within or (text,)
    return (text,)


def _require_version(subject: str, text: str) -> None:
    """Raise NameUnknown for what no version of the subject is written like."""
    form = _KERNEL if subject == "kernel" else _PACKAGE if subject.endswith("_package") else _NUMBERS
    if not form.fullmatch(text):
        package = f"{subject}_package"
        example = compat.VERSIONS[subject]
        hint = f"A package's version is {shown(package)}={example[0]}-1" if package in compat.VERSIONS else None
        raise NameUnknown(f"{shown(subject)}: {text!r} isn't written like {' or '.join(example)}", hint=hint)


@dataclass(frozen=True)
class Host:
    """What runs on a host: subject → value, None for a part that it lacks; and why other parts aren't known."""

    name: str
    #: what ``uname -r`` prints
    release: str
    parts: Mapping[str, Value | None]
    unknown: Mapping[str, str]
    rules: tuple[Rule, ...] = ()


def host_of(facts: HostFacts) -> Host:
    """What the rules can judge of a host."""
    from gdsdeploy.host.facts.unknown import Unknown, if_known, known
    from gdsdeploy.host.subjects import stack

    values = {name: known(value) for name, value in stack.combination(facts, stack.mode(facts), "none").items()}
    there = {name: value for name, value in values.items() if not isinstance(value, Unknown)}
    unknown = {name: value.reason for name, value in values.items() if isinstance(value, Unknown)}
    return Host(facts.name, if_known(lambda: facts.kernel.release, ""), there, unknown, tuple(facts.rules))


@dataclass(frozen=True)
class Judged:
    """One set of versions, and what the rules say about it."""

    #: the values that were given, and those of the host
    values: Mapping[str, str]
    combination: compat.Combination
    #: subject → value that was not given
    assumed: Mapping[str, str]
    #: those of rules and records, and one for each pair that no rule speaks about
    verdicts: tuple[Verdict, ...]
    #: pairs that run on the host
    runs: tuple[tuple[str, str], ...] = ()

    @property
    def unjudged(self) -> list[tuple[str, str]]:
        """The pairs that no rule speaks about."""
        return [pair for pair, rule in compat.PAIRS.items() if (rule.id, UNKNOWN) in self.says]

    @cached_property
    def kind(self) -> str:
        """The worst of what is known: one of compat.KINDS."""
        kinds = {verdict.kind for verdict in self.verdicts} or {FITS if self.runs else UNKNOWN}
        return min(kinds, key=KINDS.index)

    @cached_property
    def says(self) -> tuple[tuple[str, str], ...]:
        """(rule, kind) of all that doesn't fit."""
        return tuple((verdict.rule, verdict.kind) for verdict in self.verdicts if verdict.kind != FITS)

    @cached_property
    def decides(self) -> frozenset[str]:
        """Rules of the set's kind; nothing where all fits."""
        return frozenset(name for name, kind in self.says if kind == self.kind)


class Judge:
    """Judges sets; of a host, what isn't given is what it has."""

    def __init__(self, host: Host | None = None) -> None:
        self.host = host
        rules = compat.rules_with(host.rules if host else ())
        self.rules = {rule.id: rule for rule in (*rules, *compat.PAIRS.values())}
        self._rules_about = cache(lambda subjects: [rule for rule in rules if rule.looks_at <= subjects])
        #: GPU → verdicts on the open modules
        self._open = cache(lambda gpu: compat.judge({"gpu": gpu, "flavour": "open"}, rules))
        self._records = kept()

    def judge(self, given: Mapping[str, str], dropped: Iterable[str] = ()) -> Judged:
        """given: subject → one value each.  dropped: what doesn't count of the host."""
        of_host = self.host.parts if self.host else {}
        replaced = _with_its(given) | {*dropped}
        # What the host has without a part says nothing about it.
        follows = {follows for part, follows in _FOLLOWS.items() if part in given and of_host.get(part) is None}
        parts = {name: value for name, value in of_host.items() if name not in replaced | follows}
        combination, assumed = _completed(given, parts)
        if combination.get("driver") is not None and "flavour" not in combination:
            # The usual one, unless rules say that the GPU can't have it.
            usual = all(verdict.allowed for verdict in self._open(combination.get("gpu")))
            assumed["flavour"] = combination["flavour"] = "open" if usual else "proprietary"
        runs = tuple(pair for pair in _BUILT if all(parts.get(part) is not None for part in pair))
        rules = [
            rule
            for rule in self._rules_about(frozenset(combination))
            # What is loaded has been built.
            if rule.warns or not any(set(pair) <= rule.looks_at for pair in runs)
        ]
        verdicts = with_records(combination, compat.judge(combination, rules), self._records)
        ran = {frozenset(pair) for pair in runs}
        verdicts += [each for each in compat.unknown_pairs(combination, verdicts) if each.subjects not in ran]
        values = {name: str(value) for name, value in combination.items() if value is not None and name not in assumed}
        values |= {"kernel": self.host.release} if self.host else {}
        return Judged({**values, **given}, combination, assumed, tuple(verdicts), runs)

    def rule(self, verdict: Verdict) -> Rule:
        """The rule behind a verdict.  That of a pair that no rule speaks about has no source."""
        source = "records of gdsdeploy kmod preflight on this machine"
        return self.rules.get(verdict.rule) or Rule(verdict.rule, verdict.words, "measured", source)

    def all(self, choices: Choices) -> list[Judged]:
        """Each combination of the choices."""
        return [self.judge(dict(zip(choices, each, strict=True))) for each in product(*choices.values())]


def _with_its(parts: Iterable[str]) -> set[str]:
    """The parts, and what else is known of them."""
    return {name for part in parts for name in (part, *_OF.get(part, ()))}


def _completed(
    given: Mapping[str, str], parts: Mapping[str, Value | None]
) -> tuple[dict[str, Value | None], dict[str, str]]:
    """The combination for what was given beside a host's parts, and what is assumed in it."""
    combination: dict[str, Value | None] = {**parts, **given}
    assumed = dict[str, str]()
    release = given.get("kernel", "")
    own = flavour_of(release)
    if release:
        rpm = re.match(r"(.+)\.(?:x86_64|aarch64)(?:\+.*)?$", release)
        package = given.get("kernel_package") or (rpm.group(1) if own and rpm else "")
        combination["kernel"] = compat.kernel_version(release, package)
        if own:
            assumed |= {"kernel_flavour": own.name, "nvme_hooks": "kernel" if has_nvme_hooks(release) else "ofed"}
            assumed |= {"family": own.vendor} | ({"kernel_package": package} if package else {})
    libcufile = given.get("libcufile")
    if libcufile and (cuda := _cuda().get(_series(libcufile))):
        assumed["cuda"] = cuda
    if combination.get("nvidia_fs") is not None:
        assumed["mode"] = "nvidia-fs"
    for part in ("driver", "nvidia_fs"):
        # The driver of Debian's or Ubuntu's host is often theirs, and they patch it.
        if part in given or (combination.get(part) is not None and parts.get("family") not in ("debian", "ubuntu")):
            assumed[f"{part}_origin"] = "nvidia"
    machine = re.search(r"\b(x86_64|aarch64|amd64|arm64)\b", release)
    # Only Arm's kernels have pages of 64 KiB.
    own_arch = "aarch64" if own and own.name.endswith("64k") else uname().machine
    arch = machine.group(1) if machine else own_arch
    assumed["arch"] = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
    assumed = {subject: value for subject, value in assumed.items() if subject not in combination}
    return {**combination, **assumed}, assumed


def _pair(pair: Sequence[str]) -> str:
    return " × ".join(map(shown, pair))


@dataclass(frozen=True)
class Row:
    """Sets with the same answer: of each part that varies, values that follow each other in what was given."""

    values: Mapping[str, tuple[str, ...]]
    #: the set of the first values
    first: Judged
    #: what decides of every set
    decides: frozenset[str]

    def goes_on(self, row: Row, exact: bool) -> bool:
        """Whether the answers are the same."""
        one, other = self.first, row.first
        decided_alike = not exact and one.kind in (REFUSED, UNKNOWN) and bool(self.decides & row.decides)
        return one.kind == other.kind and (decided_alike or one.says == other.says)

    def shown(self, choices: Choices) -> dict[str, str]:
        """Subject → its values, as ranges of those that are known to follow each other; and a host's parts."""
        texts = {name: value for name, value in self.first.values.items() if name in PARTS}
        for name, values in self.values.items():
            known_after = dict(pairwise(known_versions(name))) if name in PARTS else {}
            ranges = list[list[str]]()
            for value in values:
                if ranges and known_after.get(ranges[-1][-1]) == value:
                    ranges[-1].append(value)
                else:
                    ranges.append([value])
            texts[name] = ", ".join(_range(each[0], choices[name][each[-1]]) for each in ranges)
        return texts

    @property
    def given(self) -> list[dict[str, str]]:
        """What makes up each of the sets."""
        return [dict(zip(self.values, each, strict=True)) for each in product(*self.values.values())]


def _range(first: str, last: str) -> str:
    if first.startswith(last + "."):
        return f"{first} and later"
    return first if first == last else f"{first} … {last}"


def folded(sets: Sequence[Judged], choices: Choices, *, exact: bool = False) -> list[Row]:
    """The sets that ``choices`` make, in their order: neighbours with the same answer are one row.

    exact: whether the same rules speak about all sets of a row; else one that decides is enough.  A row never lacks a
    warning about what is allowed.
    """
    subjects = sorted(choices, key=lambda subject: len(choices[subject]))
    places = {name: {value: at for at, value in enumerate(choices[name])} for name in subjects}

    def place(row: Row) -> list[int]:
        return [places[name][values[0]] for name, values in row.values.items()]

    rows = [Row({name: (each.values[name],) for name in subjects}, each, each.decides) for each in sets]
    for subject in subjects:
        lines: dict[tuple[tuple[str, ...], ...], list[Row]] = {}
        for row in sorted(rows, key=place):
            line = lines.setdefault(tuple(values for name, values in row.values.items() if name != subject), [])
            before = line[-1].values[subject] if line else ()
            after = row.values[subject]
            if line and places[subject][before[-1]] + 1 == places[subject][after[0]] and line[-1].goes_on(row, exact):
                decides = line[-1].decides & row.decides
                line[-1] = Row({**row.values, subject: before + after}, line[-1].first, decides)
            else:
                line.append(row)
        rows = [row for line in lines.values() for row in line]
    return sorted(rows, key=place)


#: What makes up each of the sets of a row.
Given = Sequence[Mapping[str, str]]


def nearest(judge: Judge, judged: Judged, given: Given) -> list[dict[str, str]]:
    """Changes that each make sets fit that are refused or unknown: subject → version expression, as pins have them.

    As few parts as possible: first without another kernel, then with one.
    """
    if judged.kind in (WARNED, FITS) or len(given) > _FEW:
        return []
    bad = [verdict.subjects for verdict in judged.verdicts if verdict.kind in (REFUSED, UNKNOWN)]
    about = set[str]().union(*bad)
    changed = [part for part in _CHANGED if judged.combination.get(part) is not None and about & _with_its([part])]
    if judged.combination.get("driver_origin") not in ("nvidia", None):
        # The versions that are known are NVIDIA's.
        changed = [part for part in changed if part != "driver"]
    answers: list[dict[str, str]] = []
    for keeps in (True, False):
        for number in range(1, len(changed) + 1):
            found = [
                answer
                for parts in combinations(changed, number)
                if ("kernel" in parts) != keeps and all(_with_its(parts) & subjects for subjects in bad)
                for answer in _changes_of(judge, judged, given, parts)
            ]
            answers += found
            if found:
                break
    return answers


def _changes_of(judge: Judge, judged: Judged, given: Given, subjects: Sequence[str]) -> Iterator[dict[str, str]]:
    """Changes of all these parts with which the set fits."""
    first, *later = subjects
    for version, value in _nearest(judge, judged, given, first, later):
        changed = [{**each, first: value} for each in given]
        for answer in islice(_changes_of(judge, judged, changed, later), 1) if later else [{}]:
            yield {first: version, **answer}


def _nearest(
    judge: Judge, judged: Judged, given: Given, subject: str, without: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """(version expression, version in it) of one part with which the rest fits, but for the parts ``without``.

    The nearest of the same branch, and the nearest of another.
    """
    dropped = _with_its((subject, *without))
    rests = {tuple((name, value) for name, value in each.items() if name not in dropped) for each in given}

    def fits(version: str) -> bool:
        return all(judge.judge({**dict(rest), subject: version}, dropped).kind in (WARNED, FITS) for rest in rests)

    value = judged.combination[subject]
    present = value[0] if isinstance(value, compat.Version) else str(value)
    versions = known_versions(subject)
    order = version_order(present)
    older = [version for version in reversed(versions) if version_order(version) < order]
    newer = [version for version in versions if version_order(version) > order]
    if subject == "kernel":
        own = flavour_of(judged.values[subject])
        # Who has such a kernel can't take another series of mainline.
        groups = [] if own and own.vendor in ("rhel", "amazon") else [older + newer]
    else:
        branch = _branch(subject, present)
        groups = [[v for v in newer + older if (_branch(subject, v) == branch) is same] for same in (True, False)]
    for group in groups:
        for found in islice(filter(fits, group), 1):
            yield (_kernels(found, fits) if subject == "kernel" else found), found


def _kernels(version: str, fits: Any) -> str:
    """A kernel's series, if all of it fits, else the part of it that begins with ``version``."""
    series = _series(version)
    points = [each for each in known_versions("kernel") if _series(each) == series]
    if all(map(fits, points)):
        return series
    end = next((each for each in points if version_order(each) > version_order(version)), None)
    major, minor = series.split(".")
    return f">={version}, <{end or f'{major}.{int(minor) + 1}'}"


#: How a verdict was found: Rule.known in words.
_KNOWN: Final = {"measured": "measured", "source": "read in the source", "documentation": "documented or reported"}


def render(sets: Sequence[Judged], choices: Choices, judge: Judge, width: int, *, verbose: bool = False) -> str:
    """Lines of at most ``width`` characters, but for longer words; nothing is cut.

    Sets with the same answer are shown with its reasons, others as a table.
    """
    rows = folded(sets, choices, exact=True)
    if len(rows) > 1 and not verbose:
        rows = folded(sets, choices)
        if len(rows) == 1:
            # What decides all of them: some have other reasons, too.
            of_all = tuple(each for each in rows[0].first.verdicts if each.rule in rows[0].decides)
            rows = [replace(rows[0], first=replace(rows[0].first, verdicts=of_all))]
    if len(rows) == 1:
        return joined(_one(rows[0], choices, judge, width, verbose))
    return joined(_table(rows, choices, judge, width))


def _one(row: Row, choices: Choices, judge: Judge, width: int, verbose: bool) -> Iterator[str]:
    judged = row.first
    names = _names(row.shown(choices), judge)
    yield from wrapped(f"{judged.kind}: {names or 'nothing'}", "", width)
    topics: dict[str, list[Verdict]] = {_pair(pair): [] for pair in compat.PAIRS}
    worst_first = sorted(judged.verdicts, key=lambda verdict: KINDS.index(verdict.kind))
    for verdict in worst_first:
        topics.setdefault(_topic(verdict), []).append(verdict)
    table = list[tuple[str, str, str]]()
    for topic, verdicts in topics.items():
        kind = verdicts[0].kind if verdicts else "runs" if topic in map(_pair, judged.runs) else ""
        if kind and (verbose or topic in map(_pair, compat.PAIRS) or kind != FITS):
            table.append((topic, kind, _decisive([judge.rule(each) for each in verdicts if each.kind == kind], kind)))
    if table:
        yield ""
        yield from _columns(table, width, "  ")
    answers = nearest(judge, judged, row.given)
    if answers:
        yield from _paragraph("These fit instead, at most with warnings:", width)
    for answer in answers:
        yield from wrapped(" and ".join(f"{shown(name)} {version}" for name, version in answer.items()), "  - ", width)
    for words in _advice(judged, judge):
        yield from _paragraph(words, width)
    for verdict in worst_first:
        if verbose or verdict.kind != FITS or verdict.rule not in judge.rules:
            yield from _reason(judge.rule(verdict), verdict.kind, width)
    for words in _lacks(judge.host, verbose) if judge.host else ():
        yield from _paragraph(words, width)
    yield from _assumed([judged], width)


def _names(texts: Mapping[str, str], judge: Judge) -> str:
    """The parts of a set, as a heading has them."""
    names = [f"{shown(name)} {texts[name]}" for name in compat.SUBJECTS if name in texts]
    return ", ".join([*names, *([f"on {judge.host.name}"] if judge.host else [])])


def _paragraph(text: str, width: int) -> Iterator[str]:
    yield ""
    yield from wrapped(text, "", width)


def _advice(judged: Judged, judge: Judge) -> Iterator[str]:
    """What to do where a set is refused or unknown, beside taking other versions."""
    if judged.kind in (WARNED, FITS):
        return
    if not judged.verdicts:
        words = "No rule is about these parts together."
        if judge.host and judge.host.parts.get("driver", "") is None:
            words += " To see which drivers fit its kernel, add --driver all."
        yield words
        return
    whose = False
    for part in filter(judged.combination.get, ("driver", "nvidia_fs")):
        name, origin = shown(part), judged.combination.get(f"{part}_origin")
        if origin == "debian" and f"{part}_package" not in judged.combination:
            yield f"Debian's packages are judged one by one: add, e.g., {name}-package={judged.combination[part]}-1"
        if origin is None and any(part in pair for pair in judged.unjudged):
            whose = True
            yield f"Say who made the {name}: {name}-origin=nvidia, debian or ubuntu."
    named = [part for part in ("driver", "nvidia_fs", "kernel") if part in judged.values]
    doubted = any(verdict.kind == UNKNOWN for verdict in judged.verdicts)
    if doubted and not whose and "kernel" in named and len(named) > 1:
        parts = " ".join(f"--{shown(part)} {judged.values[part]}" for part in named)
        yield f"To find out, build it in a throwaway root: gdsdeploy kmod preflight FLEET {parts}"


def _assumed(sets: Sequence[Judged], width: int) -> Iterator[str]:
    """What is assumed of all sets alike."""
    alike = set.intersection(*({*judged.assumed.items()} for judged in sets))
    words = ", ".join(f"{shown(name)}={value}" for name, value in sorted(alike))
    if words:
        yield from _paragraph(f"Assumed, because no word says otherwise: {words}", width)


def _reason(rule: Rule, kind: str, width: int) -> Iterator[str]:
    yield from _paragraph(f"{kind}: {rule.says.strip()} [{rule.id}]", width)
    if rule.fixed and kind != FITS:
        yield from wrapped(f"fixed by: {rule.fixed}", "    ", width)
    if rule.source:
        yield from wrapped(f"{_KNOWN[rule.known]}: {rule.source.strip()}", "    ", width)


def _topic(verdict: Verdict) -> str:
    """The pair that a verdict is about, or all of its subjects."""
    pairs = [pair for pair in compat.PAIRS if set(pair) <= verdict.subjects]
    # The build of nvidia-fs is about the driver, too.
    pairs.sort(key=lambda pair: "nvidia_fs" not in pair)
    subjects = [name for name in compat.SUBJECTS if name in verdict.subjects and not name.endswith("_origin")]
    return _pair(pairs[0] if pairs else subjects)


def _decisive(rules: Sequence[Rule], kind: str) -> str:
    """The rules behind a line of the table."""
    if kind == FITS and len(rules) > 2:
        return f"{len(rules)} rules ({', '.join(dict.fromkeys(rule.known for rule in rules))})"
    return ", ".join(f"{rule.id} ({rule.known})" if rule.source else "no rule speaks about it" for rule in rules)


def _lacks(host: Host, verbose: bool) -> Iterator[str]:
    """What the host lacks, and what isn't known of it."""
    lacks = [shown(part) for part in ("driver", "nvidia_fs", "libcufile") if host.parts.get(part, "") is None]
    if lacks:
        yield f"Not there: {', '.join(lacks)}"
    reasons: dict[str, list[str]] = {}
    for name, reason in host.unknown.items():
        if verbose or name in PARTS:
            reasons.setdefault(reason, []).append(shown(name))
    yield from (f"Not known: {', '.join(names)}: {reason}" for reason, names in reasons.items())


def _table(rows: Sequence[Row], choices: Choices, judge: Judge, width: int) -> Iterator[str]:
    shown_rows = [row.shown(choices) for row in rows]
    varies = [name for name in rows[0].values if len({texts[name] for texts in shown_rows}) > 1]
    names = _names({name: text for name, text in shown_rows[0].items() if name not in varies}, judge)
    if names:
        yield from wrapped(f"With {names}:", "", width)
        yield ""
    table = [(*map(shown, varies), "verdict", "decided by")]
    decisive = dict[str, Verdict]()
    for row, texts in zip(rows, shown_rows, strict=True):
        decides = {verdict.rule: verdict for verdict in row.first.verdicts if verdict.rule in row.decides}
        table.append((*(texts[name] for name in varies), row.first.kind, ", ".join(decides)))
        decisive |= decides
    yield from _columns(table, width, "")
    for verdict in decisive.values():
        yield from _reason(judge.rule(verdict), verdict.kind, width)
    yield from _assumed([row.first for row in rows], width)


def _columns(table: Sequence[Sequence[str]], width: int, indent: str) -> Iterator[str]:
    """Aligned rows, whose last cell is wrapped; below its row where it has too little room."""
    heads = aligned([row[:-1] for row in table], indent)
    column = max(map(len, heads)) + 2
    for head, row in zip(heads, table, strict=True):
        if column + 24 <= width:
            yield from wrapped(row[-1], head.ljust(column), width) or [head]
        else:
            yield head
            yield from wrapped(row[-1], indent + "    ", width)


def why(sets: Sequence[Judged]) -> str:
    """Why none of the sets fits."""
    if len(sets) > 1:
        return f"none of {len(sets)} sets fits"
    decides = ", ".join(name for name, _ in sets[0].says if name in sets[0].decides)
    if not decides:
        return "no rule is about these parts together"
    return f"refused by {decides}" if sets[0].kind == REFUSED else f"no source tells whether it fits: {decides}"


def document(sets: Sequence[Judged], choices: Choices, judge: Judge) -> dict[str, Any]:
    """The answer as JSON values.  Of many sets, nothing nearer is looked for."""
    return {
        "version": VERSION,
        "host": judge.host.name if judge.host else None,
        "sets": [
            {
                **judged.values,
                "verdict": judged.kind,
                "rules": [_rule(rule, each) for each in judged.verdicts if (rule := judge.rule(each)).source],
                "unknown": judged.unjudged,
                "runs": judged.runs,
                "assumed": judged.assumed,
                "nearest": nearest(judge, judged, [{name: judged.values[name] for name in choices}])
                if len(sets) <= _SEVERAL
                else None,
            }
            for judged in sets
        ],
    }


def _rule(rule: Rule, verdict: Verdict) -> dict[str, str]:
    words = {"says": rule.says.strip(), "known": rule.known, "source": rule.source.strip(), "fixed": rule.fixed}
    return {"id": rule.id, "verdict": verdict.kind, **words}
