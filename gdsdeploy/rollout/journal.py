"""The journal of a fleet's rollouts: an SQLite file that one process appends to.  All SQL is here.

It uses a rollback journal (``PERSIST``), not a write-ahead log: readers write nothing, so they work from read-only
media and without write permission, and NFS can't share a write-ahead log's memory between machines.  A commit is on
disk when it returns (``synchronous=FULL``), after about a millisecond.

Triggers refuse changes, and every line has a digest that is checked on each read.  Lines are ordered by their number;
their times are what the clock said.  The lock beside the journal names the process that writes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final, Self

from gdsdeploy import paths
from gdsdeploy.errors import Busy, GdsError, JournalUnusable, translated
from gdsdeploy.model.events import Draft, Event, Kind, Payload, RolloutPlanned, plan_of
from gdsdeploy.model.rollout import Plan


def lock_path(journal: Path) -> Path:
    """The lock file of ``journal``."""
    return journal.with_name(journal.name + ".lock")


@contextlib.contextmanager
def lock_journal(journal: Path, *, doing: str) -> Iterator[None]:
    """Be the one process that may write ``journal``; raises Busy that names another one, or OSError.

    The kernel releases the lock at the end of the process; over NFS the lock holds on all machines.  The file stays,
    because a new file would admit a second process.
    """
    handle = os.open(lock_path(journal), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with translated(BlockingIOError, lambda _: _busy_error(journal, os.pread(handle, 4096, 0))):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "doing": doing}
        os.ftruncate(handle, 0)
        # On a full disk the lock works without a name.
        with contextlib.suppress(OSError):
            os.pwrite(handle, json.dumps(who).encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _busy_error(journal: Path, content: bytes) -> Busy:
    hint = "Watch it with: gdsdeploy rollout status --watch; have it pause with: gdsdeploy rollout pause"
    try:
        who = json.loads(content)
        text = f"process {who['pid']} on {who['host']} ({who['doing']}, since {who['since']})"
    except (ValueError, KeyError, TypeError):
        text = "another process"  # it hasn't written its name yet
    return Busy(f"{journal}: {text} works on a rollout of this fleet", hint=hint)


#: Version of the tables; a newer journal is refused.
SCHEMA: Final = 1
#: "gdsr"; other programs' SQLite files have another.
_APPLICATION: Final = 0x67647372
#: Seconds for which a commit waits for readers, and a reader for a commit.
_PATIENCE: Final = 20.0
#: Lines that are read at a time, so that a reader of a long journal doesn't block its writer.
_PAGE: Final = 2000
_SETTINGS: Final = ("trusted_schema = OFF", "cell_size_check = ON", "synchronous = FULL", "journal_mode = PERSIST")
_LINES: Final = "SELECT number, time, kind, host, data, digest FROM event WHERE rollout = ? AND "
_ONE: Final = _LINES + "number = ?"
_WHOLE: Final = _LINES + "host = '' AND number > 1 ORDER BY number"
_AFTER: Final = _LINES + "number > ? ORDER BY number LIMIT ?"
_LAST: Final = "SELECT max(number) FROM event WHERE rollout = (SELECT key FROM rollout WHERE id = ?)"
#: Faster than calling Kind, which then refuses unknown ones.
_KINDS: Final[Mapping[str, Kind]] = {kind.value: kind for kind in Kind}
#: Events that change the phase of a rollout.
_PHASES: Final = (Kind.PAUSED, Kind.RESUMED, Kind.HALTED, Kind.ABORTED, Kind.ROLLBACK, Kind.FINISHED)

#: For the digest of a line; a column of a damaged file may hold bytes.
_ENCODED: Final = json.JSONEncoder(default=repr).encode

_LOST = (
    'Keep the file, it is the only record; move it away, look at hosts whose drain reason begins with "gdsdeploy '
    'rollout", then start a new rollout: hosts that have the lock already are left as they are'
)
_AGAIN = "gdsdeploy rollout resume"
#: SQLite's primary result code → what is wrong, and what to do; https://www.sqlite.org/rescode.html
_MEANING: Final[Mapping[int, tuple[str, str]]] = {
    sqlite3.SQLITE_NOTADB: ("is no journal of gdsdeploy: it is no SQLite file", _LOST),
    sqlite3.SQLITE_CORRUPT: ("is damaged", _LOST),
    sqlite3.SQLITE_FULL: ("cannot be written: the disk is full", f"Free space there, then: {_AGAIN}"),
    sqlite3.SQLITE_READONLY: ("cannot be written: it is read-only", f"Make it and its folder writable, then: {_AGAIN}"),
    sqlite3.SQLITE_BUSY: ("is locked by another program", f"End what has it open, e.g. a backup, then: {_AGAIN}"),
    sqlite3.SQLITE_IOERR: ("cannot be read or written: the disk reports an error or a limit", "Look at dmesg and df"),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", "It must be a file which you may read, in a folder where you may"),
    sqlite3.SQLITE_CONSTRAINT: ("was written by another program meanwhile", _AGAIN),
}


@dataclass(frozen=True)
class Summary:
    """One rollout of a journal, without its hosts."""

    id: str
    #: seconds since the epoch, of its first and its last event
    begun: float
    last: float
    #: how many
    events: int
    #: whether it ended, and wasn't resumed
    finished: bool


def path_of(fleet: Path) -> Path:
    """Path of the journal of the fleet file ``fleet``, which need not exist; the same through any link."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", fleet.resolve().stem)
    return paths.state() / "rollouts" / f"{name}-{paths.fleet_digest(fleet)[:12]}.sqlite"


