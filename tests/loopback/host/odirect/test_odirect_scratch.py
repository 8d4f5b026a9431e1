"""The scratch file is gone whatever happens, and a mount that does not answer holds nobody up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gdsdeploy.host.odirect import scratch, trials
from gdsdeploy.host.odirect import trials as odirect
from gdsdeploy.host.process import TIMED_OUT, apart


def test_a_file_without_a_name(tmp_path: Path) -> None:
    with scratch.scratch(str(tmp_path)) as (descriptor, kind):
        assert kind == scratch.NAMELESS
        assert list(tmp_path.iterdir()) == []
        again = scratch.reopened(descriptor, os.O_DIRECT)
        os.close(again)


def without_tmpfile(monkeypatch: pytest.MonkeyPatch, number: int = errno.EOPNOTSUPP) -> None:
    """As filesystems without O_TMPFILE answer: NFS, overlay before 6.3, FUSE."""
    opening = os.open

    def refusing(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(number, os.strerror(number))
        return opening(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR])
def test_where_it_needs_a_name_it_loses_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    without_tmpfile(monkeypatch, number)
    with scratch.scratch(str(tmp_path)) as (descriptor, kind):
        assert kind == scratch.UNLINKED
        assert list(tmp_path.iterdir()) == []
        os.pwrite(descriptor, b"x", 0)
    record = odirect.audit(str(tmp_path))
    assert record["kept"] == scratch.UNLINKED
    assert record["trials"]["read"]["result"] in (trials.BYPASSED, trials.BUFFERED)


#: A filesystem on which a file without a name cannot be used, and an end by a signal.
NAMED = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[2])
from gdsdeploy.host.odirect import scratch
opening, reopened = os.open, scratch.reopened
def no_tmpfile(path, flags, mode=0o777):
    if flags & os.O_TMPFILE == os.O_TMPFILE:
        raise OSError(95, "no such flag")
    return opening(path, flags, mode)
os.open = no_tmpfile
def stale(descriptor, flags):
    if "(deleted)" in os.readlink("/proc/self/fd/%d" % descriptor):
        raise OSError(116, "stale")
    return reopened(descriptor, flags)
scratch.reopened = stale
signal.signal(signal.SIGINT, signal.SIG_DFL)
with scratch.scratch(sys.argv[1]) as (descriptor, kept):
    os.pwrite(descriptor, b"x", 0)
    print(kept, os.listdir(sys.argv[1])[0], flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_file_that_keeps_its_name_is_removed_when_the_program_is_ended(tmp_path: Path, number: int) -> None:
    argv = [sys.executable, "-c", NAMED, str(tmp_path), str(Path(__file__).parents[4])]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        line = running.stdout.readline()
        assert line.startswith(scratch.NAMED + " " + scratch.PREFIX)
        assert len(list(tmp_path.iterdir())) == 1
        running.send_signal(number)
        assert running.wait(10) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none() -> None:
    assert odirect.audit("/nowhere")["error"] == "there is no such folder"
    assert odirect.audit("/etc/hostname")["error"] == "it isn't a folder"
    assert "EOPNOTSUPP" in odirect.audit("/proc")["error"] or "ENOENT" in odirect.audit("/proc")["error"]


def test_a_full_filesystem_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_words: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    assert odirect.audit(str(tmp_path))["error"] == "it is full (ENOSPC)"


def test_a_filesystem_that_refuses_at_the_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(_descriptor: int, _flags: int) -> int:
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(trials, "reopened", refusing)
    assert odirect.audit(str(tmp_path))["trials"] == {"open": {"result": "refused", "error": "EINVAL"}}


def test_other_bytes_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = os.preadv

    def lying(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        done = reading(descriptor, buffers, offset, flags)
        buffers[0][7] ^= 1
        return done

    monkeypatch.setattr(os, "preadv", lying)
    assert odirect.audit(str(tmp_path))["trials"]["read"]["result"] == trials.WRONG


def test_a_mount_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda _path: time.sleep(60))
    begin = time.monotonic()
    assert odirect.audit(str(tmp_path), 0.3)["error"] == "it did not answer within 0.3 s"
    assert time.monotonic() - begin < 5


def test_work_apart() -> None:
    assert apart(lambda: "ü" * 100_000, 10).stdout == "ü" * 100_000
    failed = apart(lambda: str(1 // 0), 10)
    assert (failed.status, failed.stderr) == (1, "ZeroDivisionError: integer division or modulo by zero")

    def ended() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    killed = apart(ended, 10)
    assert killed.status == -signal.SIGKILL


def test_work_that_ignores_its_end_is_killed() -> None:
    def stubborn() -> str:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
        return ""

    begin = time.monotonic()
    assert apart(stubborn, 0.2).status == TIMED_OUT
    assert time.monotonic() - begin < 5
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
