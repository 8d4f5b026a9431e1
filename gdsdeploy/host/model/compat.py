"""Compatibility rules: which versions go together.  Pure.

gdsdeploy/lock/compat.yml has the rules.  ``python -m docs.gen.compat_rules`` writes them into data/compat.json, for
programs without a YAML parser.

Version expressions: one grammar and one order for the pins of a fleet file and the conditions of compat.yml.

``newest``              anything
``550``                 a branch: 550 itself and whatever follows it after ``.``, ``-``, ``+`` or ``~``
``550.163.01``          likewise, so an exact version where nothing follows
``==550.163.01``        this version: equal in all that is written
``>=550, <560``         bounds, all of which hold
``!=2.25.6``            everything but this branch

A version has several names, and is compared by the one that is written as the expression is: 6.8.0 by upstream's
version, 6.8.0-90 by the kernel's ABI, 6.8.0-90.91 by its package's version, 3:580 with the epoch.  What isn't written
isn't compared.  The order is dpkg's: numbers by value, and ``~`` before the end, so that 6.12~rc1 comes before 6.12.
The controller and the program on hosts both use this module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import (
    AbstractSet,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from .. import data
from ..kmod.flavour import flavour_of

#: What compat.yml has version expressions about, and how these versions are written; conditions on anything else
#: compare words.
VERSIONS: Mapping[str, Tuple[str, ...]] = {
    "driver": ("580.95.05",),
    "driver_package": ("580.95.05-0ubuntu1", "3:580.95.05-1.el9"),
    "kernel": ("6.8.0", "6.8.0-90", "6.8.0-90-generic", "5.14.0-570.12.1.el9_6.x86_64"),
    "kernel_package": ("6.8.0-90.91", "5.14.0-570.12.1.el9_6"),
    "nvidia_fs": ("2.26.6",),
    "nvidia_fs_package": ("2.26.6-1", "2.19.7~12.4.1-2"),
    "libcufile": ("1.15.1.6",),
    "cuda": ("13.0",),
    "doca": ("3.3.0",),
    "dkms": ("3.2.2",),
}
_TERM = re.compile(r"^(<=|>=|==|!=|<|>|=)?\s*([0-9][0-9A-Za-z.+~:_-]*)$")
#: A version that has a place in an order: [EPOCH:]UPSTREAM[-REVISION].
_ORDERED = re.compile(r"^(?:[0-9]+:)?[0-9A-Za-z.+~:_-]*[0-9A-Za-z.+~]$")
_CONTINUES = (".", "-", "+", "~")
_BOUNDS = ("<", "<=", ">", ">=")
_EPOCH = re.compile(r"([0-9]+):")
#: Which release of which distribution an rpm package was built for, at the end of its version.
_TAG = re.compile(r"\.(?:el|fc|amzn)[0-9].*$")

#: A part of a version, cut into text and number by turns.
_Part = List[Tuple[Tuple[int, ...], int]]
_END = ((0,), 0)


class Version(Tuple[str, ...]):
    """One version under all of its names: upstream's first, its package's last."""

    __slots__ = ()

    def __str__(self) -> str:
        longest = max(self, key=len)
        return self[0] if longest == self[0] else f"{self[0]} ({longest})"


def kernel_version(release: str, package: str) -> Version:
    """The names of the kernel that ``uname -r`` calls ``release``.

    package: the version of the package that it came in; empty where that isn't known, as of a kernel that a site built.
    """
    package = _EPOCH.sub("", package, 1)
    own, leading = flavour_of(release), re.match(r"[0-9]+(?:\.[0-9]+)*", release)
    upstream = package.split("-", 1)[0] or (leading.group(0) if leading else release)
    # Ubuntu's and Debian's releases end in the flavour, behind the ABI.
    flavour = "-" + own.name if own else ""
    abi = release[: -len(flavour)] if flavour and release.endswith(flavour) else ""
    return Version(dict.fromkeys(filter(None, (upstream, abi, release, package))))


class _Spelling(NamedTuple):
    """A version as it is written; ``epoch`` is None where it has none."""

    epoch: Optional[int]
    #: upstream's version, then the revision or a kernel's ABI, then a kernel's flavour: as many as are written
    parts: Tuple[_Part, ...]
    #: see _TAG
    tag: _Part

    def has_all_of(self, other: _Spelling) -> bool:
        """Whether everything that ``other`` writes is written here."""
        written = (other.epoch is None or self.epoch is not None) and (not other.tag or bool(self.tag))
        return written and len(self.parts) >= len(other.parts)

    def key(self, bound: _Spelling) -> Tuple[int, Tuple[_Part, ...], _Part]:
        """By which it sorts among versions of which what ``bound`` writes is compared."""
        epoch = self.epoch or 0 if bound.epoch is not None else 0
        return epoch, self.parts[: len(bound.parts)], self.tag if bound.tag else []


@lru_cache(maxsize=4096)
def _spelling(version: str) -> _Spelling:
    match = _EPOCH.match(version)
    rest = version[match.end() :] if match else version
    tag = _TAG.search(rest)
    parts = (rest[: tag.start()] if tag else rest).split("-", 2)
    return _Spelling(
        int(match.group(1)) if match else None, tuple(map(_part, parts)), _part(tag.group(0)) if tag else []
    )


def _compare(names: Sequence[str], text: str) -> Optional[int]:
    """-1, 0 or 1: a version with these names is before, at or after ``text``; None: its names don't tell.

    The name that counts has the parts of ``text``.  Of several it is the one that is equal, else the one of the same
    upstream version (Debian's 6.1.0-40 and 6.1.153-1 are one kernel), else the package's.
    """
    bound = _spelling(text)

    def distance(place: int) -> Tuple[bool, int, int, bool, bool, int]:
        name = _spelling(names[place])
        lack = len(bound.parts) - len(name.parts)
        differs = name.key(bound) != bound.key(bound), name.parts[0] != bound.parts[0]
        return (bound.epoch is not None and name.epoch is None, max(lack, 0), max(-lack, 0), *differs, -place)

    name = _spelling(names[min(range(len(names)), key=distance) if len(names) > 1 else 0])
    if len(name.parts) < len(bound.parts):
        bound = bound._replace(parts=bound.parts[: len(name.parts)], tag=[])
        order = None
    else:
        order = 0
    have, wanted = name.key(bound), bound.key(bound)
    return order if have == wanted else -1 if have < wanted else 1


class Term(NamedTuple):
    """One operator and one version; an empty operator asks for a branch."""

    operator: str
    version: str

    def admits(self, names: Sequence[str]) -> Optional[bool]:
        """Whether a version with these names fits; None: none of them tells."""
        order = _compare(names, self.version)
        if self.operator in ("", "!="):
            known = names if ":" in self.version else [_EPOCH.sub("", name, 1) for name in names]
            within = any(n == self.version or n.startswith(tuple(self.version + c for c in _CONTINUES)) for n in known)
            return None if order is None and not within else within is (self.operator == "")
        if order is None:
            return None
        return {
            "<": order < 0, "<=": order <= 0, "=": order == 0, "==": order == 0, ">=": order >= 0, ">": order > 0,
        }[self.operator]  # fmt: skip


class Expression(NamedTuple):
    """Terms that all have to hold; no terms admit anything."""

    terms: Tuple[Term, ...]

    def admits(self, *names: str) -> Optional[bool]:
        """Whether a version that goes by these names fits; None: they don't tell."""
        return _all_of(term.admits(names) for term in self.terms)

    def require_spelling(self, examples: Sequence[str]) -> None:
        """Raise ValueError for a version that isn't written like one of ``examples``: none compares with it."""
        for term in self.terms:
            if not any(_spelling(example).has_all_of(_spelling(term.version)) for example in examples):
                raise ValueError(
                    f"no version is written like {term.version!r} here; they are written like {', '.join(examples)}"
                )


def _all_of(answers: Iterable[Optional[bool]]) -> Optional[bool]:
    """False if one is; else None if one is; else True."""
    present = set(answers)
    return False if False in present else None if None in present else True


@lru_cache(maxsize=4096)
def parse_versions(text: str) -> Expression:
    """Read an expression; raises ValueError that names the invalid part."""
    if text.strip() == "newest":
        return Expression(())
    terms = []
    for part in text.split(","):
        match = _TERM.match(part.strip())
        if match is None:
            raise ValueError(f"not a version expression: {part.strip()!r}")
        term = Term(match.group(1) or "", match.group(2))
        if term.operator in _BOUNDS and not _ORDERED.match(term.version):
            raise ValueError(f"not a version that others can be compared with: {term.version!r}")
        terms.append(term)
    return Expression(tuple(terms))


#: What a combination has of a subject: a word, or a version, with all of its names if it has several.
Value = Union[str, Version]


@lru_cache(maxsize=4096)
def holds(subject: str, texts: Tuple[str, ...], value: Value) -> Optional[bool]:
    """Whether ``value`` meets one of a condition's ``texts``: version expressions, or words with ``!=`` for not.

    In both, a comma joins terms that all have to hold.  None: the version has no name that tells.
    Raises ValueError for an invalid expression about versions.
    """
    if subject in VERSIONS:
        names = value if isinstance(value, Version) else (value,)
        answers = {parse_versions(text).admits(*names) for text in texts}
        return True if True in answers else None if None in answers else False
    return any(all(_is_word(str(value), word.strip()) for word in text.split(",")) for text in texts)


def _is_word(value: str, word: str) -> bool:
    return value != word[2:] if word.startswith("!=") else value == word


@lru_cache(maxsize=4096)
def version_order(version: str) -> Tuple[int, _Part, _Part]:
    """A sort key with dpkg's order for ``[EPOCH:]UPSTREAM[-REVISION]``; never an error."""
    match = re.match(r"([0-9]+):", version)
    epoch, rest = (int(match.group(1)), version[match.end() :]) if match else (0, version)
    upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return epoch, _part(upstream), _part(revision)


def _part(text: str) -> _Part:
    pieces = re.findall(r"([^0-9]*)([0-9]*)", text)
    parts = [((*map(_rank, other), 0), int(number or 0)) for other, number in pieces]
    # No text is the number 0.
    return parts if len(parts) > 1 else [_END, _END]


def _rank(character: str) -> int:
    """``~`` sorts before the end (0), letters after it, and everything else after those."""
    return -1 if character == "~" else ord(character) + (0 if character.isalpha() else 0x110000)


#: What a combination can say; see the head of compat.yml.
SUBJECTS = (
    "driver", "driver_package", "driver_origin", "flavour", "kernel", "kernel_package", "kernel_flavour", "nvme_hooks",
    "nvidia_fs", "nvidia_fs_package", "nvidia_fs_origin", "libcufile", "cuda", "doca", "dkms", "dkms_signs",
    "secure_boot", "gpu", "mode", "rdma", "arch", "os", "family",
)  # fmt: skip

#: Subjects that the sentence about a combination leaves out, because the rule's own words imply them.
_UNSAID = ("family", "os", "nvme_hooks")

#: Subject → its value; None: the combination has no such part.  A subject that is not a key is not decided yet.
Combination = Mapping[str, Optional[Value]]
#: Subject → version expressions or words, of which one has to hold.
Conditions = Mapping[str, Tuple[str, ...]]


@dataclass(frozen=True)
class Rule:
    """One block of compat.yml; its head says what the keys mean."""

    id: str
    says: str
    known: str
    source: str
    when: Conditions = field(default_factory=dict)
    needs: Conditions = field(default_factory=dict)
    refuses: Conditions = field(default_factory=dict)
    warns: Conditions = field(default_factory=dict)
    doubts: Conditions = field(default_factory=dict)
    fixed: str = ""
    #: of needs: whether it outweighs doubts about the same build
    settles: bool = False
    #: file:line of a rule of the fleet
    place: str = ""

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def is_warning(self) -> bool:
        """Whether it refuses nothing."""
        return bool(self.warns or self.doubts)

    @cached_property
    def looks_at(self) -> FrozenSet[str]:
        """Every subject that it asks about."""
        return frozenset((*self.when, *self.needs, *self.refuses, *self.warns, *self.doubts))


#: Kinds of verdicts, the worst first.  UNKNOWN: no source tells whether the combination works.
REFUSED, UNKNOWN, WARNED, FITS = KINDS = ("refused", "unknown", "warned", "fits")


class Verdict(NamedTuple):
    """What one rule says about one combination that it speaks about."""

    rule: str
    #: one of KINDS
    kind: str
    #: for a user: what the rule says, and what was found
    words: str
    #: every subject that the rule asks about
    subjects: FrozenSet[str] = frozenset()

    @property
    def allowed(self) -> bool:
        """Whether a lock may have it."""
        return self.kind != REFUSED

    @property
    def warning(self) -> bool:
        """Whether it is allowed, but the user has to know."""
        return self.kind in (UNKNOWN, WARNED)


def rules_with(own: Iterable[Rule]) -> Tuple[Rule, ...]:
    """Gdsdeploy's rules and ``own``, those of the fleet: what a fleet has is never judged by one of both alone."""
    return (*data.rows("compat", Rule), *own)


def require_conditions(conditions: Conditions) -> None:
    """Raise ValueError for a subject that there isn't, and for versions that it can't be compared with."""
    for subject, texts in conditions.items():
        if subject not in SUBJECTS:
            raise ValueError(f"there is no subject {subject!r}; there are {', '.join(SUBJECTS)}")
        for text in texts if subject in VERSIONS else ():
            try:
                parse_versions(text).require_spelling(VERSIONS[subject])
            except ValueError as error:
                package = f"; {subject}_package has the package's" if f"{subject}_package" in VERSIONS else ""
                raise ValueError(f"{subject}: {error}{package}") from None


def judge(combination: Combination, rules: Iterable[Rule]) -> List[Verdict]:
    """What the rules say about ``combination``, in their order.

    A rule speaks only if all its subjects are decided, none that it needs or refuses is absent, and its ``when``
    holds; so a combination can be judged while it is still being chosen.  Nor does it speak where versions don't tell.
    Doubts about a build that a rule settles are left out.
    """
    verdicts: List[Verdict] = []
    settled: List[FrozenSet[str]] = []
    for rule in rules:
        if not rule.looks_at <= combination.keys() or _all(rule.when, combination) is not True:
            continue
        effect = rule.needs or rule.refuses or rule.warns or rule.doubts
        if any(combination[subject] is None for subject in effect):
            continue
        meets = _all(effect, combination)
        # A doubt that doesn't apply is no knowledge.
        if meets is None or (rule.doubts and not meets):
            continue
        broken = REFUSED if rule.needs or rule.refuses else WARNED if rule.warns else UNKNOWN
        kind = FITS if meets is bool(rule.needs) else broken
        verdicts.append(_verdict(rule, kind, combination, (*rule.when, *effect)))
        if rule.settles and kind == FITS:
            settled.append(built_parts(verdicts[-1]))
    builds = [built_parts(verdict) if settled and verdict.kind == UNKNOWN else frozenset() for verdict in verdicts]
    return [each for each, parts in zip(verdicts, builds) if not parts or not any(parts <= known for known in settled)]


def built_parts(verdict: Verdict) -> FrozenSet[str]:
    """Which of kernel, driver and nvidia_fs a build that it is about is made of; empty: it is about none."""
    parts = ("kernel", "driver", "nvidia_fs")
    found = frozenset(part for part in parts for subject in verdict.subjects if subject.startswith(part))
    return found if len(found) > 1 else frozenset()


def _verdict(rule: Rule, kind: str, combination: Combination, subjects: Iterable[str]) -> Verdict:
    stack = ", ".join(f"{_name(s)} {combination[s]}" for s in subjects if s not in _UNSAID)
    return Verdict(rule.id, kind, f"{rule.says.strip()} Here: {stack}.", rule.looks_at)


def _name(subject: str) -> str:
    return subject.replace("nvidia_fs", "nvidia-fs").replace("_", " ")


def _doubt(one: str, other: str) -> Rule:
    says = f"No source tells whether this {_name(one)} and this {_name(other)} go together."
    return Rule(f"{one}-{other}-unknown".replace("_", "-"), says, "", "", doubts={one: (), other: ()})


#: The release of CUDA tells which drivers a libcufile goes with, whatever other rules say: unknown where that is.
_LIBRARY = ("libcufile", "driver")
#: Subjects that a rule has to be about where a combination has both → what is said where none is; it has no source.
#: cuda: the release that libcufile belongs to.
PAIRS: Mapping[Tuple[str, str], Rule] = {
    pair: _doubt(*pair)
    for pair in (
        ("driver", "kernel"),
        ("nvidia_fs", "kernel"),
        ("nvidia_fs", "driver"),
        ("cuda", "driver"),
        ("libcufile", "nvidia_fs"),
        _LIBRARY,
    )
}


def unknown_pairs(combination: Combination, verdicts: Sequence[Verdict]) -> List[Verdict]:
    """One verdict for each of PAIRS that the combination has and none of ``verdicts``, those of judge(), is about."""
    present = {subject for subject, value in combination.items() if value is not None}
    return [
        _verdict(rule, UNKNOWN, combination, pair)
        for pair, rule in PAIRS.items()
        if rule.looks_at <= present
        and not (
            "cuda" in present if pair == _LIBRARY else any(verdict.subjects >= rule.looks_at for verdict in verdicts)
        )
    ]


def without_builds(verdicts: Iterable[Verdict]) -> List[Verdict]:
    """The verdicts without the doubts whether a module compiles on a kernel, for where that was seen."""
    return [verdict for verdict in verdicts if verdict.kind != UNKNOWN or "kernel" not in verdict.subjects]


def cautions(combination: Combination, verdicts: Sequence[Verdict], *, built: bool = False) -> List[Verdict]:
    """What is allowed in a combination, and the user has to know: ``verdicts``, those of judge(), and unknown pairs.

    built: whether its modules were seen to build, or packages bring them.
    """
    found = [verdict for verdict in (*verdicts, *unknown_pairs(combination, verdicts)) if verdict.warning]
    return without_builds(found) if built else found


def undecided(combination: Combination, unknown: AbstractSet[str], rules: Iterable[Rule]) -> Iterator[Tuple[str, str]]:
    """(id, subject) of each rule that would refuse ``combination`` with some value of the subject.

    unknown: subjects that the combination has, but whose values aren't known.  A version that doesn't tell is one.
    """
    for rule in rules:
        if rule.is_warning or not rule.looks_at <= combination.keys() | unknown:
            continue
        effect = rule.needs or rule.refuses
        conditions = (*rule.when.items(), *effect.items())
        vague = {s for s, texts in conditions if s not in unknown and _all({s: texts}, combination) is None}
        missing = sorted(rule.looks_at & unknown | vague)
        decided = _without(unknown | vague, effect)
        if not missing or not _all(_without(unknown | vague, rule.when), combination):
            continue
        if any(combination[subject] is None for subject in decided):
            continue
        meets = _all(decided, combination)
        if (len(decided) < len(effect) or not meets) if rule.needs else meets:
            yield rule.id, missing[0]


def _without(unknown: AbstractSet[str], conditions: Conditions) -> Conditions:
    return {subject: texts for subject, texts in conditions.items() if subject not in unknown}


def _all(conditions: Conditions, combination: Combination) -> Optional[bool]:
    """Whether each condition holds; of a part that the combination does not have, none does.  None: as for holds."""
    values = ((subject, texts, combination[subject]) for subject, texts in conditions.items())
    return _all_of(False if value is None else holds(subject, texts, value) for subject, texts, value in values)
