"""The only module that starts processes on the controller: from a list of arguments, never through a shell.

A failure is reported once: the step, the command ready to paste, its status, and the end of its output.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import resource
import select
import shlex
import shutil
import signal
import socket
import subprocess  # nosec B404 # started here and nowhere else
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from gdsdeploy import cancel
from gdsdeploy.errors import Interrupted, MissingProgram, ProgramFailed, lack_of_controller

#: Lines of a failed program's output that are quoted in the error.
TAIL_LINES = 25
#: Seconds that a program has to end once it was asked to; then it's killed.
TO_END = 15.0
#: The same for a dialled program, which has no work to finish.
TO_HANG_UP = 5.0
#: Seconds after a program's own end in which its output is still read: what it left running may hold it for ever.
LINGER = 2.0
#: Seconds between two looks whether a program has ended.
_LOOK = 0.2
#: Characters of a line after which it is passed on; the rest of a longer one follows as another line.
LINE = 16 * 1024 * 1024
#: Prefixes of variables that are removed for programs that reach hosts: they choose what Ansible, ssh, Python, OpenSSL
#: or a shell loads, and whether host keys are checked.  BASH_FUNC_ is a function, which bash prefers to a program.
_STRAY = ("ANSIBLE_", "SSH_", "PYTHON", "LD_", "BASH_", "OPENSSL_", "GCONV_PATH")
#: The exceptions, and why.
ALLOWED_VARIABLES = {
    "ANSIBLE_BECOME_PASSWORD_FILE": "how an operator without passwordless sudo becomes root",  # nosec B105 # a name
    "ANSIBLE_DEBUG": "what is printed",
    "ANSIBLE_FORKS": "how many hosts at once",
    "ANSIBLE_LOCAL_TEMP": "where this machine has room",
    "ANSIBLE_REMOTE_TEMP": "where a host has room, in a folder that Ansible creates",
    "ANSIBLE_TIMEOUT": "how long a login may take",
    "ANSIBLE_VAULT_PASSWORD_FILE": "how variables from -e @FILE are decrypted",  # nosec B105 # a name
    "ANSIBLE_VERBOSITY": "what is printed",
    "LD_LIBRARY_PATH": "a module system's Python, or conda's, doesn't start without it",
    "SSH_AGENT_PID": "the agent's process",
    "SSH_AUTH_SOCK": "the agent, which has the login keys",
}


@dataclass(frozen=True)
class Completed:
    """What a program left: ``argv``, exit ``status`` (negative: killed by that signal), decoded output."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str


def which(program: str, *, hint: str | None = None) -> str:
    """Return the absolute path of ``program``; raise MissingProgram with ``hint`` otherwise.

    Debian keeps administrators' programs in sbin, which may be missing in a user's PATH.
    """
    search = os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/local/sbin:/usr/sbin:/sbin"
    path = shutil.which(program, path=search)
    if path is None:
        raise MissingProgram(f"{program} is not installed on this machine", hint=hint)
    return path


def as_root(argv: Sequence[str]) -> list[str]:
    """Prefix ``argv`` with sudo unless this process already is root."""
    return list(argv) if os.geteuid() == 0 else ["sudo", "--", *argv]


