"""Which versions go together, without a fleet: sets of versions, judged by the rules of compat.yml.

docs/fits.md has the words, the JSON object and the exit codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import combinations, islice, product
from math import prod
from os import uname
from typing import Any, Final, NamedTuple

from gdsdeploy import lock
from gdsdeploy.errors import NameUnknown, did_you_mean
from gdsdeploy.files import yamlfile
from gdsdeploy.fleetfile.rules import WORDS
from gdsdeploy.host.facts import HostFacts, Unknown
from gdsdeploy.host.facts.unknown import if_known, known
from gdsdeploy.host.io.wording import aligned, joined, wrapped
from gdsdeploy.host.kmod.flavour import flavour_of, has_nvme_hooks
from gdsdeploy.host.model import compat
from gdsdeploy.host.model.compat import FITS, KINDS, REFUSED, UNKNOWN, WARNED, Rule, Value, Verdict, version_order
from gdsdeploy.host.subjects import stack
from gdsdeploy.preflight.record import kept, with_records

VERSION: Final = 1
#: Most sets that are judged at once.
MOST: Final = 4000
ALL: Final = "all"
#: Of which the rules and the tags know versions, in the order of the output.
PARTS: Final = ("driver", "kernel", "nvidia_fs", "libcufile", "cuda")
#: Parts of which a branch stands for the versions in it that are known.
_BRANCHES: Final = ("driver", "nvidia_fs")
#: Most sets of a row for which nearer versions are looked for.
_FEW: Final = 16
#: What a user can change, the easiest first.
_CHANGED: Final = ("driver", "nvidia_fs", "libcufile", "kernel")
#: Pairs of which one is compiled against the other.
_BUILT: Final = (("driver", "kernel"), ("nvidia_fs", "kernel"), ("nvidia_fs", "driver"))
_BUILDS: Final = ("driver", "nvidia_fs", "kernel")
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


class Choice(NamedTuple):
    """One value of a subject; ``last`` is the last version that it stands for, as a user reads it."""

    value: str
    last: str


#: Subject → what was given of it.
Choices = Mapping[str, Sequence[Choice]]


def shown(subject: str) -> str:
    """As a user writes it."""
    return subject.replace("_", "-")


def _shipped(name: str) -> Any:
    """What a file of the folder lock has."""
    return yamlfile.shipped(resources.files(lock).joinpath(name).read_text(encoding="utf-8"))


@cache
def _tags() -> dict[str, list[str]]:
    """Module → its releases that were read."""
    return {
        name: [tag for tags in block["tags"].values() for tag in tags] for name, block in _shipped("tags.yml").items()
    }


@cache
def _cuda() -> dict[str, str]:
    """The first two numbers of a libcufile → the release of CUDA that it came with."""
    return {row["libcufile"]: row["cuda"] for row in _shipped("cuda.yml") if {"cuda", "libcufile"} <= row.keys()}


@cache
def known_versions(subject: str) -> tuple[str, ...]:
    """The versions of one of PARTS that its tags have or a rule names, the oldest first.

    Of kernels, two that follow each other have no other between them about which a rule says something else.
    """
    named = set[str]()
    for rule in compat.rules_with(()):
        for effect in (rule.when, rule.needs, rule.refuses, rule.warns, rule.doubts):
            named |= {version for text in effect.get(subject, ()) for version in _UPSTREAM.findall(text)}
    if subject == "kernel":
        named |= {_series(version) for version in named}
    elif subject in _BRANCHES:
        named = _releases(subject, named)
    return tuple(sorted(named, key=version_order))


def _releases(subject: str, named: set[str]) -> set[str]:
    """The tags, and of versions that rules name those that are newer than the tags of their branch."""
    newest: dict[str, Any] = {}
    for tag in _tags().get(subject, ()):
        branch = _branch(subject, tag)
        newest[branch] = max(version_order(tag), newest.get(branch, version_order("0")))
    oldest = min(map(version_order, _tags().get(subject, ())), default=version_order("0"))
    later = {v for v in named if version_order(v) > newest.get(_branch(subject, v), oldest)}
    # Rules name branches, too.
    later = {version for version in later if not any(other.startswith(version + ".") for other in named)}
    return {*_tags().get(subject, ()), *later}


def _branch(subject: str, version: str) -> str:
    """580 of a driver; 2.28 of nvidia-fs."""
    return version.split(".")[0] if subject == "driver" else _series(version)


def _series(version: str) -> str:
    """The first two numbers."""
    return ".".join(version.split(".")[:2])


def read(words: Iterable[str], *, alone: bool) -> dict[str, tuple[Choice, ...]]:
    """Subject → its versions or words, from ``SUBJECT=VALUE[,VALUE…]``; raises NameUnknown.

    alone: whether nothing else is known of the set, as of a host.
    """
    choices: dict[str, tuple[Choice, ...]] = {}
    for word in words:
        name, _, text = word.partition("=")
        subject = name.strip().lower().replace("-", "_")
        if not text or not name:
            raise NameUnknown(f"{word!r} isn't written like driver=580.126.09", hint=EXAMPLES)
        if subject not in compat.SUBJECTS:
            names = list(map(shown, compat.SUBJECTS))
            near = did_you_mean(shown(subject), names)
            raise NameUnknown(f"there is no {name!r}{near}", hint=f"There are {', '.join(names)}")
        if subject in choices:
            raise NameUnknown(f"{shown(subject)} stands there twice; separate versions with commas")
        values = [value.strip() for value in text.split(",") if value.strip()]
        found = {each.value: each for value in values for each in _values(subject, value)}
        order = version_order if subject in compat.VERSIONS else list(found).index
        choices[subject] = tuple(found[value] for value in sorted(found, key=order))
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


def _values(subject: str, text: str) -> Iterable[Choice]:
    """What one text of a list stands for; raises NameUnknown."""
    if subject == "kernel" and (text == ALL or re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}", text)):
        points = [v for v in known_versions(subject) if text in (ALL, _series(v))] or [text]
        for point, after in zip(points, [*points[1:], ""], strict=True):
            series = _series(point)
            last = int(after.split(".")[2]) - 1 if after and _series(after) == series else None
            yield Choice(point, series if last is None else f"{series}.{last}")
    else:
        yield from (Choice(value, value) for value in _words(subject, text))


def _words(subject: str, text: str) -> Sequence[str]:
    if subject not in compat.VERSIONS:
        word = text.lower()
        words = WORDS.get(subject, (word,))
        if word == ALL and subject in WORDS:
            return words
        if not _WORD.fullmatch(word) or word not in words:
            near = did_you_mean(word, words) or (f"; there are {', '.join(words)}" if subject in WORDS else "")
            raise NameUnknown(f"{shown(subject)}: there is no {text!r}{near}")
        return (word,)
    if text == ALL and subject in PARTS:
        return known_versions(subject)
    _require_version(subject, text)
    versions = known_versions(subject) if subject in PARTS else ()
    if subject not in _BRANCHES or text in versions:
        return (text,)
    within = tuple(version for version in versions if version.startswith(text + "."))
    if not within and "." not in text:
        branches = list(dict.fromkeys(version.split(".")[0] for version in versions))
        raise NameUnknown(
            f"{shown(subject)}: no version of a branch {text} is known",
            hint=f"Write a whole version, such as {versions[-1]}, or one of the branches {', '.join(branches)}",
        )
    return within or (text,)


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
    verdicts: tuple[Verdict, ...]
    #: pairs that no rule speaks about
    unjudged: tuple[tuple[str, str], ...]
    #: pairs that run on the host
    runs: tuple[tuple[str, str], ...] = ()

    @cached_property
    def kind(self) -> str:
        """The worst of what is known: one of compat.KINDS."""
        kinds = {verdict.kind for verdict in self.verdicts}
        kinds |= {UNKNOWN} if self.unjudged or not (self.verdicts or self.runs) else set()
        return next((kind for kind in KINDS if kind in kinds), FITS)

    @property
    def decides(self) -> frozenset[str]:
        """Rules of that kind, and pairs that no rule speaks about; nothing where all fits."""
        return frozenset(name for name, kind in self.says if kind == self.kind)

    @cached_property
    def says(self) -> tuple[tuple[str, str], ...]:
        """(rule or pair, kind) of all that doesn't fit."""
        rules = [(verdict.rule, verdict.kind) for verdict in self.verdicts if verdict.kind != FITS]
        return (*rules, *((_pair(pair), UNKNOWN) for pair in self.unjudged))


