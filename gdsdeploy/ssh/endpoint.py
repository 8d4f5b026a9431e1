"""What came back from a host, and what it means: a document, or the one error that says why there is none.  Pure.

A host may be hostile: its text is parsed within bounds of time and memory, and any text in it can be written anywhere.

How many hosts are talked to at the same time is one number for the whole process, which an option sets.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdsdeploy.errors import GdsError, HostUnfit, HostUnreachable
from gdsdeploy.host.io import jsontext
from gdsdeploy.host.io.wording import line, quoted
from gdsdeploy.host.paths import PROGRAM, SERVE_SECONDS

#: Most of a connection's time is waiting for the host, so far more than the processors' number is useful.
AT_ONCE, MOST_AT_ONCE = 128, 1024
#: Open files that one connection may need: its socket, three pipes of paramiko and the proxy's, an event queue; and
#: those of the rest of the process.
_FILES, _OTHERS = 8, 256

_at_once = AT_ONCE


def limit_connections(number: int) -> None:
    """Talk to ``number`` hosts at the same time (1 to MOST), from now on."""
    global _at_once
    _at_once = number


def hosts_at_once() -> int:
    """Hosts that are talked to at the same time."""
    return _at_once


def allow_files(number: int) -> int:
    """Let this process have the open files of ``number`` connections; how many of them the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = number * _FILES + _OTHERS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return number if soft == resource.RLIM_INFINITY else max(1, min(number, (soft - _OTHERS) // _FILES))


#: Seconds for one host's evidence: its collectors have limits, and a slow virtual machine needs most of this time.
TIMEOUT = 300.0
#: What the rule of sudo allows: the installed program with this one argument.
SERVE = f"{PROGRAM} serve"
#: Exit status of the loader for a Python that is too old.
TOO_OLD = 78
#: Lines of a host's standard error that an error quotes, and characters of each.
TAIL_LINES, TAIL_WIDTH = 6, 500
#: Values in an answer; the evidence of real hosts has 1,500.
VALUES = 100_000
#: Characters of the message, and of the hint, of an error that a host's program gives as its answer.
WORDS = 16_384


@dataclass(frozen=True)
class Endpoint:
    """Where a host answers and with what it is greeted."""

    host: str
    address: str
    port: int
    user: str
    #: private keys, tried in this order
    identity_files: tuple[Path, ...]
    #: Files of host keys: the fleet's own one, or the user's and the system's.
    known_hosts: tuple[Path, ...]
    #: whether the keys of an SSH agent are tried, too
    agent: bool = True
    #: the name that stands for the host in ``known_hosts`` whatever its port; empty: the address does
    host_key_alias: str = ""
    #: command whose standard input and output are the connection; empty: TCP
    proxy: tuple[str, ...] = ()
    #: whether questions that only read go to the program that is installed there
    reads_installed: bool = False

    def where(self) -> str:
        """The host as an error names it."""
        return f"{self.host} ({self.address}:{self.port})"

    def ssh(self) -> str:
        """The command that reaches it by hand."""
        return f"ssh -p {self.port} {self.user}@{self.address}"


@dataclass(frozen=True)
class Answer:
    """What came back from one host: a document or an error, and the seconds it took."""

    host: str
    document: dict[str, Any] | None
    error: GdsError | None
    seconds: float

    def require_document(self) -> dict[str, Any]:
        """The document; raises the error where there is none."""
        if self.error is not None or self.document is None:
            raise self.error or HostUnreachable(f"{self.host}: no answer")
        return self.document


@dataclass(frozen=True)
class Output:
    """What a command on a host left."""

    stdout: bytes
    stderr: str
    #: None when the connection ended first; -1 when a signal ended the program
    status: int | None


@dataclass(frozen=True)
class Files:
    """A question that no program of gdsdeploy answers: what is in files of a host, one after the other."""

    #: absolute and plain; one that is missing is left out
    paths: tuple[str, ...]
    #: makes the document of their text; raises GdsError
    document: Callable[[Endpoint, str], dict[str, Any]]

    def start(self) -> str:
        """A shell command that prints its standard input, which is a mark, and then the files."""
        return f"cat - {' '.join(self.paths)}"

    def read(self, host: Endpoint, mark: bytes, output: Output) -> dict[str, Any]:
        """The document behind ``mark``; raises HostUnreachable and what ``document`` raises."""
        text = _behind(host, mark, output)
        if output.status is None:
            raise _incomplete(host, output)
        return self.document(host, text.decode(errors="replace"))


@dataclass(frozen=True)
class Installed:
    """A question that only reads, for the program that is installed on the host: ``gdsdeploy sudoers`` allows it."""

    #: SHA-256 of the program that would be sent otherwise
    program: str
    #: USER@MACHINE of this controller
    claimed: str

    def start(self) -> str:
        """The command of the rule."""
        return SERVE

    def sent(self, argv: Sequence[str], stdin: bytes, mark: bytes, limit: int) -> bytes:
        """The request, as host/cli/serve.py reads it."""
        request = {
            "version": 1,
            "program": self.program,
            "claimed": self.claimed,
            "mark": mark.decode().strip(),
            "seconds": min(limit, SERVE_SECONDS),
            "argv": list(argv),
            "text": stdin.decode(),
        }
        return json.dumps(request).encode()

    def read(self, host: Endpoint, mark: bytes, output: Output) -> dict[str, Any]:
        """The document behind ``mark``; raises HostUnreachable or HostUnfit."""
        if mark not in output.stdout and output.status is not None:
            raise _not_served(host, output)
        answer = document(host, mark, output)
        refused = answer.get("refused")
        if isinstance(refused, dict):
            raise refusal(host.where(), refused)
        return answer


def document(host: Endpoint, mark: bytes, output: Output) -> dict[str, Any]:
    """The JSON object behind ``mark``, before which login scripts print; raises HostUnreachable or HostUnfit."""
    text = _behind(host, mark, output)
    try:
        value = jsontext.loads(text.decode(errors="replace"), items=VALUES, more=True)
    except jsontext.NotJsonError:
        value = None
    except ValueError as error:
        raise malformed(host.where(), "", str(error)) from None
    if isinstance(value, dict):
        return value
    if output.status is None:
        raise _incomplete(host, output)
    # A login shell that waits for it turns a signal into 128 + its number; without one, SSH does not say which it was.
    ending = f"ended with status {output.status}" if 0 <= output.status <= 128 else "was killed"
    ending += f" by signal {output.status - 128}" if output.status > 128 else ""
    words = f"{host.where()}: gdsdeploy's program {ending} and gave no answer{_tail(output.stderr)}"
    raise HostUnfit(words, hint="The quoted lines are the host's own; look at its disk and its memory")


def _behind(host: Endpoint, mark: bytes, output: Output) -> bytes:
    _, separator, text = output.stdout.partition(mark)
    if not separator:
        raise _did_not_begin(host, output)
    return text


def _incomplete(host: Endpoint, output: Output) -> HostUnreachable:
    words = f"{host.where()}: the connection was closed before the answer was complete{_tail(output.stderr)}"
    hint = "Run the command again; if it stays so, look at the host's sshd log (journalctl -u ssh)"
    return HostUnreachable(words, hint=hint)


def malformed(host: str, question: str, problem: str) -> HostUnfit:
    """The error for an answer that isn't what its question asks for."""
    hint = "The program that ran there is gdsdeploy's own; see what changes its output on that host"
    return HostUnfit(f"{host}: its answer{f' to {question}' if question else ''} is malformed: {problem}", hint=hint)


def refusal(host: str, error: Mapping[str, Any], kind: type[GdsError] = HostUnfit) -> GdsError:
    """The error that a host's program gives as its answer, as one of ``kind``; it may say anything."""
    message, hint = (str(error.get(name) or "")[:WORDS] for name in ("message", "hint"))
    return kind(f"{host}: {quoted(message)}", hint=quoted(hint) or None)


def _did_not_begin(host: Endpoint, output: Output) -> GdsError:
    """Why the program was not even started."""
    stderr, status = output.stderr, output.status
    if status is None:
        words = f"{host.where()}: the connection was closed before the program began{_tail(stderr)}"
        return HostUnreachable(words, hint="Look at the host's sshd log (journalctl -u ssh)")
    if status == TOO_OLD:
        return HostUnfit(f"{host.where()}: {quoted(stderr.strip())}", hint="Install Python 3.9 or newer as python3")
    if host.user != "root" and (refusal := _sudo(host, stderr, status)):
        return refusal
    if status in {126, 127} or "python3: command not found" in stderr:
        hint = "Install it with the host's package manager, e.g. apt-get install python3-minimal"
        return HostUnfit(f"{host.where()}: there is no python3 on it{_tail(stderr)}", hint=hint)
    words = f"{host.where()}: the command did not run; the login shell ended with status {status}{_tail(stderr)}"
    return HostUnfit(words, hint=f"Try: {host.ssh()} python3 --version")


def _not_served(host: Endpoint, output: Output) -> HostUnfit:
    """Why the installed program gave no answer: it isn't there, sudo refuses it, or it is an older one."""
    install = "gdsdeploy provision, by a user who may become root; or the package gdsdeploy-host: docs/packages.md"
    stderr = output.stderr
    if output.status == 127 or "command not found" in stderr:
        return HostUnfit(f"{host.where()}: gdsdeploy's program isn't installed there", hint=f"Install it: {install}")
    if "sudo: " in stderr or "sudoers" in stderr:
        words = f"{host.where()}: sudo doesn't let {host.user} run the installed program{_tail(stderr)}"
        rule = f"Write the rule there, as root: gdsdeploy sudoers {host.user}"
        return HostUnfit(words, hint=f"{rule}. If the program isn't there, install it: {install}")
    words = f"{host.where()}: the program that is installed there doesn't answer this controller{_tail(stderr)}"
    return HostUnfit(words, hint=f"It may be an older one; install this version: {install}")


def _sudo(host: Endpoint, stderr: str, status: int) -> GdsError | None:
    """What sudo refused, if it was sudo."""
    lines = [each for each in stderr.splitlines() if each.startswith("sudo: ") or "sudoers" in each]
    if status == 127 and "python3" not in stderr:
        words = f"{host.where()}: sudo is not installed, and {host.user} is not root{_tail(stderr)}"
        return HostUnfit(words, hint="Install sudo on the host, or set ssh.user: root in the fleet file")
    if lines and "python3: command not found" not in lines[-1]:
        return HostUnfit(
            f"{host.where()}: {host.user} cannot become root without a password\n  | {line(lines[-1])}",
            hint=f"Write `{host.user} ALL=(ALL) NOPASSWD: ALL` to a file in /etc/sudoers.d/ there, or log in as root."
            " Verbs that only read need less: docs/security.md#rights",
        )
    return None


def _tail(text: str) -> str:
    lines = text.rstrip().splitlines()[-TAIL_LINES:]
    return "".join(f"\n  | {line(words[:TAIL_WIDTH])}" for words in lines)
