"""The only module in ``host/`` that starts processes: list argv, C locale, bounded time, bounded output."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import subprocess  # nosec B404 # started here and nowhere else
import sys
import threading
import time
from typing import (
    IO,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    Union,
)

#: Bytes kept of each of stdout and stderr; the rest is read and dropped, so the program never blocks on a full pipe.
OUTPUT_LIMIT = 16 * 1024 * 1024

#: Administrators' programs live in sbin, which a unit's or a user's PATH may lack.
EXTRA_PATH = "/usr/local/sbin:/usr/sbin:/sbin"

#: How this program starts Python for a library that may crash it: with none of the caller's variables and modules.
PYTHON = (sys.executable or "python3", "-I", "-S")

#: Exit statuses as a shell reports them, for the two cases in which the program itself gave none.
NOT_FOUND = 127
TIMED_OUT = 124


class Output(NamedTuple):
    """The result of a program.

    ``status``: its exit status; negative when a signal ended it; 127 when it does not exist or cannot be executed;
    124 when it was killed at its time limit.  ``stderr`` then ends with a line that says so.
    ``truncated``: more than OUTPUT_LIMIT bytes came on stdout or on stderr, and the rest was dropped.
    """

    status: int
    stdout: str
    stderr: str
    truncated: bool = False

    def failure(self) -> str:
        """The last line that a failed program printed, or its exit status."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1].strip() if lines else f"exit status {self.status}"


class _Target:
    """Gives up to ``limit`` bytes of a program's output to ``keep``.

    ``cut``: there was more.  ``error``: that ``keep`` raised.  stops: no more is read after either of them.
    """

    def __init__(self, limit: int, keep: Callable[[bytes], object], *, stops: bool = False) -> None:
        self._room, self._keep, self._stops = limit, keep, stops
        self.cut = False
        self.error: Optional[OSError] = None

    def take(self, chunk: bytes) -> bool:
        """Whether more is read."""
        self.cut = self.cut or len(chunk) > self._room
        if self._room > 0:
            try:
                self._keep(chunk[: self._room])
            except OSError as error:
                self.error = error
            self._room -= min(len(chunk), self._room)
        return not (self._stops and (self.cut or self.error is not None))


def run(
    argv: Sequence[str],
    timeout: float,
    env: Optional[Mapping[str, Optional[str]]] = None,
    cwd: Optional[str] = None,
    input: Union[str, bytes, None] = None,  # noqa: A002 - the word subprocess uses
    inherited: Optional[Sequence[str]] = None,
    each: Callable[[bytes], object] = len,
) -> Output:
    """Run ``argv`` for at most ``timeout`` seconds and return its output; a failure of the program raises nothing.

    ``env`` is added to this process's own environment; a value of None removes that variable.  ``inherited``: all that
    the program gets of the own environment.  ``LC_ALL`` is always C, and PATH as :func:`search_path` has it.  At the
    time limit the program is killed with everything that it started (it gets a session of its own).  ``each``
    also takes what comes on stdout, while the program runs; an OSError of it changes nothing.
    """
    data = input.encode("utf-8") if isinstance(input, str) else input
    stdout: List[bytes] = []
    stdin = subprocess.DEVNULL if data is None else subprocess.PIPE

    def keep(chunk: bytes) -> None:
        stdout.append(chunk)
        each(chunk)

    target = _Target(OUTPUT_LIMIT, keep)
    if inherited is not None:
        env = {**{name: None for name in os.environ if name not in inherited}, **(env or {})}
    output = _run(argv, timeout, env, cwd, stdin, data, target)
    return output._replace(stdout=b"".join(stdout).decode("utf-8", "replace"))


def end_by_signal(number: int, _frame: Any) -> NoReturn:
    """What a signal's handler does: what was begun is taken back, and the status is a shell's."""
    raise SystemExit(128 + number)


