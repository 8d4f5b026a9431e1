"""What provision manages on a machine: its files, and what the roles' own programs would still change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from .document import ABSENT, Document, Ran
from .packages import PackageFacts, package_facts
from .system import OsFacts, os_facts
from .unknown import Maybe, Unknown


@dataclass(frozen=True)
class Entry:
    """A file or folder; ``kind`` is ``file``, ``folder`` or ``other``, ``mode`` octal text such as ``0644``."""

    kind: str
    mode: str
    uid: int
    gid: int
    #: of a file; else empty
    sha256: str


@dataclass(frozen=True)
class ManagedFacts:
    """The answers to a survey; see ``evidence/managed.py``."""

    os: OsFacts
    packages: PackageFacts
    #: path → what is there; None: nothing
    paths: Mapping[str, Maybe[Optional[Entry]]]
    #: question → answer
    answers: Mapping[str, Maybe[Mapping[str, Any]]]
    #: name → what a command of the survey wrote
    commands: Mapping[str, Maybe[Ran]]
    gaps: Tuple[str, ...]

    def path(self, path: str) -> Maybe[Optional[Entry]]:
        return self.paths.get(path, Unknown("{} was not looked at".format(path)))

    def answer(self, question: str) -> Maybe[Mapping[str, Any]]:
        return self.answers.get(question, Unknown("the question {} was not answered".format(question)))


def managed_facts(evidence: Any) -> ManagedFacts:
    """Read every answer; never raises, whatever the document looks like."""
    document = Document(evidence)
    value = evidence if isinstance(evidence, dict) else {}
    paths, answers = _mapping(value.get("managed")), _mapping(value.get("answers"))
    return ManagedFacts(
        os=os_facts(document),
        packages=package_facts(document),
        paths={path: _entry(path, item) for path, item in paths.items()},
        answers={name: _answer(item) for name, item in answers.items()},
        commands={name: document.ran(name) for name in document.paths("commands")},
        gaps=document.gaps(),
    )


def _mapping(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _entry(path: str, value: Any) -> Maybe[Optional[Entry]]:
    item = _mapping(value)
    if item.get("error") in ABSENT:
        return None
    try:
        return Entry(
            str(item["kind"]), str(item["mode"]), int(item["uid"]), int(item["gid"]), str(item.get("sha256", ""))
        )
    except (KeyError, TypeError, ValueError):
        return Unknown("{} could not be read: {}".format(path, item.get("error", "malformed record")))


def _answer(value: Any) -> Maybe[Mapping[str, Any]]:
    item = _mapping(value)
    if "error" in item:
        return Unknown(str(item["error"]))
    return item if item else Unknown("a malformed answer")
