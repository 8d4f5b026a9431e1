"""The only module in ``host/`` that starts processes: list argv, C locale, bounded time, bounded output."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import IO, Dict, List, Mapping, Optional, Sequence, Union

#: Bytes kept of each of stdout and stderr; the rest is read and dropped, so the program never blocks on a full pipe.
OUTPUT_LIMIT = 16 * 1024 * 1024

#: Administrators' programs live in sbin, which a unit's or a user's PATH may lack.
EXTRA_PATH = "/usr/local/sbin:/usr/sbin:/sbin"

#: Exit statuses as a shell reports them, for the two cases in which the program itself gave none.
NOT_FOUND = 127
TIMED_OUT = 124


@dataclass(frozen=True)
class Output:
    """What a program left.

    ``status``: its exit status; negative when a signal ended it; 127 when it does not exist or cannot be executed;
    124 when it was killed at its time limit.  ``stderr`` then ends with a line that says so.
    ``truncated``: more than OUTPUT_LIMIT bytes came on stdout or on stderr, and the rest was dropped.
    """

    status: int
    stdout: str
    stderr: str
    truncated: bool = False


def run(
    argv: Sequence[str],
    timeout: float,
    env: Optional[Mapping[str, str]] = None,
    cwd: Optional[str] = None,
    input: Union[str, bytes, None] = None,
) -> Output:
    """Run ``argv`` to its end, at most ``timeout`` seconds, and return what it left; its faults are no exceptions.

    ``env`` is added to this process's own environment; a value of the empty string is passed on as such.  ``LC_ALL`` is
    always C and PATH always contains the sbin folders.  At the time limit the program is killed with everything that it
    started (it gets a session of its own).
    """
    args = [os.fspath(item) for item in argv]
    try:
        process = subprocess.Popen(
            args,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(env),
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Output(NOT_FOUND, "", "{}: {}\n".format(args[0] if args else "(nothing)", _reason(error)))
    kept = [_Kept(process.stdout), _Kept(process.stderr)]
    feeder = _feed(process.stdin, input)
    timed_out = False
    try:
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            _kill(process)
            status = process.wait()
        # A grandchild that left the session can hold the pipes open for ever; what it writes is not waited for.
        for reader in kept:
            reader.thread.join(5.0)
    except BaseException:
        _kill(process)
        process.wait()
        raise
    if feeder is not None:
        feeder.join(1.0)
    out, err = (reader.text() for reader in kept)
    if timed_out:
        return Output(TIMED_OUT, out, err + "{}: killed after {:g} s\n".format(args[0], timeout), _cut(kept))
    return Output(status, out, err, _cut(kept))


def _environment(extra: Optional[Mapping[str, str]]) -> Dict[str, str]:
    env = dict(os.environ)
    env.update(extra or {})
    env["LC_ALL"] = "C"
    env.pop("LANGUAGE", None)
    present = env.get("PATH", os.defpath).split(os.pathsep)
    env["PATH"] = os.pathsep.join(present + [item for item in EXTRA_PATH.split(":") if item not in present])
    return env


class _Kept:
    """A thread that reads a pipe to its end and keeps its first OUTPUT_LIMIT bytes."""

    def __init__(self, pipe: Optional[IO[bytes]]) -> None:
        assert pipe is not None
        self._pipe = pipe
        self._chunks: List[bytes] = []
        self._size = 0
        self.cut = False
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with self._pipe:
            while True:
                chunk = os.read(self._pipe.fileno(), 65536)
                if not chunk:
                    return
                room = OUTPUT_LIMIT - self._size
                self.cut = self.cut or len(chunk) > room
                if room > 0:
                    self._chunks.append(chunk[:room])
                    self._size += len(chunk[:room])

    def text(self) -> str:
        return b"".join(self._chunks).decode("utf-8", "replace")


def _cut(kept: Sequence[_Kept]) -> bool:
    return any(reader.cut for reader in kept)


def _feed(pipe: Optional[IO[bytes]], input: Union[str, bytes, None]) -> Optional[threading.Thread]:
    if pipe is None or input is None:
        return None
    data = input.encode("utf-8") if isinstance(input, str) else input

    def write() -> None:
        try:
            with pipe:
                pipe.write(data)
        except OSError:
            # The program may end without reading all of its input; its exit status is what counts.
            return

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