class Journal:
    """A journal to read, also while another process writes it.  Times are seconds since the epoch."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._db = connection

    def rollouts(self) -> list[Summary]:
        """Every rollout, the oldest first."""
        summaries = []
        for key, name in self._rows("SELECT key, id FROM rollout ORDER BY key"):
            ((count,),) = self._rows("SELECT max(number) FROM event WHERE rollout = ?", key)
            ends = [row for number in (1, count) for row in self._rows(_ONE, key, number)]
            if len(ends) < 2:
                raise JournalUnusable(f"{self.path}: line 1 of {name} is missing", hint=_LOST)
            first, last = (self._event(name, row) for row in ends)
            whole = [self._event(name, row) for row in self._rows(_WHOLE, key)]
            phase = next((event.kind for event in reversed(whole) if event.kind in _PHASES), None)
            summaries.append(Summary(name, first.time, last.time, count, phase is Kind.FINISHED))
        return summaries

    def newest(self) -> str | None:
        """Id of the rollout that was begun last; None: there is none."""
        rows = self._rows("SELECT id FROM rollout ORDER BY key DESC LIMIT 1")
        return str(rows[0][0]) if rows else None

    def events(self, rollout: str, after: int = 0) -> Iterator[Event]:
        """The events of the rollout ``rollout`` with numbers above ``after``, in order, as far as written now.

        Raises JournalUnusable where a line was changed or is missing.
        """
        key = self._rows("SELECT key FROM rollout WHERE id = ?", rollout)
        while key and (rows := self._rows(_AFTER, *key[0], after, _PAGE)):
            for row in rows:
                event = self._event(rollout, row)
                if event.number != after + 1:
                    raise JournalUnusable(f"{self.path}: line {after + 1} of {rollout} is missing", hint=_LOST)
                after = event.number
                yield event

    def plan(self, rollout: str) -> Plan:
        """The plan of the rollout ``rollout``; raises JournalUnusable: an unknown id, or another version."""
        first = next(self.events(rollout), None)
        if first is None:
            raise JournalUnusable(f"{self.path}: there is no rollout {rollout}", hint="See: gdsdeploy rollout history")
        try:
            return plan_of(first)
        except (ValueError, RecursionError) as error:
            hint = "Continue with the gdsdeploy that began this rollout"
            raise JournalUnusable(f"{self.path}: {rollout}: {error}", hint=hint) from error

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with _journal_errors(self.path):
            return self._db.execute(query, values).fetchall()

    def _event(self, rollout: str, row: tuple[Any, ...]) -> Event:
        number, at, kind, host, data, digest = row
        if digest != _digest(rollout, number, at, kind, host, data):
            raise JournalUnusable(f"{self.path}: line {number} of {rollout} was changed or is damaged", hint=_LOST)
        try:
            return Event(number, at, _KINDS.get(kind) or Kind(kind), host, json.loads(data))
        except (ValueError, RecursionError) as error:
            what = f"{self.path}: line {number} of {rollout} is not understood: {error}"
            raise JournalUnusable(what, hint="Use the gdsdeploy that wrote it, or a newer one") from error

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Writer(Journal):
    """Appends to a journal, to one rollout at a time; until it's closed, no other process can."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, lock: contextlib.ExitStack, wall: Callable[[], float]
    ) -> None:
        super().__init__(path, connection)
        self._lock = lock
        self._wall = wall
        self._rollout = ""
        self._file = path.stat()

    def begin(self, plan: Plan) -> Event:
        """Write the first event of a new rollout, and continue with that rollout."""
        self._rollout = plan.id
        with self._transaction():
            self._db.execute("INSERT INTO rollout (id) VALUES (?)", (plan.id,))
            return self._insert(Event.of(1, self._wall(), "", RolloutPlanned(plan.as_json())))

    def go_on(self, rollout: str) -> Plan:
        """Continue with the rollout ``rollout``; returns its plan."""
        plan = self.plan(rollout)
        self._rollout = rollout
        return plan

    def append(self, payload: Payload, host: str = "") -> Event:
        """Write one event; on disk when this returns.  Raises JournalUnusable; then it is not written."""
        return self.append_many([(host, payload)])[0]

    def append_many(self, drafts: Sequence[Draft]) -> list[Event]:
        """Write events in their order, all or none of them; on disk when this returns.  Raises JournalUnusable."""
        if not drafts:
            return []
        with self._transaction():
            # After a failed commit only the file has the last number.
            ((last,),) = self._db.execute(_LAST, (self._rollout,))
            numbered = enumerate(drafts, (last or 0) + 1)
            return [self._insert(Event.of(number, self._wall(), *draft)) for number, draft in numbered]

    def extend(self, events: Sequence[Event]) -> None:
        """Likewise, for events that have their numbers and times already; the first follows the last in the file."""
        if events:
            with self._transaction():
                for event in events:
                    self._insert(event)

    def _insert(self, event: Event) -> Event:
        """Write the event, and return it as it will be read."""
        text = json.dumps(event.data, sort_keys=True, separators=(",", ":"), allow_nan=False)
        line = event.number, event.time, event.kind, event.host, text
        self._db.execute(
            "INSERT INTO event VALUES ((SELECT key FROM rollout WHERE id = ?), ?, ?, ?, ?, ?, ?)",
            (self._rollout, *line, _digest(self._rollout, *line)),
        )
        return replace(event, data=json.loads(text))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with _journal_errors(self.path):
            # SQLite would continue to write into a file without a name.
            if not self.path.exists() or not os.path.samestat(self._file, self.path.stat()):
                raise JournalUnusable(
                    f"{self.path}: was moved, removed or replaced meanwhile", hint=f"Put it back; {_AGAIN}"
                )
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Close the file, then release the lock."""
        with self._lock:
            super().close()


def reading(path: Path) -> Journal:
    """Open the journal ``path`` to read; nothing is written beside it or into it.

    Raises JournalUnusable: there is none, it is damaged, or of a newer gdsdeploy.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_journal_errors(path))
        _must_be_there(path)
        try:
            connection = stack.enter_context(contextlib.closing(_connect(path, "ro")))
            _check(path, connection)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            # Its writer was killed in a commit; the next writer undoes that, a reader does in a copy.
            connection = stack.enter_context(contextlib.closing(_settled_copy(path)))
            _check(path, connection)
        stack.pop_all()
        return Journal(path, connection)