def cleared(inherited: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Each variable that a program which reaches a host must not inherit → None: ``env`` of :func:`run`."""
    # Ansible reads variables such as _ANSIBLE_CONNECTION_PATH and _ansible_coverage_remote_output, too.
    stray = (name for name in inherited if name.upper().removeprefix("_").startswith(_STRAY))
    return dict.fromkeys(name for name in stray if name not in ALLOWED_VARIABLES)


@contextlib.contextmanager
def _starting(
    argv: Sequence[str | Path], doing: str, hint: str | None = None, cwd: Path | None = None
) -> Iterator[None]:
    """Whatever keeps a program from starting in this block is a GdsError with its name and the cause."""
    program = str(argv[0])
    try:
        yield
    except (OSError, ValueError) as error:
        if lack := lack_of_controller(error, doing):
            raise lack from error
        named = getattr(error, "filename", None) in (None, program)
        if isinstance(error, FileNotFoundError) and named:
            script = "/" in program and Path(cwd or "", program).exists()
            program += ": the interpreter that its first line names" if script else ""
            raise MissingProgram(f"cannot {doing}: {program} is not installed", hint=hint) from error
        why = str(getattr(error, "strerror", None) or error) if named else str(error)
        raise ProgramFailed(f"cannot {doing}: {program} cannot be started: {why}", hint=hint) from error


def _popen(argv: Sequence[str | Path], **settings: Any) -> subprocess.Popen[Any]:
    return subprocess.Popen([str(word) for word in argv], **settings)  # nosec B603 # a list, never a shell


def objection(program: str, folder: Path) -> str:
    """Why ``program``, a word of the fleet file, can't be started in ``folder``; empty: it can."""
    if "/" not in program:
        try:
            which(program)
        except MissingProgram as error:
            return error.message
    elif shutil.which(folder / program) is None:
        return f"{folder / program} is no program that can be started"
    return ""


def _environment(env: Mapping[str, str | None] | None) -> dict[str, str]:
    return {name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None}


def run(
    argv: Sequence[str | Path],
    *,
    doing: str,
    ok: Sequence[int] = (0,),
    input: str | bytes | None = None,  # noqa: A002 - as subprocess calls it
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
    log: Path | None = None,
    hint: str | None = None,
) -> Completed:
    """Run ``argv`` to its end and return what it left.

    doing: the step in the user's words; begins the error message ("cannot <doing>: …").
    ok: exit statuses that mean something; any other raises ProgramFailed.
    env: variables added to (not replacing) the current environment; None removes one.
    timeout: seconds; past it the program is killed and ProgramFailed raised.
    log: a file that receives stdout and stderr together instead of memory; the error quotes its end.
    Raises MissingProgram when the program does not exist, Interrupted after a request to stop (``cancel``): what begins
    after it cleans up, and comes to its end.
    """
    with contextlib.ExitStack() as stack:
        with _starting(argv, doing, hint, cwd):
            sink = stack.enter_context(log.open("ab")) if log else None
            process = _popen(
                argv,
                stdin=subprocess.DEVNULL if input is None else stack.enter_context(_file_of(input)),
                stdout=sink or subprocess.PIPE,
                stderr=subprocess.STDOUT if sink else subprocess.PIPE,
                env=_environment(env),
                cwd=cwd,
                # A program that a Stop can end must not also get the terminal's Ctrl-C.
                start_new_session=cancel.possible(),
            )
        stack.enter_context(process)
        try:
            outputs = _outputs(process, _minding(process, timeout))
        except subprocess.TimeoutExpired as error:
            _kill(process)
            command = shlex.join(map(str, argv))
            raise ProgramFailed(f"cannot {doing}: no end after {timeout:.0f} s\n  $ {command}", hint=hint) from error
        except BaseException:
            _kill(process)
            raise
    stdout, stderr = ((text or b"").decode(errors="replace") for text in outputs)
    done = Completed(tuple(map(str, argv)), process.returncode, stdout, stderr)
    if done.status not in ok:
        output = log.read_text(errors="replace") if log else done.stdout + done.stderr
        raise ProgramFailed(_failure(doing, done, output, log), hint=hint)
    return done


@contextlib.contextmanager
def _file_of(data: str | bytes) -> Iterator[IO[bytes]]:
    """A program's standard input, from a file and no pipe: this process only reads, however slowly the program does."""
    with tempfile.TemporaryFile() as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.seek(0)
        yield file


def _minding(process: subprocess.Popen[bytes], timeout: float | None) -> Callable[[], None]:
    """What raises Interrupted after a request to stop, and TimeoutExpired ``timeout`` seconds from now.

    It does so while the program runs.  One that begins after the request cleans up, and comes to its end.
    """
    stop, until = cancel.current(), None if timeout is None else time.monotonic() + timeout
    stops = not stop.event.is_set()

    def mind() -> None:
        if process.poll() is None:
            if stops:
                stop.check()
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(process.args, 0)

    return mind


def _outputs(process: subprocess.Popen[bytes], mind: Callable[[], None]) -> Sequence[bytes | None]:
    """Standard output and error of a program to its end; raises what ``mind`` raises."""
    ended = 0.0
    while True:
        try:
            return process.communicate(timeout=_LOOK)
        except subprocess.TimeoutExpired as error:
            mind()
            if process.returncode is not None and (ended := ended or time.monotonic()) + LINGER <= time.monotonic():
                return error.stdout, error.stderr


def stream(
    argv: Sequence[str | Path],
    *,
    doing: str,
    line: Callable[[str], None],
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    memory: int = 0,
    input: bytes = b"",  # noqa: A002 - as subprocess calls it
    timeout: float | None = None,
) -> int:
    """Run ``argv`` and hand each output line (stdout and stderr together) to ``line``; return the status.

    env: variables added to the current environment; None removes one.  input: its standard input.
    memory: most bytes of address space and of each file, for the program and its children; 0: as for this process.
    timeout: seconds; past it the program is ended as by a request to stop, and ProgramFailed raised.
    KeyboardInterrupt ends the program, which can clean up, and is raised again.  A request to stop (``cancel``) ends
    it, too, and raises Interrupted.
    """
    cancel.current().check()
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": cwd}
    settings |= {"env": _environment(env), "start_new_session": True}
    with _starting(argv, doing, cwd=cwd), _file_of(input) as stdin:
        process = _popen(argv, stdin=stdin, **settings)
    try:
        if memory:
            # It doesn't talk to anything yet: Python itself is still starting.
            _limit(process.pid, memory)
        mind = _minding(process, timeout)
        for text in _lines(process, mind):
            line(text)
        while (status := process.poll()) is None:
            mind()
            time.sleep(_LOOK / 10)
        cancel.current().check()
    except BaseException as error:
        _end(process, cancel.HURRY if isinstance(error, Interrupted) else TO_END)
        if isinstance(error, subprocess.TimeoutExpired):
            raise ProgramFailed(f"cannot {doing}: no end after {timeout:.0f} s") from error
        raise
    finally:
        _output(process).close()
    return status


def _output(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout


def _lines(process: subprocess.Popen[bytes], mind: Callable[[], None]) -> Iterator[str]:
    """The lines that a program prints, to its end; raises what ``mind`` raises."""
    output, poll, ended, rest = _output(process).fileno(), select.poll(), 0.0, ""
    decode = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True).decode
    poll.register(output, select.POLLIN)
    chunk = b"..."
    while chunk:
        mind()
        ended = ended or (time.monotonic() if process.poll() is not None else 0.0)
        left = ended + LINGER - time.monotonic() if ended else _LOOK
        if left > 0 and not poll.poll(min(left, _LOOK) * 1000):
            continue
        chunk = os.read(output, 1 << 16) if left > 0 else b""
        *lines, rest = (rest + decode(chunk, final=not chunk)).split("\n")
        if len(rest) >= LINE or (rest and not chunk):
            lines, rest = [*lines, rest], ""
        yield from lines


def _limit(process: int, memory: int) -> None:
    """Limit address space and file size to ``memory`` bytes, or to a lower limit that is set already."""
    with contextlib.suppress(ProcessLookupError):
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
            _, most = resource.prlimit(process, kind)
            limit = memory if most == resource.RLIM_INFINITY else min(memory, most)
            # The hard limit stays: what runs in the root of an image is not to have this one.
            resource.prlimit(process, kind, (limit, most))


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask a program and its children to end; kill them if they don't within ``seconds``."""
    # A background job of a shell ignores SIGINT, and so does what it starts.
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM if ignored else signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)
    _kill(process)
    # Such a job also outlives the shell, and keeps its output open.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program, and what it started: Ansible's processes for hosts have sessions of their own."""
    if process.poll() is None:
        cancel.kill(process.pid)
        process.kill()