@contextlib.contextmanager
def defer_signals(numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM)) -> Iterator[None]:
    """Hold back signals while the block runs, and send those that arrived to this process again when it ends.

    Only the main thread receives signals; in another one the block just runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: List[int] = []
    before = {number: signal.signal(number, lambda number, _frame: received.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(received):
            os.kill(os.getpid(), number)


def pipe(argv: Sequence[str], source: IO[bytes], sink: IO[bytes], timeout: float, limit: int) -> Output:
    """Run ``argv`` with the file ``source`` as its input, writing at most ``limit`` bytes of its output to ``sink``.

    Otherwise like :func:`run`; ``stdout`` of the answer is empty and ``truncated`` says that ``limit`` was passed (the
    program is then ended by SIGPIPE).
    Raises OSError when ``sink`` cannot take the data (a full disk).
    """
    target = _Target(limit, sink.write, stops=True)
    output = _run(argv, timeout, None, None, source, None, target)
    if target.error is not None:
        raise target.error
    return output


def apart(work: Callable[[], str], timeout: float) -> Output:
    """Run ``work`` in a child process and return its answer as ``stdout``.

    For what may hold its process for ever in a system call: a filesystem whose server is gone.  After ``timeout``
    seconds the process is killed, and not waited for where even that does not end it.  ``status`` is as of
    :func:`run`, 1 where ``work`` raised an exception; its words are ``stderr``.
    """
    answer, end = os.pipe()
    pid = 0
    try:
        # A Ctrl-C between the fork and what ends the child would leave it running.
        with defer_signals():
            pid = os.fork()
            if pid == 0:
                os.close(answer)
                _run_child(work, end)
            os.close(end)
        text, complete = _receive(answer, time.monotonic() + timeout)
        status = _wait(pid, 5.0) if complete else _stop(pid)
    except BaseException:
        if pid:
            _stop(pid)
        raise
    finally:
        os.close(answer)
    if not complete or status is None:
        return Output(TIMED_OUT, "", f"killed after {timeout:g} s\n")
    number = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    return Output(number, text, "") if number == 0 else Output(number, "", text)


def _run_child(work: Callable[[], str], end: int) -> NoReturn:
    status = 1
    try:
        # A terminal's Ctrl-C ends the parent, which ends this process.
        os.setsid()
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        try:
            text, status = work(), 0
        except Exception as error:  # noqa: BLE001 - whatever it is, this process may not go on as its parent
            text = f"{type(error).__name__}: {error}"
        left = memoryview(text.encode("utf-8"))
        while left:
            left = left[os.write(end, left) :]
    finally:
        os._exit(status)


def _receive(pipe: int, deadline: float) -> Tuple[str, bool]:
    """What comes until the other end is closed, and whether that was before the deadline."""
    chunks: List[bytes] = []
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return "", False
        chunk = os.read(pipe, 65536)
        if not chunk:
            return b"".join(chunks).decode("utf-8", "replace"), True
        chunks.append(chunk)


def _stop(pid: int) -> Optional[int]:
    """End a child; SIGTERM lets it clean up first."""
    status: Optional[int] = None
    for number in (signal.SIGTERM, signal.SIGKILL):
        if status is None:
            os.kill(pid, number)
            status = _wait(pid, 0.5)
    return status


def _wait(pid: int, seconds: float) -> Optional[int]:
    """The status of a child as wait(2) has it; None if it is still there after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        child, status = os.waitpid(pid, os.WNOHANG)
        if child:
            return status
        if time.monotonic() > deadline:
            return None
        time.sleep(0.002)


