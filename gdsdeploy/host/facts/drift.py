"""The package manager's choices and locks, and the changes in its logs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, NamedTuple, Tuple

from ..paths import VERSIONLOCKS
from .alike import once_for_alike
from .document import Document
from .unknown import Maybe, Unknown, when_known

LOGS = ("/var/log/dpkg.log", "/var/log/dnf.rpm.log")
_DNF_LINE = re.compile(r"(\S+) \S+ (Installed|Upgrade|Downgrade|Erase|Removed): (.+?)-((?:\d+:)?[^-]+-[^-]+)\.[^.]+$")


class Choice(NamedTuple):
    """apt's policy for one package.  Versions are empty where there is none; ``source`` is the candidate's."""

    installed: str
    candidate: str
    source: str


class Move(NamedTuple):
    """One change of one package.  ``at`` is the host's local time; ``command`` is empty where no log has it."""

    at: str
    package: str
    action: str
    before: str
    after: str
    command: str
    user: str


@dataclass(frozen=True)
class DriftFacts:
    """``choices``: apt's; ``locked``: names that dnf may not change; ``moves``: the oldest first."""

    choices: Maybe[Mapping[str, Choice]]
    locked: Maybe[Tuple[str, ...]]
    moves: Maybe[Tuple[Move, ...]]


def drift_facts(document: Document) -> DriftFacts:
    moves = sorted([*_dpkg(document), *_dnf(document)])
    has_logs = any(path.startswith(LOGS) for path in document.paths("excerpts"))
    return DriftFacts(
        choices=when_known(document.ran("apt-policy"), lambda run: _choices(run.stdout)),
        locked=_locked(document),
        moves=tuple(moves) if has_logs else Unknown("no log of the package manager was looked at"),
    )


@once_for_alike
def _choices(text: str) -> Mapping[str, Choice]:
    """``apt-cache policy``: a block a package, its versions with the sources that offer them."""
    choices: Dict[str, Choice] = {}
    for block in re.split(r"\n(?=\S)", text):
        head = re.match(r"(\S+?)(?::[a-z0-9]+)?:\n\s+Installed: (\S+)\n\s+Candidate: (\S+)", block)
        if head is None:
            continue
        installed, candidate = ("" if version == "(none)" else version for version in head.groups()[1:])
        choices[head.group(1)] = Choice(installed, candidate, _source(block, candidate))
    return choices


def _source(block: str, version: str) -> str:
    """The first repository that offers a version, from the table where each version is followed by its sources."""
    if not version:
        return ""
    rows = re.search(rf"^ (?:\*\*\*|   ) {re.escape(version)} .*\n((?:\s{{6,}}.*\n?)*)", block, re.MULTILINE)
    sources = [line.split(None, 1) for line in (rows.group(1) if rows else "").splitlines()]
    return next((words[1] for words in sources if len(words) > 1 and "/var/lib/dpkg/" not in words[1]), "")


def _locked(document: Document) -> Maybe[Tuple[str, ...]]:
    texts = [document.text(path) for path in VERSIONLOCKS]
    if all(isinstance(text, Unknown) for text in texts):
        return Unknown("the locks of dnf were not looked at")
    # NAME-EPOCH:VERSION-RELEASE.ARCH, with the epoch before the name in older lists
    pattern = re.compile(r"^(?:\d+:)?([A-Za-z0-9][\w.+-]*?)-(?:\d+:)?\d[^-\s]*-[^-\s]+$", re.MULTILINE)
    return tuple(sorted({name for text in texts if isinstance(text, str) for name in pattern.findall(text)}))


def _logs(document: Document, begin: str) -> Iterator[str]:
    for path in document.paths("excerpts"):
        lines = document.lines(path) if path.startswith(begin) else None
        if isinstance(lines, tuple):
            yield from lines


def _dpkg(document: Document) -> List[Move]:
    runs = _apt_runs(document)
    moves = []
    for line in _logs(document, "/var/log/dpkg.log"):
        words = line.split()
        if len(words) != 6 or words[2] not in ("install", "upgrade", "remove", "purge"):
            continue
        at, name = " ".join(words[:2]), words[3].partition(":")[0]
        before, after = ("" if version == "<none>" else version for version in words[4:])
        command, user = next(((run[2], run[3]) for run in runs if run[0] <= at <= run[1]), ("", ""))
        moves.append(Move(at, name, words[2], before, after, command, user))
    return moves


def _apt_runs(document: Document) -> List[Tuple[str, str, str, str]]:
    """(begin, end, command line, user) of each run in apt's history; 9999 is the end of an unfinished run."""
    runs: List[Dict[str, str]] = []
    for line in _logs(document, "/var/log/apt/history.log"):
        key, _, value = line.partition(": ")
        runs += [{"End-Date": "9999"}] if key == "Start-Date" else []
        if runs:
            runs[-1][key] = " ".join(value.split())
    keys = ("Start-Date", "End-Date", "Commandline", "Requested-By")
    rows = ((run.get(key, "") for key in keys) for run in runs)
    # Rotated files come after the current one, so the blocks are put in their order first.
    return sorted(((begin, end, command, user) for begin, end, command, user in rows), reverse=True)


def _dnf(document: Document) -> List[Move]:
    """dnf4 logs ``Upgrade: new`` and ``Upgraded: old``; the command that began before stands in another log."""
    commands = []
    for line in _logs(document, "/var/log/dnf.log"):
        stamp, _, command = line.partition(" Command: ")
        commands.append((_stamp(stamp), command.strip()))
    moves = []
    for line in _logs(document, "/var/log/dnf.rpm.log"):
        match = _DNF_LINE.match(line)
        if match is None:
            continue
        at, action, name, version = _stamp(match.group(1)), match.group(2).lower(), match.group(3), match.group(4)
        is_removal = action in ("erase", "removed")
        command = next((words for moment, words in sorted(commands, reverse=True) if moment <= at), "")
        moves.append(Move(at, name, action, version if is_removal else "", "" if is_removal else version, command, ""))
    return moves


def _stamp(text: str) -> str:
    """``2026-11-21T03:00:00+0000 …`` as the other logs write it."""
    return text.split()[0][:19].replace("T", " ") if text.split() else ""
