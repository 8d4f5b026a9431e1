"""The scratch file is gone whatever happens, and a mount that does not answer holds nobody up.

Then the verbs odirect and proof of the program on the host, as its users type them.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gdsdeploy.host import __main__ as program, evidence
from gdsdeploy.host.cli import parsers
from gdsdeploy.host.evidence import EvidenceRequest
from gdsdeploy.host.odirect import scratch, trials
from gdsdeploy.host.process import TIMED_OUT, apart
from tests.patience import SURELY


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
    record = trials.audit(str(tmp_path))
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
    time.sleep(600)
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
        assert running.wait(SURELY) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none() -> None:
    assert trials.audit("/nowhere")["error"] == "there is no such folder"
    assert trials.audit("/etc/hostname")["error"] == "it isn't a folder"
    assert "EOPNOTSUPP" in trials.audit("/proc")["error"] or "ENOENT" in trials.audit("/proc")["error"]


def test_a_full_filesystem_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_words: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    assert trials.audit(str(tmp_path))["error"] == "it is full (ENOSPC)"


def test_a_filesystem_that_refuses_at_the_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(_descriptor: int, _flags: int) -> int:
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(trials, "reopened", refusing)
    assert trials.audit(str(tmp_path))["trials"] == {"open": {"result": "refused", "error": "EINVAL"}}


def test_other_bytes_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = os.preadv

    def lying(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        done = reading(descriptor, buffers, offset, flags)
        buffers[0][7] ^= 1
        return done

    monkeypatch.setattr(os, "preadv", lying)
    assert trials.audit(str(tmp_path))["trials"]["read"]["result"] == trials.WRONG


def test_a_mount_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda _path: time.sleep(600))
    begin = time.monotonic()
    assert trials.audit(str(tmp_path), 0.3)["error"] == "it did not answer within 0.3 s"
    assert time.monotonic() - begin < SURELY


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
        time.sleep(600)
        return ""

    begin = time.monotonic()
    assert apart(stubborn, 0.2).status == TIMED_OUT
    assert time.monotonic() - begin < SURELY
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_signal_right_after_the_fork_leaves_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    fork = os.fork

    def interrupted() -> int:
        child = fork()
        if child:
            os.kill(os.getpid(), signal.SIGINT)
        return child

    def sleeping() -> str:
        time.sleep(600)
        return ""

    monkeypatch.setattr(os, "fork", interrupted)
    with pytest.raises(KeyboardInterrupt):
        apart(sleeping, 600)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_text_says_what_was_tried_and_what_was_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["odirect", str(tmp_path), "/nowhere"]) == parsers.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{tmp_path}  ")
    assert any(line.startswith("    overwrite, unaligned memory   ") for line in lines)
    assert "  not proven: /nowhere could not be tried: there is no such folder" in lines
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a\nb"
    folder.mkdir()
    assert program.main(["odirect", "--json", str(folder), "/nowhere"]) == parsers.OK
    report = json.loads(capsys.readouterr().out)
    good, bad = report["paths"]
    assert (report["version"], good["path"], good["reason"]) == (1, str(folder), "")
    assert len(good["trials"]) == 13
    assert {"name", "result", "pages", "error"} == set(good["trials"][0])
    assert good["kept"]
    assert bad["result"] == "not proven"
    assert program.main(["odirect", str(folder)]) == parsers.OK
    assert "a b" in capsys.readouterr().out.splitlines()[0], "what a name says is not obeyed by the terminal"


@pytest.mark.parametrize("words", [["odirect"], ["odirect", "--timeout", "soon", "/tmp"], ["proof"]])
def test_bad_input_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(words)
    assert ended.value.code == parsers.UNUSABLE
    assert "usage:" in capsys.readouterr().err


def test_without_a_gpu_nothing_is_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    assert program.main(["proof", str(tmp_path)]) == parsers.OK
    assert "not proven: " in capsys.readouterr().out
    assert program.main(["proof", "--json", str(tmp_path)]) == parsers.OK
    report = json.loads(capsys.readouterr().out)["proofs"][str(tmp_path)]
    assert "unknown" in report[0]["path"]
    assert list(tmp_path.iterdir()) == []


def test_a_mount_that_may_not_be_written_to_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit is made on mount points of the expectation, and on none that it forbids."""
    paths: list[str] = []

    def audited(path: str, _seconds: float, mount: str) -> dict[str, object]:
        paths.append(path)
        return {}

    monkeypatch.setattr(trials, "audit", audited)
    for tried in (("/",), (), (str(tmp_path),)):
        evidence.collect(EvidenceRequest(mounts=("/",), scratch=tried))
    assert paths == ["/"], "a folder that nothing is mounted on is not tried either"
