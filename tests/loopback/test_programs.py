"""Programs of this machine that can't start, don't end, or leave something behind that holds their output."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gdsdeploy import run
from gdsdeploy.errors import ControllerUnfit, GdsError, MissingProgram, ProgramFailed
from gdsdeploy.rollout import drain
from tests.patience import SURELY

#: How a program is started → whatever it's called with.
STARTS: dict[str, Callable[[list[str], Path], object]] = {
    "run": lambda argv, _: run.run(argv, doing="try it"),
    "stream": lambda argv, _: run.stream(argv, doing="try it", line=lambda _: None),
    "spawn": lambda argv, folder: run.spawn(argv, doing="try it", log=folder / "log"),
    "dial": lambda argv, _: run.dial(argv, doing="try it"),
    "become": lambda argv, _: run.become(argv, doing="try it"),
}


def script(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (lambda folder: str(folder / "none"), MissingProgram, "is not installed"),
        (lambda folder: str(folder), ProgramFailed, "Permission denied"),
        (lambda folder: script(folder / "x", "#!/bin/sh\n", 0o644), ProgramFailed, "Permission denied"),
        (lambda folder: script(folder / "x", "\x7fELF?"), ProgramFailed, "Exec format error"),
        (
            lambda folder: script(folder / "x", "#!/no/such/sh\n"),
            MissingProgram,
            "x: the interpreter that its first line names is not",
        ),
        (lambda folder: script(folder / "x", "") + "\0", ProgramFailed, "null byte"),
    ],
    ids=["missing", "a folder", "not executable", "no program", "no interpreter", "null byte"],
)
def test_a_program_that_cannot_start_is_named_with_its_cause(
    start: Callable[[list[str], Path], object], make: Callable[[Path], str], error: type[GdsError], why: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    program = make(tmp_path)
    with pytest.raises(error) as caught:
        start([program], tmp_path)
    first = caught.value.message.splitlines()[0]
    assert first.startswith("cannot try it: ")
    assert why in first
    assert program.rstrip("\0") in first


@pytest.fixture
def no_files() -> Iterator[None]:
    """No file can be opened any more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())), before[1]))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        pass
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for number in taken:
        os.close(number)


@pytest.mark.parametrize("start", [STARTS[name] for name in ("run", "stream", "spawn", "dial")])
def test_a_machine_without_files_is_no_fault_of_the_program(
    start: Callable[[list[str], Path], object], no_files: None, tmp_path: Path
) -> None:
    with pytest.raises(ControllerUnfit, match="Too many open files") as caught:
        start(["true"], tmp_path)
    assert "ulimit -n" in (caught.value.hint or "")


#: What a program leaves running → with its output, in a session of its own or not.
LEFT = {
    "in its session": "sleep 600 & echo out; echo err >&2",
    "on its own": "setsid sleep 600 & echo out; echo err >&2",
}


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_what_a_program_leaves_behind_holds_nothing(left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that succeeded has succeeded, and what it left goes on."""
    monkeypatch.setattr(run, "LINGER", 0.5)
    argv, begin, lines = ["sh", "-c", f"{left}; echo $! >pids; exit 0"], time.monotonic(), list[str]()
    done = run.run(argv, doing="try it", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    end_of_seen(tmp_path)
    assert run.stream(argv, doing="try it", line=lines.append, cwd=tmp_path) == 0
    assert sorted(lines) == ["err", "out"]
    end_of_seen(tmp_path)
    assert drain.last(argv, "try it", 600, tmp_path, lines.append) == (0, ["out", "err"])
    end_of_seen(tmp_path)
    assert time.monotonic() - begin < SURELY


def end_of_seen(folder: Path) -> None:
    """End the program that was left, which has to be there still."""
    os.kill(int((folder / "pids").read_text()), 9)


@pytest.mark.parametrize(
    "start",
    [
        lambda argv: run.run(argv, doing="try it", timeout=1),
        lambda argv: drain.last(argv, "try it", 1, Path("/"), lambda _: None),
    ],
    ids=["run", "hook"],
)
def test_a_program_that_hears_no_signal_is_bounded(
    start: Callable[[list[str]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "TO_END", 1.0)
    begin = time.monotonic()
    with pytest.raises(GdsError, match=r"cannot try it: no end after 1 s\n  \$ sh -c 'trap"):
        start(["sh", "-c", "trap '' INT TERM; sleep 600 & setsid sleep 600 & wait; wait"])
    assert time.monotonic() - begin < SURELY


def test_a_program_that_reads_late_gets_all_of_its_input() -> None:
    data = b"x" * (1 << 20)
    assert (
        run.run(["sh", "-c", "sleep 0.5; wc -c"], doing="try it", input=data, timeout=600).stdout.strip() == "1048576"
    )


def test_a_proxy_that_hears_no_signal_is_killed_with_what_it_started(tmp_path: Path) -> None:
    dialled = run.dial(
        ["sh", "-c", f"trap '' TERM; sleep 600 & echo $! >{tmp_path}/pid; echo >&2 up; wait; wait"], doing="try"
    )
    while "up" not in dialled.complaint():
        time.sleep(0.02)
    begin = time.monotonic()
    dialled.close()
    assert time.monotonic() - begin < SURELY
    child = Path("/proc", (tmp_path / "pid").read_text().strip(), "cmdline")
    # A process that ended has no arguments, and then no folder.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while child.read_bytes():
            assert time.monotonic() - begin < SURELY