class Judge:
    """Judges sets; of a host, what isn't given is what it has."""

    def __init__(self, host: Host | None = None) -> None:
        self.host = host
        self.rules = {rule.id: rule for rule in compat.rules_with(host.rules if host else ())}
        self._rules_about = cache(self._asking_about)
        self._records = tuple(kept())

    def _asking_about(self, subjects: frozenset[str]) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules.values() if rule.looks_at <= subjects)

    def judge(self, given: Mapping[str, str], dropped: Iterable[str] = ()) -> Judged:
        """given: subject → one value each.  dropped: what doesn't count of the host."""
        replaced = {name for subject in given for name in (subject, *_OF.get(subject, ()))} | set(dropped)
        parts = {k: v for k, v in (self.host.parts if self.host else {}).items() if k not in replaced}
        for part, follows in _FOLLOWS.items():
            if part in given and self.host and self.host.parts.get(part) is None:
                # What the host has without this part says nothing about it.
                parts.pop(follows, None)
        combination, assumed = _completed(given, parts)
        runs = tuple(
            pair for pair in _BUILT if not replaced & set(pair) and all(parts.get(part) is not None for part in pair)
        )
        rules = [
            rule
            for rule in self._rules_about(frozenset(combination))
            # What is loaded has been built.
            if rule.warns or not any(set(pair) <= rule.looks_at for pair in runs)
        ]
        verdicts = self._with_records(combination, compat.judge(combination, rules))
        doubts = [verdict.subjects for verdict in compat.unknown_pairs(combination, verdicts)]
        unjudged = [pair for pair in compat.PAIRS if set(pair) in doubts and pair not in runs]
        if combination.get("libcufile") and combination.get("driver") and not combination.get("cuda"):
            unjudged.append(("libcufile", "driver"))
        values = {name: str(value) for name, value in combination.items() if value is not None and name not in assumed}
        values |= {"kernel": given.get("kernel") or self.host.release} if self.host else {**given}
        return Judged(values, combination, assumed, tuple(verdicts), tuple(unjudged), runs)

    def _with_records(self, combination: compat.Combination, verdicts: list[Verdict]) -> list[Verdict]:
        """What was built on this machine decides, too."""
        kernel = combination.get("kernel") or ()
        tried = any(record.driver == combination.get("driver") and record.kernel in kernel for record in self._records)
        return with_records(combination, verdicts) if tried else verdicts

    def rule(self, verdict: Verdict) -> Rule:
        """The rule behind a verdict."""
        source = "records of gdsdeploy kmod preflight on this machine"
        return self.rules.get(verdict.rule) or Rule(verdict.rule, verdict.words, "measured", source)

    def all(self, choices: Choices) -> list[Judged]:
        """Each combination of the choices."""
        return [
            self.judge({name: choice.value for name, choice in zip(choices, each, strict=True)})
            for each in product(*choices.values())
        ]


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
    if combination.get("driver") is not None and "flavour" not in combination:
        # The usual one, unless rules say that the GPU can't have it.
        about = {"gpu": combination.get("gpu"), "flavour": "open"}
        refused = any(not verdict.allowed for verdict in compat.judge(about, compat.rules_with(())))
        assumed["flavour"] = "proprietary" if refused else "open"
    return {**combination, **assumed}, assumed