def writing(path: Path, *, doing: str, wall: Callable[[], float] = time.time) -> Writer:
    """Open or create the journal ``path`` to append to.

    doing: the command, for other processes that find the journal locked, such as ``rollout resume``.
    Raises Busy: another process has it; JournalUnusable: it is damaged, read-only, of a newer gdsdeploy, …
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_journal_errors(path))
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = stack.enter_context(contextlib.ExitStack())
        lock.enter_context(lock_journal(path, doing=doing))
        if not os.path.lexists(path):
            _create(path)
        _must_be_there(path)
        connection = stack.enter_context(contextlib.closing(_connect(path, "rw")))
        _check(path, connection)
        # SQLite opens a read-only file without an error, and fails at the first change.
        for statement in ("BEGIN IMMEDIATE", f"PRAGMA user_version = {SCHEMA}", "ROLLBACK"):
            connection.execute(statement)
        stack.pop_all()
        return Writer(path, connection, lock.pop_all(), wall)


def _must_be_there(path: Path) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise JournalUnusable(
            f"{path}: there is no journal: no rollout of this fleet file was begun with this state folder",
            hint="Name the fleet file that it was begun with, as the same user, or set GDSDEPLOY_STATE_DIR as then",
        ) from None
    if size == 0:
        raise JournalUnusable(f"{path}: is damaged: it is empty", hint=_LOST)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Every statement is its own transaction unless one is begun."""
    name = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(name, uri=True, isolation_level=None, timeout=_PATIENCE)
    # Damaged text then fails its digest instead of the decoder.
    connection.text_factory = lambda text: text.decode(errors="replace")
    for setting in _SETTINGS:
        connection.execute(f"PRAGMA {setting}")
    return connection