def _run(
    argv: Sequence[str],
    timeout: float,
    env: Optional[Mapping[str, Optional[str]]],
    cwd: Optional[str],
    stdin: Union[int, IO[bytes]],
    data: Optional[bytes],
    target: _Target,
) -> Output:
    args = list(map(os.fspath, argv))
    errors: List[bytes] = []
    error_target = _Target(OUTPUT_LIMIT, errors.append)
    process: Optional[subprocess.Popen[bytes]] = None
    try:
        # As in ``apart``.
        with defer_signals():
            try:
                process = subprocess.Popen(  # nosec B603 # a list, never a shell
                    args,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=_environment(env),
                    cwd=cwd,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                words = f"{args[0] if args else '(nothing)'}: {getattr(error, 'strerror', '') or error}\n"
                return Output(NOT_FOUND, "", words)
            # With a timeout, wait() itself would look for the end only every now and then, up to 50 ms apart.
            ended = _start_thread(process.wait)
            threads = [_read(process.stdout, target), _read(process.stderr, error_target), _feed(process.stdin, data)]
        ended.join(timeout)
        timed_out = ended.is_alive()
        if timed_out:
            _kill(process)
        # Neither a system call that never ends is waited for, nor a grandchild that left the session with the pipes.
        for thread in (ended, *threads):
            thread.join(5.0)
    except BaseException:
        if process is not None:
            _kill(process)
            ended.join(5.0)
        raise
    stderr = b"".join(errors).decode("utf-8", "replace")
    if timed_out:
        return Output(TIMED_OUT, "", stderr + f"{args[0]}: killed after {timeout:g} s\n", target.cut)
    return Output(process.returncode, "", stderr, target.cut or error_target.cut)


def _environment(extra: Optional[Mapping[str, Optional[str]]]) -> Dict[str, str]:
    changed = {**os.environ, **(extra or {}), "LC_ALL": "C", "LANGUAGE": None}
    env = {name: value for name, value in changed.items() if value is not None}
    return {**env, "PATH": search_path(env)}


def search_path(env: Mapping[str, str] = os.environ) -> str:
    """PATH, with the sbin folders; for root, without folders that other users own or can write to."""
    present = env.get("PATH", os.defpath).split(os.pathsep)
    present += [folder for folder in EXTRA_PATH.split(":") if folder not in present]
    if os.geteuid() == 0:
        present = list(dict.fromkeys(filter(None, map(of_root, present))))
    return os.pathsep.join(present)


def of_root(folder: str, *, for_all: bool = False) -> str:
    """Where ``folder`` really is, if root can run programs from there, or make temporary files; else empty.

    ``sudo -E`` or ``su`` may bring a user's folder along, whose owner can exchange its files.
    for_all: allow a folder with the sticky bit, such as /tmp.
    """
    real = place = os.path.realpath(folder) if os.path.isabs(folder) else ""
    with contextlib.suppress(OSError):
        while place:
            state = os.stat(place)
            sticky = state.st_mode & stat.S_ISVTX and (for_all or place != real)
            if state.st_uid != 0 or (state.st_mode & stat.S_IWOTH and not sticky):
                return ""
            if place == "/":
                return real
            place = os.path.dirname(place)
    return ""


def is_roots(path: str) -> bool:
    """Whether only root can change or exchange the file ``path``; for other users every file is fine."""
    if os.geteuid() != 0:
        return True
    place = os.path.realpath(path)
    try:
        state = os.stat(place)
    except OSError:
        return False
    return state.st_uid == 0 and not state.st_mode & stat.S_IWOTH and bool(of_root(os.path.dirname(place)))


def _read(pipe: Optional[IO[bytes]], target: _Target) -> threading.Thread:
    assert pipe is not None

    def read() -> None:
        with pipe:
            for chunk in iter(lambda: os.read(pipe.fileno(), 65536), b""):
                if not target.take(chunk):
                    return

    return _start_thread(read)


def _feed(pipe: Optional[IO[bytes]], data: Optional[bytes]) -> threading.Thread:
    def write() -> None:
        if pipe is not None and data is not None:
            # The program may end without reading all of its input; its exit status is what counts.
            with contextlib.suppress(OSError), pipe:
                pipe.write(data)

    return _start_thread(write)


def _start_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
