"""Drifts of a host, and the rounds that hold what a check predicts against what ``apply`` then does.

Runs on the host, beside the zipapp, with the standard library alone.  What apply changed is not taken from its own
words: snapshots of files, packages and units before and after say it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What apply does about a drift: repairs, ignores, works around or refuses it, or can't tell.
REPAIRED, STAYS, ADAPTS, REFUSED, UNKNOWN = "repaired", "stays", "adapts", "refused", "unknown"
#: A part of a host: ("path", PATH), ("version", PACKAGE), ("hold", PACKAGE) or ("outdated", UNIT).
Key = tuple[str, str]
Snapshot = dict[Key, Any]
#: Prefixes of paths that aren't compared, and why.
SKIPPED = {
    "/dev": "no files of the disk",
    "/proc": "no files of the disk",
    "/run": "gone with the boot; the lock of apply lies there",
    "/sys": "no files of the disk",
    "/tmp": "apt's and this test's own",
    "/home": "the sessions of ssh",
    "/root": "the sessions of ssh",
    "/srv": "this test's own",
    "/var/cache": "package managers' caches",
    "/var/lib/apt": "package lists and what was installed by itself: a refresh has no other result",
    "/var/lib/dnf": "the history of transactions",
    "/var/lib/dpkg": "dpkg's own database, which is compared by what dpkg-query says",
    "/var/lib/rpm": "rpm's own database, which is compared by what rpm says",
    "/var/lib/systemd": "when timers ran",
    "/var/log/alternatives.log": "logs",
    "/var/log/apt": "logs",
    "/var/log/dnf": "logs",
    "/var/log/dpkg.log": "logs",
    "/var/log/gdsdeploy": "the audit trail",
    "/var/log/hawkey.log": "logs",
    "/var/log/journal": "logs",
    "/var/log/lastlog": "logs",
    "/var/log/wtmp": "logs",
    "/var/tmp/systemd-private": "of services, by boot",
    "/usr/bin": "the distribution's own programs",
    "/usr/lib/python3": "the distribution's own programs",
    "/usr/lib/x86_64-linux-gnu": "the distribution's own libraries",
    "/usr/share": "what packages contain, which goes with their versions",
}
#: A repair may change these: an initramfs is rebuilt, a record gets longer.
ANEW = ("/boot/initrd.img-", "/var/lib/gdsdeploy/before.json", "/var/lib/gdsdeploy/removed")
#: gdsdeploy's records, by kinds of changes.
RECORDS = {
    **dict.fromkeys(("write", "make", "delete", "stream"), ("/var/lib/gdsdeploy/before.json",)),
    **dict.fromkeys(
        ("install", "upgrade", "downgrade", "remove"), ("/var/lib/gdsdeploy/installed", "/var/lib/gdsdeploy/removed")
    ),
    **dict.fromkeys(("hold", "unhold"), ("/var/lib/gdsdeploy/held",)),
}


@dataclass(frozen=True)
class Drift:
    """A change on a host, made outside of gdsdeploy.

    ``subjects``: what it changes; two drifts of one round share none.  ``undo``: for drifts that apply ignores.
    ``own``: prefixes of paths that keep the drift's state.
    """

    name: str
    subjects: tuple[str, ...]
    make: Callable[[], None]
    outcome: str = REPAIRED
    undo: Callable[[], None] | None = None
    own: tuple[str, ...] = ()
    #: packages that keep the drift's state
    packages: tuple[str, ...] = ()

    def keeps(self, key: Key) -> bool:
        kind, subject = key
        return subject.startswith(self.own) if kind == "path" else subject in self.packages


# -- the program


@dataclass
class Program:
    """The host program of a zipapp, imported once; each call runs in its own child process."""

    zipapp: str
    main: Callable[[Sequence[str]], int] = field(init=False)

    def __post_init__(self) -> None:
        sys.path.insert(0, self.zipapp)
        self.main = importlib.import_module("gdsdeploy.host.__main__").main
        importlib.import_module("gdsdeploy.host.apply.registry").names()
        importlib.import_module("gdsdeploy.host.cli.apply")

    def call(self, document: Any, *words: str) -> Any:
        """The answer of ``apply WORDS --json`` with this desired state."""
        return self.answer(document, "apply", *words, "--desired", "-")

    def answer(self, document: Any, *words: str) -> Any:
        """The answer of ``WORDS --json``, whose standard input is this document."""
        with tempfile.TemporaryFile() as stdout:
            os.waitpid(self.start(document, *words, stdout=stdout.fileno()), 0)
            stdout.seek(0)
            return json.loads(stdout.read())

    def start(self, document: Any, *words: str, stdout: int | None = None) -> int:
        """The process of it, which leads a session of its own."""
        with tempfile.TemporaryFile() as stdin, Path(os.devnull).open("w") as nothing:
            stdin.write(json.dumps(document).encode())
            stdin.seek(0)
            child = os.fork()
            if child == 0:
                os.setsid()
                self._run(stdin.fileno(), nothing.fileno() if stdout is None else stdout, [*words, "--json"])
            return child

    def _run(self, stdin: int, stdout: int, words: Sequence[str]) -> None:
        status = 1
        try:
            os.dup2(stdin, 0)
            os.dup2(stdout, 1)
            sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
            status = self.main(words)
            sys.stdout.flush()
        finally:
            os._exit(status)


# -- snapshots


@dataclass
class Watch:
    """Takes snapshots.  ``packages`` lists packages: name → (version and state, held).  ``units``: of our own."""

    packages: Callable[[], dict[str, tuple[str, bool]]]
    units: Sequence[str] = ()
    roots: Sequence[str] = ("/",)
    _sums: dict[tuple[int, int, int], str] = field(default_factory=dict)

    def snapshot(self) -> Snapshot:
        entries: Snapshot = {}
        for root in filter(os.path.lexists, self.roots):
            self._walk(root, entries)
        for name, (version, is_held) in self.packages().items():
            if version:
                entries["version", name] = version
            if is_held:
                entries["hold", name] = True
        entries.update({("outdated", unit): True for unit in self._outdated()})
        return entries

    def _walk(self, folder: str, snapshot: Snapshot) -> None:
        device = os.lstat(folder).st_dev
        waiting = [folder]
        skipped = tuple(SKIPPED)
        while waiting:
            with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.path.startswith(skipped):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    snapshot["path", entry.path] = self._entry(entry.path, status)
                    if entry.is_dir(follow_symlinks=False) and status.st_dev == device:
                        waiting.append(entry.path)

    def _entry(self, path: str, status: os.stat_result) -> tuple[str, int, int, int, str]:
        own = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        if stat.S_ISLNK(status.st_mode):
            return ("link", *own, str(Path(path).readlink()))
        if stat.S_ISDIR(status.st_mode):
            return ("folder", *own, "")
        if not stat.S_ISREG(status.st_mode):
            return ("other", *own, "")
        key = (status.st_ino, status.st_ctime_ns, status.st_size)
        if key not in self._sums:
            try:
                self._sums[key] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            except PermissionError:
                # Its owner isn't in this namespace, so no process here can change it.
                self._sums[key] = "unreadable"
        return ("file", *own, f"sha256:{self._sums[key]}")

    def _outdated(self) -> list[str]:
        if not self.units:
            return []
        units = output("systemctl", "show", "--property=Id,NeedDaemonReload", *self.units)
        blocks = [dict(line.split("=", 1) for line in block.splitlines()) for block in units.split("\n\n")]
        return [block["Id"] for block in blocks if block.get("NeedDaemonReload") == "yes"]


def differing(one: Snapshot, other: Snapshot) -> dict[Key, tuple[Any, Any]]:
    """What differs: before and after, None where there is nothing."""
    keys = {key for key, _ in one.items() ^ other.items()}
    return {key: (one.get(key), other.get(key)) for key in sorted(keys)}


# -- changes against snapshots


def unexplained(changes: Sequence[Mapping[str, str]], before: Snapshot, after: Snapshot) -> list[str]:
    """Changes that the snapshots don't show, and differences of the snapshots that no change says."""
    differences = differing(before, after)
    problems = []
    for change in _join(changes):
        for path in RECORDS.get(change["kind"], ()):
            differences.pop(("path", path), None)
        keys, required = _effects(change, differences)
        if required and not keys:
            problems.append(f"no effect of: {_words(change)}")
        for key in keys:
            was, now = differences.pop(key)
            wrong = _contradicts(change, key, was, now)
            problems += [f"{_words(change)}: {wrong}"] if wrong else []
    return problems + [f"unpredicted: {key[0]} {key[1]}: {was} → {now}" for key, (was, now) in differences.items()]