def _pair(pair: Sequence[str]) -> str:
    return " × ".join(map(shown, pair))


@dataclass(frozen=True)
class Row:
    """Sets with the same answer: of each part that varies, versions that follow each other."""

    #: subject → its versions, in order
    versions: Choices
    #: the set of the first versions
    first: Judged
    #: what decides of every set
    decides: frozenset[str]

    def text(self, subject: str) -> str:
        """The versions, as ranges of those that are known to follow each other."""
        known = known_versions(subject) if subject in PARTS else ()
        runs: list[list[Choice]] = []
        for choice in self.versions[subject]:
            after = runs and runs[-1][-1].value in known and known[known.index(runs[-1][-1].value) + 1 :][:1]
            if after == (choice.value,):
                runs[-1].append(choice)
            else:
                runs.append([choice])
        return ", ".join(_range(run[0].value, run[-1].last) for run in runs)

    @property
    def given(self) -> list[dict[str, str]]:
        """What makes up each of the sets."""
        return [
            dict(zip(self.versions, each, strict=True)) for each in product(*map(_each_value, self.versions.values()))
        ]


def _range(first: str, last: str) -> str:
    if first.startswith(last + "."):
        return f"{first} and later"
    return first if first == last else f"{first} … {last}"


def _each_value(choices: Sequence[Choice]) -> list[str]:
    return [choice.value for choice in choices]


