"""The only module that starts processes on the controller: from a list of arguments, never through a shell.

A failure is reported once: the step, the command ready to paste, its status, and the end of its output.
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
from typing import IO, Any, NoReturn

from gdsdeploy import cancel
from gdsdeploy.errors import GdsError, MissingProgram, ProgramFailed

#: Lines of a failed program's output that are quoted in the error.
TAIL_LINES = 25
#: Seconds that a dialled program has to end.
PATIENCE = 20.0
#: Characters of a line that is passed on at once; the rest of a longer one follows as another line.
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
    return dict.fromkeys(name for name in inherited if _is_stray(name) and name not in ALLOWED_VARIABLES)


def _is_stray(name: str) -> bool:
    # Ansible reads variables such as _ANSIBLE_CONNECTION_PATH and _ansible_coverage_remote_output, too.
    return name.upper().removeprefix("_").startswith(_STRAY)


def _popen(argv: Sequence[str | Path], doing: str, hint: str | None = None, **settings: Any) -> subprocess.Popen[Any]:
    args = [str(word) for word in argv]
    try:
        return subprocess.Popen(args, **settings)  # nosec B603 # a list, never a shell
    except FileNotFoundError as error:
        if error.filename != args[0]:
            raise ProgramFailed(f"cannot {doing}: {error}", hint=hint) from error
        raise MissingProgram(f"cannot {doing}: {args[0]} is not installed", hint=hint) from error


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
    Raises MissingProgram when the program does not exist.
    """
    data = input.encode() if isinstance(input, str) else input
    with log.open("ab") if log else contextlib.nullcontext() as sink:
        process = _popen(
            argv,
            doing,
            hint,
            stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stdout=sink or subprocess.PIPE,
            stderr=subprocess.STDOUT if sink else subprocess.PIPE,
            env=_environment(env),
            cwd=cwd,
            # A program that a Stop can end must not also get the terminal's Ctrl-C.
            start_new_session=cancel.possible(),
        )
        with process:
            try:
                outputs = process.communicate(data, timeout)
            except subprocess.TimeoutExpired as error:
                process.kill()
                command = shlex.join(map(str, argv))
                raise ProgramFailed(
                    f"cannot {doing}: no end after {timeout:.0f} s\n  $ {command}", hint=hint
                ) from error
            except BaseException:
                process.kill()
                raise
    stdout, stderr = ((text or b"").decode(errors="replace") for text in outputs)
    done = Completed(tuple(map(str, argv)), process.returncode, stdout, stderr)
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
    input: bytes = b"",  # noqa: A002 - as subprocess calls it
) -> int:
    """Run ``argv`` and hand each output line (stdout and stderr together) to ``line``; return the status.

    env: variables added to the current environment; None removes one.  input: its standard input.
    memory: most bytes of address space and of each file, for the program and its children; 0: as for this process.
    Ctrl-C is passed on to the program, which can clean up, and then raised again.  A request to stop (``cancel``) ends
    the program in the same way and raises Interrupted.
    """
    stop = cancel.current()
    stop.check()
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "cwd": cwd}
    settings |= {"env": _environment(env), "text": True, "errors": "replace", "start_new_session": True}
    # A file, and no pipe, because this process only reads.
    with tempfile.TemporaryFile() as stdin:
        stdin.write(input)
        stdin.seek(0)
        process: subprocess.Popen[str] = _popen(argv, doing, stdin=stdin, **settings)
    output = process.stdout
    assert output is not None
    try:
        if memory:
            # It doesn't talk to anything yet: Python itself is still starting.
            _limit(process.pid, memory)
        with stop.ending(lambda: _end(process)):
            for text in iter(lambda: output.readline(LINE), ""):
                line(text.rstrip("\n"))
            status = process.wait()
        stop.check()
    except BaseException:
        _end(process)
        raise
    return status


def _limit(process: int, memory: int) -> None:
    """Limit address space and file size to ``memory`` bytes, or to a lower limit that is set already."""
    with contextlib.suppress(ProcessLookupError):
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
            _, most = resource.prlimit(process, kind)
            limit = memory if most == resource.RLIM_INFINITY else min(memory, most)
            # The hard limit stays: what runs in the root of an image is not to have this one.
            resource.prlimit(process, kind, (limit, most))


def _end(process: subprocess.Popen[str]) -> None:
    """Ask a program and its children to end; kill them if they don't."""
    # A background job of a shell ignores SIGINT, outlives the shell, and keeps its output open.
    for number, seconds in ((signal.SIGINT, 15.0), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)


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
    with log.open("ab") as sink:
        settings: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": subprocess.STDOUT}
        return _popen(argv, doing, start_new_session=True, cwd=cwd, env=_environment(env), **settings).pid


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
        """End the program and the connection; a program that doesn't end in time is killed."""
        self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stderr.close()


def dial(argv: Sequence[str], *, doing: str) -> Dialled:
    """Start ``argv`` with a socket as its standard input and output, as ssh does with a ProxyCommand.

    Variables that :func:`cleared` names are removed.
    """
    near, far = socket.socketpair()
    stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the program
    ends: dict[str, Any] = {"stdin": far.fileno(), "stdout": far.fileno(), "stderr": stderr}
    try:
        process = _popen(argv, doing, env=_environment(cleared()), start_new_session=True, **ends)
    except GdsError:
        near.close()
        stderr.close()
        raise
    finally:
        far.close()
    return Dialled(near, process, stderr)


def become(argv: Sequence[str | Path], *, doing: str) -> NoReturn:
    """Replace this process by ``argv``, which gets the user's terminal and sets the exit status."""
    args = [str(word) for word in argv]
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