def _join(changes: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """The same changes; a package that is first finished and then moved has one, from the first to the last version."""
    joined: list[Mapping[str, str]] = []
    for change in changes:
        first = next(
            (earlier for earlier in joined if earlier["subject"] == change["subject"] and earlier["after"]), None
        )
        if first is not None and first["reason"] == "unfinished" and change["before"] == first["after"]:
            joined[joined.index(first)] = {**first, "after": change["after"]}
        else:
            joined.append(change)
    return joined


def _effects(change: Mapping[str, str], differences: Mapping[Key, Any]) -> tuple[list[Key], bool]:
    """The differences that a change explains, and whether there has to be one."""
    kind, subject = change["kind"], change["subject"]
    if kind in ("write", "make", "delete"):
        # The folders above what is written are made with it.
        above = [
            key for key, (was, _) in differences.items() if was is None and key[0] == "path" and _above(key[1], subject)
        ]
        own = [("path", subject)] if ("path", subject) in differences else []
        return (own + above) if own else [], True
    if kind in ("install", "upgrade", "downgrade", "remove"):
        return [key for key in [("version", subject)] if key in differences], True
    if kind in ("hold", "unhold"):
        return [key for key in [("hold", subject)] if key in differences], True
    if kind in ("enable", "disable", "reload"):
        ends = (f".wants/{subject}", f".requires/{subject}")
        links = [key for key in differences if key[0] == "path" and key[1].endswith(ends)]
        folders = [("path", str(Path(path).parent)) for _, path in links]
        read_again = [key for key in differences if key[0] == "outdated"]
        effects = list(dict.fromkeys([*links, *(key for key in folders if key in differences), *read_again]))
        # A unit whose file is written is enabled again; its links may already be right.
        return effects, change["reason"] == "links"
    if kind == "initramfs":
        return [key for key in differences if key[1].startswith(ANEW) and key[1].endswith(subject)], True
    if kind == "stream":
        name = subject.partition(":")[0]
        return [key for key in [("path", f"/etc/dnf/modules.d/{name}.module")] if key in differences], True
    return [], kind != "refresh"


def _above(folder: str, path: str) -> bool:
    return path.startswith(f"{folder}/")


def _contradicts(change: Mapping[str, str], key: Key, was: Any, now: Any) -> str:
    """Where ``before`` and ``after`` of a change aren't what the snapshots have."""
    if key != ("path", change["subject"]) and key[0] != "version":
        return ""
    if key[0] == "version":
        reported = (change["before"], change["after"])
        # Half-installed is not installed.
        actual = ("" if was is None or " " in was else was, now or "")
        return (
            "" if reported == actual or actual[1].partition(" ")[0] == reported[1] == "" else f"in truth {was} → {now}"
        )
    if change["kind"] == "delete":
        return "" if now is None else f"still there: {now}"
    expected = {"mode": f"{now[1]:04o}", "owner": f"{now[2]}:{now[3]}"}.get(change["reason"], now[4] or f"{now[1]:04o}")
    return "" if change["after"] in (expected, "") else f"in truth {now}"


def _words(change: Mapping[str, str]) -> str:
    return "{resource}: {kind} {subject} ({before} → {after}; {reason})".format(**change)


# -- rounds


@dataclass
class Rounds:
    """Plays drifts, in rounds of one to four, and collects what went otherwise than a check said."""

    program: Program
    watch: Watch
    document: Any
    baseline: Snapshot = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)
    last: Snapshot = field(default_factory=dict)

    def begin(self) -> list[str]:
        """Bring the host to the desired state; the paths that were written or made."""
        answer = self.program.call(self.document)
        assert answer["error"] is None, answer
        again = self._check()
        assert _changes(again) == [], again
        self.baseline = self.watch.snapshot()
        return [change["subject"] for change in _changes(answer) if change["kind"] in ("write", "make")]

    def play(self, drifts: Sequence[Drift]) -> None:
        """One round."""
        names = " + ".join(drift.name for drift in drifts)
        self.problems += [f"{names}: {problem}" for problem in self._played(drifts)]
        for drift in drifts:
            self.outcomes[drift.outcome] = self.outcomes.get(drift.outcome, 0) + 1

    def _played(self, drifts: Sequence[Drift]) -> list[str]:
        # Packages first: apt has to read its configuration for that.
        for drift in sorted(drifts, key=lambda drift: not drift.subjects[0].startswith("packages/")):
            drift.make()
        blocking = [drift for drift in drifts if drift.outcome in (REFUSED, UNKNOWN)]
        problems = self._refused(blocking) if blocking else []
        _undone(blocking)
        others = [drift for drift in drifts if drift not in blocking]
        problems += self._applied(others)
        _undone(others)
        if any(drift.outcome == ADAPTS for drift in others):
            problems += [f"after the way back: {problem}" for problem in self._applied([])]
        return problems + self._recovered(again=any(drift.undo is not None for drift in others))

    def _check(self) -> Any:
        return self.program.call(self.document, "--check")

    def _refused(self, blocking: Sequence[Drift]) -> list[str]:
        """A check and apply refuse alike, and leave everything as it was."""
        before = self.watch.snapshot()
        checked = self._check()
        error = checked["error"] or self.program.call(self.document)["error"]
        problems = [] if _unsettled(checked) or checked["error"] else ["the check doesn't refuse it"]
        if error is None:
            problems.append("apply doesn't refuse it")
        elif all(drift.outcome == REFUSED for drift in blocking) and error["kind"] != "refused":
            problems.append(f"apply fails in place of refusing: {error}")
        return problems + [f"refused, and yet {text}" for text in _texts(before, self.watch.snapshot())]

    def _applied(self, drifts: Sequence[Drift]) -> list[str]:
        before = self.watch.snapshot()
        checked = self._check()
        problems = [f"the check changed {text}" for text in _texts(before, self.watch.snapshot())]
        applied = self.program.call(self.document)
        after = self.last = self.watch.snapshot()
        problems += [f"apply: {applied['error']}"] if applied["error"] else []
        problems += self._same(checked, applied) + unexplained(_changes(applied), before, after)
        again = self._check()
        problems += [f"second check: {_words(change)}" for change in _changes(again)]
        problems += [f"second check: {text}" for text in _unsettled(again)]
        kept_keys = {key for key in differing(self.baseline, after) if any(drift.keeps(key) for drift in drifts)}
        return problems + [f"in the end {text}" for text in self._off(after, kept_keys)]

    def _same(self, checked: Any, applied: Any) -> list[str]:
        """The check predicted what apply reports, resource by resource, in the same words and order."""
        problems = []
        deciding: set[str] = set()
        for one in checked["resources"]:
            kind = one["name"].partition(".")[0]
            made = [
                c for resource in applied["resources"] if resource["name"] == one["name"] for c in resource["changes"]
            ]
            if kind == "packages" and deciding:
                made = [change for change in made if change["reason"] not in UNTOLD]
            if kind == "pins" and "repositories" in deciding:
                # They name repositories by what apt says of those that are written, if it can read its sources at all.
                pass
            elif one["unknown"]:
                problems.append(f"{one['name']}: {one['unknown']}")
            elif one["changes"] != made:
                problems.append(f"predicted {list(map(_words, one['changes']))}, made {list(map(_words, made))}")
            deciding |= {kind} if kind in ("repositories", "pins") and one["changes"] else set()
        return problems

    def _off(self, now: Snapshot, kept_keys: Iterable[Key] = ()) -> list[str]:
        wrong = {key: pair for key, pair in differing(self.baseline, now).items() if key not in set(kept_keys)}
        return [
            f"{kind} {subject}: {was} → {is_now}"
            for (kind, subject), (was, is_now) in wrong.items()
            if not (subject.startswith(ANEW) and is_now is not None)
        ]

    def _recovered(self, *, again: bool) -> list[str]:
        """Nothing is left of a round; otherwise the rounds that follow begin from what there is."""
        now = self.watch.snapshot() if again else self.last
        leftovers = [f"left behind: {text}" for text in self._off(now)]
        self.baseline = now
        return leftovers

    def report(self) -> dict[str, Any]:
        return {"drifts": sum(self.outcomes.values()), "outcomes": self.outcomes, "problems": self.problems}