@dataclass
class _Block:
    """A row that is being made: of each part the first and the last place in the choices."""

    spans: list[tuple[int, int]]
    first: Judged
    decides: frozenset[str]

    def takes(self, other: _Block, at: int, exact: bool) -> bool:
        """Whether both are one row: in the part ``at``, the other one follows this one."""
        if self.spans[at][1] + 1 != other.spans[at][0]:
            return False
        if any(one != two for i, (one, two) in enumerate(zip(self.spans, other.spans, strict=True)) if i != at):
            return False
        if exact or self.first.kind in (WARNED, FITS):
            return (self.first.kind, self.first.says) == (other.first.kind, other.first.says)
        return self.first.kind == other.first.kind and bool(self.decides & other.decides or not self.first.says)


def folded(sets: Sequence[Judged], choices: Choices, *, exact: bool = False) -> list[Row]:
    """The sets that ``choices`` make, in their order: neighbours with the same answer are one row.

    exact: whether the same rules speak about all sets of a row; else one that decides is enough.  A row never lacks a
    warning about what is allowed.
    """
    subjects = sorted(choices, key=lambda subject: len(choices[subject]))
    order = [list(choices).index(subject) for subject in subjects]
    places = product(*(range(len(values)) for values in choices.values()))
    blocks = [
        _Block([(each[at], each[at]) for at in order], judged, judged.decides)
        for each, judged in zip(places, sets, strict=True)
    ]
    for at in range(len(subjects)):
        blocks.sort(key=lambda block: (*block.spans[:at], *block.spans[at + 1 :], block.spans[at]))
        merged: list[_Block] = []
        for block in blocks:
            if merged and merged[-1].takes(block, at, exact):
                merged[-1].spans[at] = (merged[-1].spans[at][0], block.spans[at][1])
                merged[-1].decides &= block.decides
            else:
                merged.append(block)
        blocks = merged
    blocks.sort(key=lambda block: [first for first, _ in block.spans])
    return [
        Row(
            {name: choices[name][first : last + 1] for name, (first, last) in zip(subjects, block.spans, strict=True)},
            block.first,
            block.decides,
        )
        for block in blocks
    ]


#: What makes up each of the sets of a row.
Given = Sequence[Mapping[str, str]]


