"""The only module that starts processes on the controller.

Arguments are always a list and never pass through a shell.  A failure is reported once, in one fixed
layout: what was being done, the command as it can be pasted, the status, and the end of its output.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess  # nosec B404 # started here and nowhere else
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from gdsdeploy import cancel
from gdsdeploy.errors import MissingProgram, ProgramFailed

#: Lines of a failed program's output that are quoted in the error.
TAIL_LINES = 25
#: Characters of a line that is handed on at once; what is left of a longer one follows as another line.
LINE = 16 * 1024 * 1024
#: Beginnings of variables that no program gets which reaches hosts: they choose what Ansible, ssh, Python, OpenSSL or
#: a shell loads, and whether host keys are checked.  BASH_FUNC_ is a function, which bash prefers to a program.
_STRAY = ("ANSIBLE_", "SSH_", "PYTHON", "LD_", "BASH_", "OPENSSL_", "GCONV_PATH")
#: The exceptions, and why.
KEPT = {
    "ANSIBLE_BECOME_PASSWORD_FILE": "how an operator without passwordless sudo becomes root",  # nosec B105 # a name
    "ANSIBLE_DEBUG": "what is printed",
    "ANSIBLE_FORKS": "how many hosts at once",
    "ANSIBLE_LOCAL_TEMP": "where there is room on this machine",
    "ANSIBLE_REMOTE_TEMP": "where there is room on a host, in a folder that Ansible makes for itself",
    "ANSIBLE_TIMEOUT": "how long a login may take",
    "ANSIBLE_VAULT_PASSWORD_FILE": "how variables that the operator gives with -e @FILE are decrypted",  # nosec B105 # a name
    "ANSIBLE_VERBOSITY": "what is printed",
    "LD_LIBRARY_PATH": "a Python of a module system or of conda doesn't start without it",
    "SSH_AGENT_PID": "the agent's process",
    "SSH_AUTH_SOCK": "the agent, which has the keys to log in with",
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

    Debian keeps administrators' programs in sbin, which a user's PATH may lack.
    """
    path = os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/local/sbin:/usr/sbin:/sbin"
    found = shutil.which(program, path=path)
    if found is None:
        raise MissingProgram(f"{program} is not installed on this machine", hint=hint)
    return found


def as_root(argv: Sequence[str]) -> list[str]:
    """Prefix ``argv`` with sudo unless this process already is root."""
    return list(argv) if os.geteuid() == 0 else ["sudo", "--", *argv]


