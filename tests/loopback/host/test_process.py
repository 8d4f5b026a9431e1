from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from tests.patience import SURELY, with_time

CODE = """
import os, signal
# A shell has what it starts in the background ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages import managers
try:
    print("began", flush=True)
    managers.run(ManagedHost(), ["sh", "-c", "sleep 1; echo whole"], 30)
    print("went on", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_it_gives_status_and_both_outputs() -> None:
    done = process.run([sys.executable, "-c", "import sys; print('out'); sys.stderr.write('err'); sys.exit(3)"], 30)
    assert (done.status, done.stdout, done.stderr) == (3, "out\n", "err")


def test_the_locale_is_c_and_env_is_added() -> None:
    done = process.run(["sh", "-c", "echo $LC_ALL $ADDED ${HOME:+home}"], 30, env={"ADDED": "x", "LC_ALL": "de_DE"})
    assert done.stdout == "C x home\n"


def test_input_reaches_the_program_and_one_that_does_not_read_it_is_no_error() -> None:
    assert process.run(["cat"], 30, input="text").stdout == "text"
    assert process.run(["true"], 30, input="x" * 5_000_000).status == 0
    assert process.run(["cat"], 10).status == 0, "without input, stdin is empty"


def test_a_missing_program_is_127_and_says_its_name_and_so_is_a_missing_directory() -> None:
    done = process.run(["/nowhere/program"], 5)
    assert done.status == process.run(["true"], 5, cwd="/nowhere").status == process.NOT_FOUND
    assert "/nowhere/program: No such file" in done.stderr


def test_a_program_that_hangs_in_the_kernel_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(process, "_kill", left.append)
    done = process.run(["sh", "-c", "exec sleep 60 >&- 2>&-"], 1)
    assert (done.status, left[0].poll()) == (process.TIMED_OUT, None), "it goes on, because nothing ends it"
    left[0].kill()


def test_a_program_past_its_time_is_killed_with_its_children() -> None:
    start, argv = time.monotonic(), ["sh", "-c", "echo begun; sleep 600 & sleep 600"]
    done = with_time(lambda limit: process.run(argv, limit), lambda done: done.stdout)
    assert time.monotonic() - start < SURELY
    assert done.status == process.TIMED_OUT
    assert done.stdout == "begun\n"
    assert re.search(r"killed after \d+ s", done.stderr)


def test_output_is_bounded_and_the_program_still_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "OUTPUT_LIMIT", 1000)
    done = process.run([sys.executable, "-c", "import sys; sys.stdout.write('x' * 300000)"], 30)
    assert done.status == 0
    assert done.truncated
    assert len(done.stdout) == 1000


def test_a_signal_gives_a_negative_status() -> None:
    assert process.run(["sh", "-c", "kill -TERM $$"], 30).status == -15


def test_sbin_is_on_the_path() -> None:
    assert "/usr/sbin" in process.run(["sh", "-c", "echo $PATH"], 30, env={"PATH": "/bin"}).stdout


def test_pipe_passes_bytes_from_file_to_file(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(bytes(range(256)) * 4000)
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("w+b") as sink:
        done = process.pipe(["cat"], source, sink, timeout=30, limit=1 << 20)
        sink.seek(0)
        assert (done.status, done.truncated) == (0, False)
        assert sink.read() == bytes(range(256)) * 4000


def test_pipe_stops_writing_at_its_limit(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 500_000)
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("w+b") as sink:
        done = process.pipe(["cat"], source, sink, timeout=30, limit=70_000)
        assert (done.truncated, sink.tell()) == (True, 70_000)


def test_pipe_ends_a_program_that_passes_the_limit_and_would_go_on_for_ever(tmp_path: Path) -> None:
    start = time.monotonic()
    with Path("/dev/null").open("rb") as source, (tmp_path / "out").open("w+b") as sink:
        done = process.pipe(["yes"], source, sink, timeout=600, limit=70_000)
    assert (done.truncated, done.status) == (True, -13)
    assert time.monotonic() - start < SURELY


def test_pipe_reports_a_sink_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"x" * 500_000)
    with (
        (tmp_path / "in").open("rb") as source,
        Path("/dev/full").open("wb", buffering=0) as sink,
        pytest.raises(OSError, match="No space left"),
    ):
        process.pipe(["cat"], source, sink, timeout=30, limit=1 << 20)


def test_a_variable_can_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAKEFLAGS", "-k")
    assert process.run(["sh", "-c", "echo ${MAKEFLAGS-unset}"], 30, env={"MAKEFLAGS": None}).stdout == "unset\n"


def test_an_interrupted_program_ends_first() -> None:
    running = subprocess.Popen([sys.executable, "-c", CODE + "    print(os.path.exists('/'))"], stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline() == b"began\n"
    running.send_signal(signal.SIGINT)
    assert running.stdout.read() == b"interrupted\nTrue\n"
    assert running.wait(SURELY) == 0


def test_a_signal_right_after_the_start_leaves_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = subprocess.Popen, list[subprocess.Popen[bytes]]()

    def interrupted(*words: Any, **settings: Any) -> subprocess.Popen[bytes]:
        started.append(start(*words, **settings))
        os.kill(os.getpid(), signal.SIGINT)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.run(["sleep", "600"], 600)
    try:
        assert started[0].wait(SURELY) == -signal.SIGKILL
    finally:
        started[0].kill()


def test_what_the_program_left_is_whole() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: came.append(number))
    try:
        with process.defer_signals():
            done = process.run(["sh", "-c", f"kill -TERM {os.getpid()}; sleep 0.2; echo whole"], 30)
            assert came == []
        assert (done.status, done.stdout) == (0, "whole\n")
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_thread_just_runs() -> None:
    outputs: list[str] = []

    def work() -> None:
        with process.defer_signals():
            outputs.append(process.run(["echo", "there"], 30).stdout)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outputs == ["there\n"]