def nearest(judge: Judge, judged: Judged, given: Given) -> list[dict[str, str]]:
    """Changes that each make sets fit that are refused or unknown: subject → version expression, as pins have them.

    As few parts as possible: first without another kernel, then with one.
    """
    if judged.kind in (WARNED, FITS) or len(given) > _FEW:
        return []
    bad = [verdict.subjects for verdict in judged.verdicts if verdict.kind in (REFUSED, UNKNOWN)]
    bad += map(frozenset, judged.unjudged)
    about = set[str]().union(*bad)
    if "cuda" in about:
        about.add("libcufile")
    if judged.combination.get("driver_origin") not in ("nvidia", None):
        # The versions that are known are NVIDIA's.
        about -= {"driver"}
    changed = [subject for subject in _CHANGED if subject in about and judged.combination.get(subject) is not None]

    def can_help(subset: Sequence[str]) -> bool:
        about = {*subset, *(name for part in subset for name in _OF.get(part, ()))}
        return all(about & subjects for subjects in bad)

    answers: list[dict[str, str]] = []
    for keeps in (True, False):
        for number in range(1, len(changed) + 1):
            subsets = [each for each in combinations(changed, number) if ("kernel" in each) != keeps and can_help(each)]
            found = [answer for subset in subsets for answer in _changes_of(judge, judged, given, subset)]
            answers += found
            if found:
                break
    return answers


def _changes_of(judge: Judge, judged: Judged, given: Given, subjects: Sequence[str]) -> Iterator[dict[str, str]]:
    """Changes of all these parts with which the set fits."""
    first, *later = subjects
    for version, value in _nearest(judge, judged, given, first, later):
        if not later:
            yield {first: version}
            continue
        for answer in islice(_changes_of(judge, judged, [{**each, first: value} for each in given], later), 1):
            yield {first: version, **answer}


def _nearest(
    judge: Judge, judged: Judged, given: Given, subject: str, without: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """(version expression, version in it) of one part with which the rest fits, but for the parts ``without``.

    The nearest of the same branch, and the nearest of another.
    """
    dropped = {name for part in (subject, *without) for name in (part, *_OF.get(part, ()))}
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
        own = flavour_of(str(judged.values[subject]))
        # Who has such a kernel can't take another series of mainline.
        found = None if own and own.vendor in ("rhel", "amazon") else next(filter(fits, (*older, *newer)), None)
        if found:
            yield _kernels(found, fits), found
        return
    branch = _branch(subject, present)
    same = [version for version in (*newer, *older) if _branch(subject, version) == branch]
    other = [version for version in (*newer, *older) if version not in same]
    for candidates in (same, other):
        yield from ((version, version) for version in islice(filter(fits, candidates), 1))


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
    if len(rows) == 1:
        return joined(_one(rows[0], judge, width, verbose))
    return joined(_table(rows if verbose else folded(sets, choices), judge, width))


def _one(row: Row, judge: Judge, width: int, verbose: bool) -> Iterator[str]:
    judged = row.first
    yield from wrapped(f"{judged.kind}: {', '.join(_names(row, judge)) or 'nothing'}", "", width)
    pairs = {*map(_pair, compat.PAIRS)}
    topics = {topic: kind for topic, kind in _topics(judged).items() if verbose or topic in pairs or kind != FITS}
    if topics:
        yield ""
    table = [(topic, kind, _decisive(topic, kind, judge, judged)) for topic, kind in topics.items()]
    yield from _columns(table, width, "  ")
    yield from _advice(row, judge, width)
    for kind in KINDS:
        for verdict in judged.verdicts:
            if verdict.kind == kind and (verbose or kind != FITS or verdict.rule not in judge.rules):
                yield from _reason(judge.rule(verdict), kind, width)
        if kind == UNKNOWN and judged.unjudged:
            yield from _paragraph(f"unknown: No source tells whether {_all_pairs(judged.unjudged)} go together.", width)
    yield from _host(judge, width, verbose)
    yield from _assumed([judged], width)


def _all_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"this {shown(one)} and this {shown(two)}" for one, two in pairs)


