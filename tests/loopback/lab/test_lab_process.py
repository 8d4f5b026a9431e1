"""Processes are known by number and start time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gdslab import process


@pytest.fixture
def sleeper() -> process.Process:
    started = subprocess.Popen(["sleep", "60"])
    process_record = process.identify(started.pid)
    assert process_record is not None
    return process_record


def test_identified_process_is_alive_until_it_is_stopped(sleeper: process.Process) -> None:
    assert process.alive(sleeper)
    process.stop(sleeper)
    assert not process.alive(sleeper)
    assert not Path(f"/proc/{sleeper.pid}").exists(), "it was reaped, not left as a zombie"


def test_reused_number_is_not_our_process_and_is_never_signalled(sleeper: process.Process) -> None:
    earlier = replace(sleeper, start=sleeper.start - 1)
    assert not process.alive(earlier)
    process.stop(earlier)
    assert process.alive(sleeper), "stop() signalled another process"
    process.stop(sleeper)


def test_process_of_an_earlier_boot_is_gone(sleeper: process.Process) -> None:
    earlier = replace(sleeper, boot="00000000-0000-0000-0000-000000000000")
    assert not process.alive(earlier)
    process.stop(earlier)
    assert process.alive(sleeper)
    process.stop(sleeper)


def test_process_that_ignores_sigterm_is_killed() -> None:
    program = (
        "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    )
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert started.stdout is not None
    started.stdout.readline()
    process_record = process.identify(started.pid)
    assert process_record is not None
    begin = time.monotonic()
    process.stop(process_record, grace=0.5)
    assert not process.alive(process_record)
    assert 0.4 < time.monotonic() - begin < 5


def test_zombie_has_ended(sleeper: process.Process) -> None:
    os.kill(sleeper.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while process.alive(sleeper) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Path(f"/proc/{sleeper.pid}").exists(), "it isn't reaped yet"
    assert not process.alive(sleeper)
    assert process.identify(sleeper.pid) is None
    os.waitpid(sleeper.pid, 0)


def test_a_process_lives_as_long_as_one_of_its_threads() -> None:
    """A server that is killed has its port until its last thread has ended, and may be a zombie before."""
    # exit(2) ends the first thread alone.
    program = (
        "import ctypes,threading,time; threading.Thread(target=time.sleep, args=(60,)).start();"
        " print('ready', flush=True); ctypes.CDLL(None).syscall(60, 0)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        status = Path(f"/proc/{started.pid}/status")
        while "State:\tZ" not in status.read_text():
            time.sleep(0.01)
        record = process.identify(started.pid)
        assert record is not None
        process.stop(record)
        assert not process.alive(record)


def test_name_with_spaces_and_parentheses_does_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) b (c"
    program.symlink_to("/bin/sleep")
    started = subprocess.Popen([program, "60"])
    process_record = process.identify(started.pid)
    assert process_record is not None
    assert process.alive(process_record)
    process.stop(process_record)


def test_unrecorded_process_is_found_by_its_folder(tmp_path: Path) -> None:
    inside, beside = tmp_path / "host", tmp_path / "host2"
    started = [subprocess.Popen(["tail", "-f", "/dev/null", folder / "x"], stderr=-3) for folder in (inside, beside)]
    # A program's words can be read only a moment after it was started.
    deadline = time.monotonic() + 10
    while (process_record := process.find(("tail",), inside)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process_record is not None
    assert process_record.pid == started[0].pid
    assert process.find(("qemu-system-x86_64",), inside) is None
    started[0].kill()
    started[0].wait()
    assert process.find(("tail",), inside) is None, "host2 was taken for host"
    started[1].kill()
    started[1].wait()