def cleared(inherited: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Each variable that whatever reaches a host must not inherit → None, as ``env`` of this module's functions."""
    return dict.fromkeys(name for name in inherited if _is_stray(name) and name not in KEPT)


def _is_stray(name: str) -> bool:
    # Ansible reads variables such as _ANSIBLE_CONNECTION_PATH and _ansible_coverage_remote_output, too.
    return name.upper().removeprefix("_").startswith(_STRAY)


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

    doing: what the user would call this step; begins the error message ("cannot <doing>: …").
    ok: exit statuses that mean something; any other raises ProgramFailed.
    env: variables added to (not replacing) the current environment; None removes one.
    timeout: seconds; past it the program is killed and ProgramFailed raised.
    log: a file that receives stdout and stderr together instead of memory; the error quotes its end.
    Raises MissingProgram when the program does not exist.
    """
    args = [str(a) for a in argv]
    data = input.encode() if isinstance(input, str) else input
    sink: IO[bytes] | None = log.open("ab") if log else None
    try:
        proc = subprocess.run(  # nosec B603 # a list, never a shell
            args,
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            stdout=sink or subprocess.PIPE,
            stderr=subprocess.STDOUT if sink else subprocess.PIPE,
            env=_environment(env),
            cwd=cwd,
            timeout=timeout,
            check=False,
            # What can be stopped by a wish is not ended by the terminal's Ctrl-C beside.
            start_new_session=cancel.possible(),
        )
    except FileNotFoundError as error:
        if error.filename == args[0]:
            raise MissingProgram(f"cannot {doing}: {args[0]} is not installed", hint=hint) from error
        raise ProgramFailed(f"cannot {doing}: {error}", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        raise ProgramFailed(
            f"cannot {doing}: no end after {timeout:.0f} s\n  $ {shlex.join(args)}", hint=hint
        ) from error
    finally:
        if sink:
            sink.close()
    done = Completed(
        tuple(args),
        proc.returncode,
        (proc.stdout or b"").decode(errors="replace"),
        (proc.stderr or b"").decode(errors="replace"),
    )
    if done.status not in ok:
        output = log.read_text(errors="replace") if log else done.stdout + done.stderr
        raise ProgramFailed(_failure(doing, done, output, log), hint=hint)
    return done


def stream(
    argv: Sequence[str | Path],
    *,
    doing: str,
    line: Callable[[str], None],
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
    memory: int = 0,
) -> int:
    """Run ``argv`` and hand each output line (stdout and stderr together) to ``line``; return the status.

    env: variables added to the current environment; None removes one.
    memory: bytes of address space and of each file for the program, and for each one that it starts; 0: as many as
    this process has.
    Ctrl-C is passed on to the program, which gets to end in its own way, and then raised again; so it is with a
    wish to stop (``stopping``), after which Interrupted is raised.
    """
    stop = cancel.current()
    stop.check()
    args = [str(a) for a in argv]
    try:
        proc = subprocess.Popen(  # nosec B603 # a list, never a shell
            args,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(env),
            cwd=cwd,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise MissingProgram(f"cannot {doing}: {args[0]} is not installed") from error
    output = proc.stdout
    assert output is not None
    try:
        if memory:
            # It doesn't talk to anything yet: Python itself is still starting.
            _limit(proc.pid, memory)
        with stop.ending(lambda: _end(proc)):
            for text in iter(lambda: output.readline(LINE), ""):
                line(text.rstrip("\n"))
            status = proc.wait()
        stop.check()
    except BaseException:
        _end(proc)
        raise
    return status


def _limit(process: int, memory: int) -> None:
    """No more address space and no larger file than ``memory`` bytes, or than there is a limit for already."""
    with contextlib.suppress(ProcessLookupError):
        for what in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
            _, most = resource.prlimit(process, what)
            limit = memory if most == resource.RLIM_INFINITY else min(memory, most)
            resource.prlimit(process, what, (limit, limit))


def _end(proc: subprocess.Popen[str]) -> None:
    """Ask a program and all that it started to end, and see that they do."""
    # What a shell started in the background ignores SIGINT, outlives it, and holds its output open.
    for how, seconds in ((signal.SIGINT, 15.0), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(proc.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            proc.wait(timeout=seconds)


def spawn(argv: Sequence[str | Path], *, doing: str, log: Path) -> int:
    """Start ``argv`` detached, its output to ``log``, and return its process id."""
    args = [str(a) for a in argv]
    with log.open("ab") as sink:
        try:
            proc = subprocess.Popen(  # nosec B603 # a list, never a shell
                args,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise MissingProgram(f"cannot {doing}: {args[0]} is not installed") from error
    return proc.pid


@dataclass(frozen=True)
class Dialled:
    """A running program whose standard input and output are the other end of ``socket``."""

    socket: socket.socket
    _process: subprocess.Popen[bytes]
    _stderr: IO[bytes]

    def complaint(self) -> str:
        """The last line that it wrote to standard error so far; empty when there is none."""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """End the program and the connection."""
        self.socket.close()
        self._process.terminate()
        self._process.wait()
        self._stderr.close()


def dial(argv: Sequence[str], *, doing: str) -> Dialled:
    """Start ``argv`` with a socket as its standard input and output, as ssh does with a ProxyCommand.

    It gets no variable of :func:`cleared`.
    """
    ours, theirs = socket.socketpair()
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the program
    try:
        process = subprocess.Popen(  # nosec B603 # a list, never a shell
            list(argv),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=stderr,
            env=_environment(cleared()),
            start_new_session=True,
        )
    except FileNotFoundError as error:
        ours.close()
        stderr.close()
        raise MissingProgram(f"cannot {doing}: {argv[0]} is not installed") from error
    finally:
        theirs.close()
    return Dialled(ours, process, stderr)


def become(argv: Sequence[str | Path], *, doing: str) -> NoReturn:
    """Turn this process into ``argv``, which then has the user's terminal and whose status is this one's."""
    args = [str(a) for a in argv]
    try:
        os.execvp(args[0], args)  # noqa: S606 # nosec B606 # as for the others: a list
    except FileNotFoundError as error:
        raise MissingProgram(f"cannot {doing}: {args[0]} is not installed") from error


def _failure(doing: str, done: Completed, output: str, log: Path | None) -> str:
    tail = output.rstrip().splitlines()[-TAIL_LINES:]
    lines = [f"cannot {doing}: {done.argv[0]} ended with status {done.status}", f"  $ {shlex.join(done.argv)}"]
    lines += [f"  | {text}" for text in tail]
    if log:
        lines.append(f"  (whole output: {log})")
    return "\n".join(lines)