def _check(path: Path, connection: sqlite3.Connection) -> None:
    """Raise JournalUnusable unless it is an undamaged journal of a known version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise JournalUnusable(f"{path}: is no journal of gdsdeploy but an SQLite file of something else", hint=_LOST)
    if version > SCHEMA:
        raise JournalUnusable(
            f"{path}: was written by a newer gdsdeploy (version {version}; this one knows {SCHEMA})",
            hint="Use that gdsdeploy for this fleet",
        )
    problems = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(3)")]
    if problems != ["ok"]:
        raise JournalUnusable(f"{path}: is damaged: {'; '.join(problems)}", hint=_LOST)


def _settled_copy(path: Path) -> sqlite3.Connection:
    """A copy in memory, without the commit in which its writer was killed."""
    sides = [path.with_name(path.name + end) for end in ("-journal", "")]
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-journal-") as folder:
        while True:
            before = [_version(side) for side in sides]
            for side in sides:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(side, Path(folder) / side.name)
            # Otherwise the next writer has begun meanwhile, and the copies don't match.
            if before == [_version(side) for side in sides]:
                break
        memory = sqlite3.connect(":memory:", isolation_level=None)
        with contextlib.closing(_connect(Path(folder) / path.name, "rw")) as source:
            source.backup(memory)
    return memory


def _version(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _create(path: Path) -> None:
    """Create an empty journal in one step; for the holder of the lock."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.executescript(resources.files(__package__).joinpath("journal.sql").read_text(encoding="utf-8"))
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _digest(rollout: str, number: int, at: float, kind: str, host: str, data: str) -> str:
    line = _ENCODED([rollout, number, at, str(kind), host, data])
    return hashlib.sha256(line.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _journal_errors(path: Path) -> Iterator[None]:
    """Errors of SQLite and of the operating system as JournalUnusable."""
    try:
        yield
    except GdsError:
        raise
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        what, hint = _MEANING.get(code, ("cannot be used", _LOST))
        raise JournalUnusable(f"{path}: {what} ({error})", hint=hint) from error
    except UnicodeDecodeError as error:
        # SQLite's message quotes bytes of the damaged file.
        raise JournalUnusable(f"{path}: is damaged", hint=_LOST) from error
    except OSError as error:
        hint = f"Make {path.parent} a folder that you can write to, with space left, then: {_AGAIN}"
        raise JournalUnusable(f"{path}: cannot be opened: {error.strerror or error}", hint=hint) from error