def spawn(
    argv: Sequence[str | Path],
    *,
    doing: str,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
) -> int:
    """Start ``argv`` detached in the folder ``cwd``, its output to ``log``, and return its process id.

    env: variables added to the current environment; None removes one.
    """
    with _starting(argv, doing, cwd=cwd), log.open("ab") as sink:
        settings: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": subprocess.STDOUT}
        pid = _popen(argv, start_new_session=True, cwd=cwd, env=_environment(env), **settings).pid
        cancel.detached.add(pid)
        return pid


@dataclass(frozen=True)
class Dialled:
    """A running program whose standard input and output are the other end of ``socket``."""

    socket: socket.socket
    process: subprocess.Popen[bytes]
    _stderr: IO[bytes]

    def complaint(self) -> str:
        """The last line on its standard error so far; empty without one."""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """End the program and the connection; what doesn't end in time is killed."""
        self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(TO_HANG_UP)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._stderr.close()


def dial(argv: Sequence[str], *, doing: str) -> Dialled:
    """Start ``argv`` with a socket as its standard input and output, as ssh does with a ProxyCommand.

    Variables that :func:`cleared` names are removed.
    """
    with contextlib.ExitStack() as undo, _starting(argv, doing):
        near, far = map(undo.enter_context, socket.socketpair())
        stderr = undo.enter_context(tempfile.TemporaryFile())
        ends: dict[str, Any] = {"stdin": far.fileno(), "stdout": far.fileno(), "stderr": stderr}
        process = _popen(argv, env=_environment(cleared()), start_new_session=True, **ends)
        far.close()
        undo.pop_all()
    return Dialled(near, process, stderr)


def become(argv: Sequence[str | Path], *, doing: str) -> NoReturn:
    """Replace this process by ``argv``, which gets the user's terminal and sets the exit status."""
    args = [str(word) for word in argv]
    with _starting(argv, doing):
        os.execvp(args[0], args)  # noqa: S606 # nosec B606 # as for the others: a list


def _failure(doing: str, done: Completed, output: str, log: Path | None) -> str:
    return "\n".join(
        [
            f"cannot {doing}: {done.argv[0]} ended with status {done.status}",
            f"  $ {shlex.join(done.argv)}",
            *(f"  | {text}" for text in output.rstrip().splitlines()[-TAIL_LINES:]),
            *([f"  (whole output: {log})"] if log else []),
        ]
    )