def _undone(drifts: Iterable[Drift]) -> None:
    for drift in drifts:
        if drift.undo is not None:
            drift.undo()


#: Reasons of changes that a check doesn't know before repositories and pins are written.
UNTOLD = ("dependency", "allowed", "replaced-by", "conflicts", "needs")


def _changes(answer: Any) -> list[dict[str, str]]:
    return [change for one in answer.get("resources", []) for change in one["changes"]]


def _unsettled(answer: Any) -> list[Any]:
    return [text for one in answer.get("resources", []) for text in (*one["refusals"], *one["unknown"])]


def _texts(one: Snapshot, other: Snapshot) -> list[str]:
    return [f"{kind} {subject}: {was} → {now}" for (kind, subject), (was, now) in differing(one, other).items()]


def dealt(drifts: Sequence[Drift], count: int, seed: int) -> list[list[Drift]]:
    """``count`` drifts in rounds of one to four that don't overlap: of files a choice, of all else every one."""
    chance = random.Random(seed)
    files = [drift for drift in drifts if drift.subjects[0].startswith("/")]
    waiting = [drift for drift in drifts if drift not in files]
    while len(waiting) < count:
        more = files or list(drifts)
        waiting += chance.sample(more, min(len(more), count - len(waiting)))
    chance.shuffle(waiting)
    rounds: list[list[Drift]] = []
    while waiting:
        size, chosen = chance.randint(1, 4), list[Drift]()
        for drift in list(waiting):
            apart = all(not _overlap(drift, other) for other in chosen)
            if len(chosen) < size and apart:
                chosen.append(drift)
                waiting.remove(drift)
        rounds.append(chosen)
    return rounds


