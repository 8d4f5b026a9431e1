"""Installed packages, as the package manager reports them: its choices and locks, and the changes in its logs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, NamedTuple, Tuple

from ..paths import DKMS_FRAGMENTS, DKMS_RECIPES, DKMS_SETTINGS, VERSIONLOCKS
from .document import Document, Ran, once_for_alike
from .unknown import Maybe, Unknown, when_known

#: No kernel's release is empty: gdsdeploy writes it where the modules are received.
_IDLE = re.compile(r"""^BUILD_EXCLUSIVE_KERNEL=["']\^\$["']""", re.MULTILINE)
_SIGNS = re.compile(r"""^[ \t]*(?:export[ \t]+)?try_sign_modules=["']?([A-Za-z_]+)""", re.MULTILINE)


@dataclass(frozen=True)
class Package:
    """``status`` in dpkg's letters; ``ii`` is wanted and completely installed."""

    version: str
    architecture: str
    status: str


@dataclass(frozen=True)
class PackageFacts:
    """``installed`` holds packages of interest only, each once per architecture."""

    installed: Maybe[Mapping[str, Tuple[Package, ...]]]
    #: lines of ``dkms status``
    dkms: Maybe[Tuple[str, ...]]
    #: DKMS's ``try_sign_modules``: ``true``, ``false``, or its default ``not_in_chroot``
    dkms_signs: Maybe[str]
    #: modules that DKMS builds for no kernel, by their names there
    dkms_idle: Maybe[Tuple[str, ...]]


def package_facts(document: Document) -> PackageFacts:
    run = document.ran("dpkg-query")
    if isinstance(run, Unknown):
        rpm = document.ran("rpm")
        run = run if isinstance(rpm, Unknown) else rpm
    return PackageFacts(when_known(run, _installed), _dkms(document), _dkms_signs(document), _dkms_idle(document))


def _dkms(document: Document) -> Maybe[Tuple[str, ...]]:
    if document.has("dkms"):
        return document.dkms()
    # Older evidence has what the program said.
    run = document.ran("dkms")
    if not isinstance(run, Unknown) and run.status != 0:
        return Unknown("dkms status: " + (run.stderr.strip() or f"exit status {run.status}"))
    return when_known(run, lambda run: tuple(run.stdout.splitlines()))


def _dkms_signs(document: Document) -> Maybe[str]:
    """The last assignment counts: DKMS sources its settings, then the fragments by name."""
    names = document.names(DKMS_FRAGMENTS + "/*.conf")
    if isinstance(names, Unknown):
        return names
    value = "not_in_chroot"
    for path in (DKMS_SETTINGS, *(f"{DKMS_FRAGMENTS}/{name}" for name in sorted(names or ()))):
        text = document.text(path)
        if isinstance(text, Unknown):
            return text
        value = [value, *_SIGNS.findall(text or "")][-1]
    return value


def _dkms_idle(document: Document) -> Maybe[Tuple[str, ...]]:
    names = document.names(DKMS_RECIPES)
    if isinstance(names, Unknown):
        return names
    folder = DKMS_RECIPES.rpartition("/")[0]
    texts = {name[: -len(".conf")]: document.text(f"{folder}/{name}") for name in names or ()}
    return tuple(sorted(name for name, text in texts.items() if isinstance(text, str) and _IDLE.search(text)))


def _installed(run: Ran) -> Maybe[Mapping[str, Tuple[Package, ...]]]:
    if run.status != 0:
        return Unknown("the package manager says: " + (run.stderr.strip() or f"exit status {run.status}"))
    installed: Dict[str, Tuple[Package, ...]] = {}
    for words in (line.split("\t") for line in run.stdout.splitlines()):
        if len(words) == 4:
            name, version, architecture, status = words
            installed[name] = (*installed.get(name, ()), Package(version, architecture, status.strip()))
    return installed


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
