"""The journal of rollouts: what is written stays, and whatever is wrong with the file is said before it matters."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy.errors import Busy, JournalUnusable
from gdsdeploy.model.events import Event, Kind, Note, RolloutFinished, RolloutPaused, StepBegun, StepDone
from gdsdeploy.model.rollout import Plan, Wave
from gdsdeploy.rollout import journal
from gdsdeploy.run import as_root, which

PLAN = Plan("20261121T1054-7f3a", "/fleet.yml", "sha256:1", "sha256:2", (Wave("canary", ("a", "b"), soak=60),), {})
ROOT = Path(__file__).parents[3]
#: What children of these tests begin with.
BEGIN = """
import os, signal, sys, time
from pathlib import Path
from gdsdeploy.rollout import journal
from gdsdeploy.errors import GdsError
from gdsdeploy.model.events import Event, Note
from gdsdeploy.model.rollout import Plan, Wave
path = Path(sys.argv[1])
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with one rollout of three events, closed."""
    path = tmp_path / "state" / "fleet.sqlite"
    with journal.writing(path, doing="test") as writer:
        writer.begin(PLAN)
        writer.append_many([("a", StepBegun("drain", 1)), ("a", StepDone("drain"))])
    return path


def child(path: Path, script: str, *, before: str = "") -> subprocess.Popen[str]:
    """Python in a process of its own; ``before`` is done by sh in a mount namespace of its own, as root."""
    argv = [sys.executable, "-c", BEGIN + textwrap.dedent(script), str(path)]
    if before:
        alone = [which("unshare"), "--mount", "--propagation", "private"]
        argv = as_root([*alone, "sh", "-c", f'{before} && exec "$@"', "sh", *argv])
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def output_of(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return out.splitlines()


def texts(path: Path) -> list[str]:
    with journal.reading(path) as reader:
        return [event.data.get("text", event.kind) for event in reader.events(PLAN.id)]


def test_what_was_written_is_read(path: Path) -> None:
    with journal.reading(path) as reader:
        events = list(reader.events(PLAN.id))
        assert [(event.number, event.kind, event.host) for event in events] == [
            (1, Kind.PLANNED, ""),
            (2, Kind.BEGIN, "a"),
            (3, Kind.END, "a"),
        ]
        assert events[1].data == {"step": "drain", "attempt": 1}
        assert list(reader.events(PLAN.id, after=2)) == events[2:]
        assert reader.plan(PLAN.id) == PLAN
        assert reader.newest() == PLAN.id
        (summary,) = reader.rollouts()
        assert (summary.id, summary.events, summary.begun, summary.finished) == (PLAN.id, 3, events[0].time, False)
        with pytest.raises(JournalUnusable, match="no rollout other"):
            reader.plan("other")


def test_numbers_order_events_and_rollouts_whatever_the_clock_says(path: Path) -> None:
    times = iter([50.0, 3000000000.0, 1.0, 2.0, 3.0])
    later = Plan("20200101T0000-0000", *(getattr(PLAN, name) for name in list(PLAN.__dataclass_fields__)[1:]))
    with journal.writing(path, doing="test", wall=lambda: next(times)) as writer:
        writer.begin(later)
        writer.append(RolloutPaused("x"))
        writer.append(RolloutFinished())
        writer.go_on(PLAN.id)
        writer.append(Note())
        assert [event.time for event in writer.events(later.id)] == [50.0, 3000000000.0, 1.0]
        assert writer.newest() == later.id
        old, new = writer.rollouts()
    assert (old.id, old.events, old.last) == (PLAN.id, 4, 2.0)
    assert (new.id, new.last, new.finished) == (later.id, 1.0, True)


def test_the_journal_is_the_same_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert journal.path_of(tmp_path / "link" / "my fleet.yml") == journal.path_of(tmp_path / "real" / "my fleet.yml")
    assert journal.path_of(tmp_path / "real" / "fleet.yml") != journal.path_of(tmp_path / "other" / "fleet.yml")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE event SET data = '{}'",
        "DELETE FROM event WHERE number = 3",
        "INSERT OR REPLACE INTO event VALUES (1, 2, 0, 'note', '', '{}', '')",
        "INSERT INTO event VALUES (1, 7, 0, 'note', '', '{}', '')",
        "INSERT INTO event VALUES (NULL, 4, 0, 'note', '', '{}', '')",
        "UPDATE rollout SET id = 'other'",
        "DELETE FROM rollout",
        "INSERT OR REPLACE INTO rollout VALUES (1, 'other')",
        f"INSERT OR REPLACE INTO rollout (id) VALUES ('{PLAN.id}')",
    ],
)
def test_nothing_can_be_changed_in_it(path: Path, statement: str) -> None:
    before = texts(path)
    with contextlib.closing(sqlite3.connect(path)) as shell, pytest.raises(sqlite3.IntegrityError), shell:
        shell.execute(statement)
    assert texts(path) == before


def test_events_are_written_all_or_none(path: Path) -> None:
    with journal.writing(path, doing="test") as writer:
        writer.go_on(PLAN.id)
        with pytest.raises(TypeError):
            writer.append_many([("", Note("one")), ("", Note(object()))])
        assert writer.append(Note("\udcff of a file's name")).number == 4
    assert texts(path)[3:] == ["\udcff of a file's name"]


def test_a_commit_waits_for_the_disk(path: Path) -> None:
    with journal.writing(path, doing="test") as writer:
        assert writer._db.execute("PRAGMA synchronous").fetchone() == (2,)
        writer.go_on(PLAN.id)
        writer.append(Note())
        assert writer._db.execute("PRAGMA journal_mode").fetchone() == ("persist",)
        (side,) = [entry for entry in path.parent.iterdir() if entry.name.endswith("-journal")]
        assert not any(side.read_bytes()[:28]), "emptied by a write, which is synced; a removal would not be"


def test_a_reader_writes_nothing(path: Path) -> None:
    before = sorted((entry.name, entry.stat().st_mtime_ns) for entry in [*path.parent.iterdir(), path.parent])
    texts(path)
    assert sorted((entry.name, entry.stat().st_mtime_ns) for entry in [*path.parent.iterdir(), path.parent]) == before


def empty(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 // 4096 * 4096)


def text(path: Path) -> None:
    path.write_text("waves: []\n" * 1000)


def of_others(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as shell, shell:
        shell.execute("CREATE TABLE event (rollout)")


def newer(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as shell:
        shell.execute("PRAGMA user_version = 2")


def torn(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 * 2 : 4096 * 2 + 512] = b"\xff" * 512
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()
    path.parent.joinpath(path.name + ".lock").unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "message", "reads_only"),
    [
        (empty, "damaged: it is empty", False),
        (half, "is damaged", False),
        (text, "is no SQLite file", False),
        (of_others, "SQLite file of something else", False),
        (newer, "newer gdsdeploy .version 2; this one knows 1", False),
        (torn, "is damaged", False),
        (remove, "there is no journal", True),
        (folder, "cannot be", False),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_file_that_is_no_journal(path: Path, damage: Callable[[Path], None], message: str, reads_only: bool) -> None:
    damage(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(JournalUnusable, match=message) as caught:
        journal.reading(path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    if not reads_only:
        with pytest.raises(JournalUnusable, match=message):
            journal.writing(path, doing="test")
        assert (path.read_bytes() if path.is_file() else None) == before, "what it was is kept"
        with journal.writing(path.with_name("other.sqlite"), doing="test"):
            pass


def test_a_changed_line_is_noticed_when_it_is_read(path: Path) -> None:
    content = path.read_bytes()
    assert content.count(b'"attempt":1') == 1
    path.write_bytes(content.replace(b'"attempt":1', b'"attempt":3'))
    with journal.reading(path) as reader, pytest.raises(JournalUnusable, match=r"line 2 of .* changed or is damaged"):
        list(reader.events(PLAN.id))


@pytest.mark.parametrize(
    ("column", "value"),
    [("data", b"\xff"), ("host", b"a"), ("kind", b"begin"), ("digest", b"0"), ("time", b"1"), ("data", 1)],
)
def test_a_column_of_another_kind_is_noticed_when_it_is_read(path: Path, column: str, value: object) -> None:
    with contextlib.closing(sqlite3.connect(path)) as shell, shell:
        shell.execute("DROP TRIGGER event_stays")
        shell.execute(f"UPDATE event SET {column} = ? WHERE number = 2", (value,))
    with pytest.raises(JournalUnusable) as caught, journal.reading(path) as reader:
        list(reader.events(PLAN.id))
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_a_damaged_schema_is_noticed(path: Path) -> None:
    content = path.read_bytes()
    at = content.index(b"CREATE TABLE event")
    path.write_bytes(content[: at + 13] + b"\xff\xfe" + content[at + 15 :])
    with pytest.raises(JournalUnusable, match=re.escape(str(path))):
        journal.reading(path)


def test_a_missing_line_is_noticed_when_it_is_read(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as shell, shell:
        shell.executescript("DROP TRIGGER event_keeps; DELETE FROM event WHERE number = 2")
    with journal.reading(path) as reader, pytest.raises(JournalUnusable, match=r"line 2 of .* is missing"):
        list(reader.events(PLAN.id))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(JournalUnusable, match=r"cannot be opened: .*irectory"):
        journal.writing(tmp_path / "state" / "rollouts" / "fleet.sqlite", doing="test")


def test_read_only_media_can_be_read(path: Path) -> None:
    before = f"mount --bind {path.parent} {path.parent} && mount -o remount,ro,bind {path.parent}"
    script = f"""
        with journal.reading(path) as reader:
            print(len(list(reader.events("{PLAN.id}"))))
        try:
            journal.writing(path, doing="test")
        except GdsError as error:
            print(type(error).__name__, error.message)
        """
    count, refused = output_of(child(path, script, before=before))
    assert count == "3"
    assert refused.startswith("JournalUnusable")
    assert "Read-only file system" in refused


def test_a_read_only_file_is_not_written(path: Path) -> None:
    # The folder is writable, and root may write whatever a file's mode says: only a mount refuses.
    path.with_name(path.name + "-journal").touch()
    before = f"mount --bind {path} {path} && mount -o remount,ro,bind {path}"
    script = """
        try:
            journal.writing(path, doing="test")
        except GdsError as error:
            print(type(error).__name__, error.message, error.hint)
        """
    (refused,) = output_of(child(path, script, before=before))
    assert "JournalUnusable" in refused
    assert "it is read-only" in refused
    assert "resume" in refused


KILLED_IN_A_COMMIT = f"""
    writer = journal.writing(path, doing="test")
    writer.go_on("{PLAN.id}")
    writer._db.execute("PRAGMA cache_size = 5")  # what does not fit is written to the file before the commit
    with writer._transaction():
        for number in range(4, 3000):
            writer._insert(Event.of(number, time.time(), "", Note("x" * 200)))
        os.kill(os.getpid(), signal.SIGKILL)
    """


def test_a_writer_that_is_killed_in_its_commit(path: Path) -> None:
    size = path.stat().st_size
    assert child(path, KILLED_IN_A_COMMIT).wait(300) == -signal.SIGKILL
    assert path.stat().st_size > size, "half of the commit is in the file"
    content = path.read_bytes()
    assert len(texts(path)) == 3, "a reader sees none of it"
    assert path.read_bytes() == content, "and leaves it to the next writer"
    before = f"mount --bind {path.parent} {path.parent} && mount -o remount,ro,bind {path.parent}"
    script = f'print(len(list(journal.reading(path).events("{PLAN.id}"))))'
    assert output_of(child(path, script, before=before)) == ["3"], "also from read-only media"
    with journal.writing(path, doing="test") as writer:
        writer.go_on(PLAN.id)
        assert writer.append(Note()).number == 4


@pytest.mark.parametrize("by", ["nothing", "another"])
def test_a_journal_that_is_taken_away_while_it_is_written(path: Path, by: str) -> None:
    with journal.writing(path, doing="test") as writer:
        writer.go_on(PLAN.id)
        path.rename(aside := path.with_name("aside"))
        if by == "another":
            path.write_bytes(aside.read_bytes())
        with pytest.raises(JournalUnusable, match="was moved, removed or replaced"):
            writer.append(Note())
        aside.rename(path)
        assert writer.append(Note()).number == 4


def test_a_full_disk(tmp_path: Path) -> None:
    script = f"""
        ballast = path.with_name("ballast")
        ballast.write_bytes(bytes(64 << 10))
        writer = journal.writing(path, doing="test")
        writer.begin(Plan("{PLAN.id}", "/f", "", "", (Wave("all", ("a",)),), {{}}))
        written = 1
        try:
            while written < 5000:
                writer.append(Note("x" * 500))
                written += 1
        except GdsError as error:
            print(type(error).__name__, error.message, error.hint)
        with journal.reading(path) as reader:
            print(len(list(reader.events("{PLAN.id}"))) - written)
        ballast.unlink()
        print(writer.append(Note()).number - written)
        """
    place = tmp_path / "small"
    place.mkdir()
    full, lost, after = output_of(child(place / "x.sqlite", script, before=f"mount -t tmpfs -o size=256k none {place}"))
    assert full.startswith("JournalUnusable")
    assert "the disk is full" in full
    assert "Free space" in full
    assert (lost, after) == ("0", "1")


def test_one_writer(path: Path) -> None:
    script = 'writer = journal.writing(path, doing="rollout start"); print("has it", flush=True); sys.stdin.read()'
    holder = child(path, script)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "has it\n"
    with pytest.raises(Busy, match=rf"process {holder.pid} on \S+ \(rollout start, since 2.*Z\)") as caught:
        journal.writing(path, doing="test")
    assert "rollout status --watch" in str(caught.value.hint)
    assert len(texts(path)) == 3, "readers are let in"
    holder.kill()
    holder.wait()
    with journal.writing(path, doing="test"):
        pass
    with journal.writing(path, doing="test"):
        pass


def test_another_program_that_has_it_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_PATIENCE", 0.05)
    with journal.writing(path, doing="test") as writer, contextlib.closing(sqlite3.connect(path)) as shell:
        writer.go_on(PLAN.id)
        shell.execute("BEGIN EXCLUSIVE")
        with pytest.raises(JournalUnusable, match="is locked by another program"):
            writer.append(Note())
        with pytest.raises(JournalUnusable, match="is locked by another program"):
            journal.reading(path)
        shell.execute("ROLLBACK")
        assert writer.append(Note()).number == 4


def test_somebody_who_writes_although_he_has_no_lock_is_found_out(path: Path) -> None:
    with journal.writing(path, doing="test") as writer, contextlib.closing(sqlite3.connect(path)) as shell, shell:
        writer.go_on(PLAN.id)
        with pytest.raises(JournalUnusable, match="written by another program"), writer._transaction():
            writer._insert(Event.of(3, time.time(), "", Note()))
        assert not shell.in_transaction


def test_readers_while_it_is_written(path: Path) -> None:
    script = f"""
        writer = journal.writing(path, doing="test")
        writer.go_on("{PLAN.id}")
        for number in range(4, 604, 3):
            writer.append_many([("", Note(str(number + more))) for more in range(3)])
        """
    process = child(path, script)
    problems: list[object] = []

    def read() -> None:
        number = 3
        while number < 603:
            with journal.reading(path) as reader:
                batch = [event.data["text"] for event in reader.events(PLAN.id, after=number)]
            if batch != [str(number + 1 + place) for place in range(len(batch))] or len(batch) % 3:
                problems.append(batch)
                return
            number += len(batch)
            time.sleep(0.01)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert output_of(process) == []
    assert problems == []