def _names(row: Row, judge: Judge) -> list[str]:
    """The parts of a set, as a heading has them."""
    names = [name for name in compat.SUBJECTS if name in row.versions or (name in PARTS and name in row.first.values)]
    values = [f"{shown(name)} {row.text(name) if name in row.versions else row.first.values[name]}" for name in names]
    return [*values, *([f"on {judge.host.name}"] if judge.host else [])]


def _paragraph(text: str, width: int) -> Iterator[str]:
    yield ""
    yield from wrapped(text, "", width)


def _advice(row: Row, judge: Judge, width: int) -> Iterator[str]:
    """What to do where a set is refused or unknown."""
    judged = row.first
    if judged.kind in (WARNED, FITS):
        return
    if not (judged.verdicts or judged.unjudged):
        words = "No rule is about these parts together."
        if judge.host and judge.host.parts.get("driver", "") is None:
            words += " To see which drivers fit its kernel, add --driver all."
        yield from _paragraph(words, width)
        return
    answers = nearest(judge, judged, row.given)
    if answers:
        yield from _paragraph("These fit instead, at most with warnings:", width)
    for answer in answers:
        yield from wrapped(" and ".join(f"{shown(name)} {version}" for name, version in answer.items()), "  - ", width)
    for part in ("driver", "nvidia_fs"):
        package = f"{part}_package"
        if judged.combination.get(f"{part}_origin") == "debian" and package not in judged.combination:
            version = f"{judged.combination[part]}-1"
            yield from _paragraph(
                f"Debian's packages are judged one by one: add, e.g., {shown(package)}={version}", width
            )
    whose = [part for part in ("driver", "nvidia_fs") if judged.combination.get(part) and _open(judged, part)]
    for part in whose:
        words = f"Say who made the {shown(part)}: {shown(part)}-origin=nvidia, debian or ubuntu."
        yield from _paragraph(words, width)
    built = {"driver", "kernel"} <= judged.values.keys() or {"nvidia_fs", "kernel"} <= judged.values.keys()
    if built and not whose and (judged.unjudged or any(verdict.kind == UNKNOWN for verdict in judged.verdicts)):
        parts = [f"--{shown(part)} {judged.values[part]}" for part in _BUILDS if part in judged.values]
        words = f"To find out, build it in a throwaway root: gdsdeploy kmod preflight FLEET {' '.join(parts)}"
        yield from _paragraph(words, width)


def _open(judged: Judged, part: str) -> bool:
    """Whether no rule speaks about a pair of this part because its maker isn't known."""
    return f"{part}_origin" not in judged.combination and any(part in pair for pair in judged.unjudged)


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
    yield from wrapped(_source(rule), "    ", width)


def _source(rule: Rule) -> str:
    return f"{_KNOWN[rule.known]}: {rule.source.strip()}"


