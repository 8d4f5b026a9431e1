"""Signals wait until a program that must not be cut off has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from gdsdeploy.host import process

CODE = """
import os, signal
# A shell has what it starts in the background ignore interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
from gdsdeploy.host.apply.host import ManagedHost
try:
    print("began", flush=True)
    ManagedHost().attempt_whole(["sh", "-c", "sleep 1; echo whole"], 30)
    print("went on", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupted_program_ends_first() -> None:
    running = subprocess.Popen([sys.executable, "-c", CODE + "    print(os.path.exists('/'))"], stdout=subprocess.PIPE)
    assert running.stdout is not None
    assert running.stdout.readline() == b"began\n"
    running.send_signal(signal.SIGINT)
    assert running.stdout.read() == b"interrupted\nTrue\n"
    assert running.wait(10) == 0


def test_what_the_program_left_is_whole(tmp_path: os.PathLike[str]) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: came.append(number))
    try:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with process.defer_signals():
            done = process.run(["sh", "-c", "sleep 0.8; echo whole"], 30)
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
