"""Compatibility rules: which versions go together.  Pure.

gdsdeploy/lock/compat.yml has the rules.  ``python -m docs.gen.compat_rules`` writes them into data/compat.json, for
programs without a YAML parser.

Version expressions: one grammar and one order for the pins of a fleet file and the conditions of compat.yml.

``newest``              anything
``550``                 a branch: 550 itself and whatever follows it after ``.``, ``-``, ``+`` or ``~``
``550.163.01``          likewise, so an exact version where nothing follows
``==550.163.01``        exactly this and nothing that continues it
``>=550, <560``         bounds, all of which hold
``!=2.25.6``            everything but this branch

Bounds compare as dpkg does: numbers by value, and ``~`` before the end, so that 6.12~rc1 comes before 6.12.
The controller and the program on hosts both use this module.  Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import AbstractSet, FrozenSet, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .. import data

#: What compat.yml has version expressions about; conditions on anything else compare words.
VERSIONS = frozenset(
    {
        "driver", "driver_package", "kernel", "kernel_package", "nvidia_fs", "nvidia_fs_package", "libcufile", "cuda",
        "doca", "dkms",
    }
)  # fmt: skip
_TERM = re.compile(r"^(<=|>=|==|!=|<|>|=)?\s*([0-9][0-9A-Za-z.+~:_-]*)$")
#: A version that has a place in an order: [EPOCH:]UPSTREAM[-REVISION].
_ORDERED = re.compile(r"^(?:[0-9]+:)?[0-9A-Za-z.+~:-]*[0-9A-Za-z.+~]$")
_CONTINUES = (".", "-", "+", "~")
_BOUNDS = ("<", "<=", ">", ">=")

#: A part of a version, cut into text and number by turns.
_Part = List[Tuple[Tuple[int, ...], int]]
_END = ((0,), 0)


class Term(NamedTuple):
    """One operator and one version; an empty operator asks for a branch."""

    operator: str
    version: str

    def admits(self, names: Sequence[str]) -> bool:
        """Whether a thing with these version names fits; the first name is the one that bounds compare."""
        if self.operator in ("", "!="):
            within = any(n == self.version or n.startswith(tuple(self.version + c for c in _CONTINUES)) for n in names)
            return within is (self.operator == "")
        if self.operator in ("=", "=="):
            return self.version in names
        have, bound = version_order(names[0]), version_order(self.version)
        return {"<": have < bound, "<=": have <= bound, ">": have > bound, ">=": have >= bound}[self.operator]


class Expression(NamedTuple):
    """Terms that all have to hold; no terms admit anything."""

    text: str
    terms: Tuple[Term, ...]

    def admits(self, *names: str) -> bool:
        """Whether a thing that goes by these version names fits; bounds look at the first name only."""
        return all(term.admits(names) for term in self.terms)

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=4096)
def parse_versions(text: str) -> Expression:
    """Read an expression; raises ValueError that names the invalid part."""
    if text.strip() == "newest":
        return Expression("newest", ())
    terms = []
    for part in text.split(","):
        match = _TERM.match(part.strip())
        if match is None:
            raise ValueError(f"not a version expression: {part.strip()!r}")
        term = Term(match.group(1) or "", match.group(2))
        if term.operator in _BOUNDS and not _ORDERED.match(term.version):
            raise ValueError(f"not a version that others can be compared with: {term.version!r}")
        terms.append(term)
    return Expression(text.strip(), tuple(terms))


def holds(subject: str, texts: Sequence[str], value: str) -> bool:
    """Whether ``value`` meets one of a condition's ``texts``: version expressions, or words with ``!=`` for not.

    In both, a comma joins terms that all have to hold.  Raises ValueError for an invalid expression about versions.
    """
    return _holds(subject, tuple(texts), value)


@lru_cache(maxsize=4096)
def _holds(subject: str, texts: Tuple[str, ...], value: str) -> bool:
    if subject in VERSIONS:
        return any(parse_versions(text).admits(value) for text in texts)
    return any(all(_is_word(value, word.strip()) for word in text.split(",")) for text in texts)


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
Combination = Mapping[str, Optional[str]]
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
    fixed: str = ""

    @cached_property
    def looks_at(self) -> FrozenSet[str]:
        """Every subject that it asks about."""
        return frozenset((*self.when, *self.needs, *self.refuses, *self.warns))


@dataclass(frozen=True)
class Verdict:
    """What one rule says about one combination that it speaks about."""

    rule: str
    allowed: bool
    #: for a user: what the rule says, and what was found
    words: str
    #: allowed, but the user has to know
    warning: bool = False


@lru_cache(maxsize=1)
def shipped() -> Tuple[Rule, ...]:
    """The rules of the host program."""
    return data.rows("compat", Rule)


def judge(combination: Combination, rules: Iterable[Rule]) -> List[Verdict]:
    """What the rules say about ``combination``, in their order.

    A rule speaks only if all its subjects are decided, none that it needs or refuses is absent, and its ``when``
    holds; so a combination can be judged while it is still being chosen.
    """
    verdicts: List[Verdict] = []
    for rule in rules:
        if not rule.looks_at <= combination.keys() or not _all(rule.when, combination):
            continue
        effect = rule.needs or rule.refuses or rule.warns
        if any(combination[subject] is None for subject in effect):
            continue
        holds = _all(effect, combination)
        if rule.warns and not holds:
            continue
        allowed = holds if rule.needs else not (rule.refuses and holds)
        stack = ", ".join(f"{_name(s)} {combination[s]}" for s in (*rule.when, *effect) if s not in _UNSAID)
        verdicts.append(Verdict(rule.id, allowed, f"{rule.says.strip()} Here: {stack}.", warning=bool(rule.warns)))
    return verdicts


def undecided(combination: Combination, unknown: AbstractSet[str], rules: Iterable[Rule]) -> Iterator[Tuple[str, str]]:
    """(id, subject) of each rule that would refuse ``combination`` with some value of the subject.

    unknown: subjects that the combination has, but whose values aren't known.
    """
    for rule in rules:
        missing = sorted(rule.looks_at & unknown)
        if not missing or rule.warns or not rule.looks_at <= combination.keys() | unknown:
            continue
        when = _without(unknown, rule.when)
        effect = rule.needs or rule.refuses
        decided = _without(unknown, effect)
        if not _all(when, combination) or any(combination[subject] is None for subject in decided):
            continue
        holds = _all(decided, combination)
        if (len(decided) < len(effect) or not holds) if rule.needs else holds:
            yield rule.id, missing[0]


def _without(unknown: AbstractSet[str], conditions: Conditions) -> Conditions:
    return {subject: texts for subject, texts in conditions.items() if subject not in unknown}


def _all(conditions: Conditions, combination: Combination) -> bool:
    """Whether each condition holds; of a part that the combination does not have, none does."""
    values = ((subject, texts, combination[subject]) for subject, texts in conditions.items())
    return all(value is not None and holds(subject, texts, value) for subject, texts, value in values)


def _name(subject: str) -> str:
    return subject.replace("nvidia_fs", "nvidia-fs").replace("_", " ")