def _topics(judged: Judged) -> dict[str, str]:
    """What verdicts are about → the worst of them: pairs first, in their order."""
    kinds = {_pair(pair): UNKNOWN for pair in judged.unjudged}
    for verdict in judged.verdicts:
        topic = _topic(verdict)
        kinds[topic] = min(kinds.get(topic, FITS), verdict.kind, key=KINDS.index)
    kinds = {_pair(pair): _RUNS for pair in judged.runs} | kinds
    order = list(map(_pair, compat.PAIRS))
    return dict(sorted(kinds.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


_RUNS: Final = "runs"


def _topic(verdict: Verdict) -> str:
    """The pair that a verdict is about, or all of its subjects."""
    pairs = [pair for pair in compat.PAIRS if set(pair) <= verdict.subjects]
    # The build of nvidia-fs is about the driver, too.
    pairs.sort(key=lambda pair: "nvidia_fs" not in pair)
    subjects = [name for name in compat.SUBJECTS if name in verdict.subjects and not name.endswith("_origin")]
    return _pair(pairs[0] if pairs else subjects)


def _decisive(topic: str, kind: str, judge: Judge, judged: Judged) -> str:
    """The rules behind a line of the table."""
    rules = [judge.rule(verdict) for verdict in judged.verdicts if (_topic(verdict), verdict.kind) == (topic, kind)]
    if kind == FITS and len(rules) > 2:
        return f"{len(rules)} rules ({', '.join(dict.fromkeys(rule.known for rule in rules))})"
    otherwise = "no rule speaks about it" if kind == UNKNOWN else ""
    return ", ".join(f"{rule.id} ({rule.known})" for rule in rules) or otherwise


def _host(judge: Judge, width: int, verbose: bool) -> Iterator[str]:
    """What the host lacks, and what isn't known of it."""
    if judge.host is None:
        return
    lacks = [shown(part) for part in ("driver", "nvidia_fs", "libcufile") if judge.host.parts.get(part, "") is None]
    if lacks:
        yield from _paragraph(f"Not there: {', '.join(lacks)}", width)
    reasons: dict[str, list[str]] = {}
    for name, reason in judge.host.unknown.items():
        if verbose or name in PARTS:
            reasons.setdefault(reason, []).append(shown(name))
    for reason, names in reasons.items():
        yield from _paragraph(f"Not known: {', '.join(names)}: {reason}", width)


def _table(rows: Sequence[Row], judge: Judge, width: int) -> Iterator[str]:
    varies = [name for name in rows[0].versions if len({row.versions[name] for row in rows}) > 1]
    fixed = Row(
        {name: value for name, value in rows[0].versions.items() if name not in varies}, rows[0].first, frozenset()
    )
    names = [name for name in _names(fixed, judge) if name.split()[0] not in map(shown, varies)]
    if names:
        yield from wrapped(f"With {', '.join(names)}:", "", width)
        yield ""
    table = [(*map(shown, varies), "verdict", "decided by")]
    for row in rows:
        decides = [name for name, _ in row.first.says if name in row.decides]
        table.append((*map(row.text, varies), row.first.kind, ", ".join(decides)))
    yield from _columns(table, width, "")
    decisive = {v.rule: judge.rule(v) for row in rows for v in row.first.verdicts if v.rule in row.decides}
    for rule in decisive.values():
        yield from _paragraph(f"[{rule.id}] {rule.says.strip()}", width)
        yield from wrapped(_source(rule), "    ", width)
    yield from _assumed([row.first for row in rows], width)


def _columns(table: Sequence[Sequence[str]], width: int, indent: str) -> Iterator[str]:
    """Aligned rows, whose last cell is wrapped; below its row where it has too little room."""
    heads = aligned([row[:-1] for row in table], indent)
    column = max(map(len, heads), default=0) + 2
    for head, row in zip(heads, table, strict=True):
        if column + 24 <= width:
            lines = wrapped(row[-1], " " * column, width) or [""]
            yield (head.ljust(column) + lines[0].strip()).rstrip()
            yield from lines[1:]
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
    """The answer as JSON values.  Of several sets, nothing nearer is looked for."""
    given = {name: values[0].value for name, values in choices.items()}
    return {
        "version": VERSION,
        "host": judge.host.name if judge.host else None,
        "sets": [
            {
                **judged.values,
                "verdict": judged.kind,
                "rules": [_rule(judge.rule(verdict), verdict) for verdict in judged.verdicts],
                "unknown": judged.unjudged,
                "runs": judged.runs,
                "assumed": judged.assumed,
                "nearest": nearest(judge, judged, [given]) if len(sets) == 1 else None,
            }
            for judged in sets
        ],
    }


def _rule(rule: Rule, verdict: Verdict) -> dict[str, str]:
    words = {"says": rule.says.strip(), "known": rule.known, "source": rule.source.strip(), "fixed": rule.fixed}
    return {"id": rule.id, "verdict": verdict.kind, **words}