def _overlap(one: Drift, other: Drift) -> bool:
    return any(a == b or _above(a, b) or _above(b, a) for a in one.subjects for b in other.subjects)


# -- drifts of files


def output(*argv: str, ok: Sequence[int] = (0,), **env: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C", **env}, check=False)
    assert done.returncode in ok, (argv, done.stdout + done.stderr)
    return done.stdout


ASIDE = Path("/srv/drift/aside")


def clear(path: Path) -> None:
    """Take away whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put_aside(path: Path) -> None:
    """Move it where :func:`put_back` finds it."""
    ASIDE.mkdir(parents=True, exist_ok=True)
    shutil.move(path, ASIDE / hashlib.sha256(str(path).encode()).hexdigest())


def put_back(path: Path) -> None:
    clear(path)
    shutil.move(ASIDE / hashlib.sha256(str(path).encode()).hexdigest(), path)


def _elsewhere(path: Path, text: bytes) -> Path:
    ASIDE.mkdir(parents=True, exist_ok=True)
    place = ASIDE / f"target-{hashlib.sha256(str(path).encode()).hexdigest()}"
    place.write_bytes(text)
    return place


def of_file(name: str, follows: str = STAYS) -> list[Drift]:
    """Everything that happens to a file that is managed.

    follows: what becomes of a link to the same content, which is read as a file is.
    """
    path = Path(name)

    def replace(by: Callable[[], Any]) -> Callable[[], None]:
        def make() -> None:
            put_aside(path)
            by()

        return make

    def link(text: bytes | None) -> Callable[[], None]:
        def make() -> None:
            same = path.read_bytes()
            target = _elsewhere(path, same if text is None else text)
            target.chmod(stat.S_IMODE(path.stat().st_mode))
            put_aside(path)
            path.symlink_to(target)

        return make

    back, subjects = (lambda: put_back(path)), (name,)
    drifts = [
        Drift(f"edited {name}", subjects, lambda: append(path, b"# edited\n")),
        Drift(f"truncated {name}", subjects, lambda: os.truncate(path, path.stat().st_size // 2)),
        Drift(f"emptied {name}", subjects, lambda: os.truncate(path, 0)),
        Drift(f"removed {name}", subjects, path.unlink),
        Drift(f"chmod 0600 {name}", subjects, lambda: path.chmod(0o600)),
        Drift(f"chmod 0777 {name}", subjects, lambda: path.chmod(0o777)),
        Drift(f"chown {name}", subjects, lambda: os.chown(path, 1234, 4321)),
        Drift(f"link elsewhere {name}", subjects, link(b"of another program\n")),
        Drift(f"dangling link {name}", subjects, replace(lambda: path.symlink_to("/srv/drift/nothing"))),
        Drift(f"link to the same {name}", subjects, link(None), follows, back, subjects),
        Drift(f"folder {name}", subjects, replace(path.mkdir), REFUSED, back),
        Drift(f"pipe {name}", subjects, replace(lambda: os.mkfifo(path)), REFUSED, back),
    ]
    if follows == REPAIRED:
        drifts = [drift for drift in drifts if drift.name != f"link to the same {name}"]
    return drifts


def of_folder(name: str, *, removable: bool = True) -> list[Drift]:
    """Everything that happens to a folder that is managed; with what is in it."""
    path, subjects = Path(name), (name,)

    def replace() -> None:
        put_aside(path)
        path.write_bytes(b"a file of another program\n")

    drifts = [
        Drift(f"chmod 0700 {name}", subjects, lambda: path.chmod(0o700)),
        Drift(f"chown {name}", subjects, lambda: os.chown(path, 1234, 4321)),
    ]
    if removable:
        drifts += [
            Drift(f"removed {name}", subjects, lambda: shutil.rmtree(path)),
            Drift(f"file {name}", subjects, replace, REFUSED, lambda: put_back(path)),
        ]
    return drifts


def foreign(name: str, text: str, outcome: str = STAYS) -> Drift:
    """Another program's file, which stays, in an existing folder."""
    path = Path(name)
    return Drift(f"foreign {name}", (name,), lambda: _write(path, text), outcome, lambda: clear(path), (name,))


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)
