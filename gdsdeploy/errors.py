"""Errors that a user can cause or resolve: each class has an exit code, each error a message and a hint.

Only `cli/__init__.py` turns one into an exit code.  Any other exception that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
import errno
import re
import shlex
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

E = TypeVar("E", bound=Exception)

#: FLEET in a command: written where the fleet file isn't known.
_PLACE = re.compile(r"(\bgdsdeploy(?: [a-z][a-z-]*)+ )FLEET\b")


def with_fleet(text: str, fleet: Path | str) -> str:
    """A text whose commands name the fleet file ``fleet`` in place of FLEET."""
    name = shlex.quote(str(fleet))
    return _PLACE.sub(lambda match: match[1] + name, text)


class GdsError(Exception):
    """A user's error or a host's fault: one message, one next step, one exit code."""

    #: Process exit status; documented in docs/exit-codes.md, unique by class.
    exit_code: int = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __init_subclass__(cls, *, exit_code: int) -> None:
        cls.exit_code = exit_code

    def __str__(self) -> str:
        return self.message

    def name_fleet(self, fleet: Path | str) -> None:
        """Have the commands of message and hint name the fleet file."""
        self.message = with_fleet(self.message, fleet)
        self.hint = with_fleet(self.hint, fleet) if self.hint else self.hint


@contextmanager
def translated(kinds: type[E] | tuple[type[E], ...], to: Callable[[E], Exception]) -> Iterator[None]:
    """Raise what ``to`` makes of an error of these kinds in the block, in its place."""
    try:
        yield
    except kinds as error:
        raise to(error) from error


class NameUnknown(GdsError, exit_code=2):
    """The command line is wrong: it names a host or a check that doesn't exist."""


class ProgramFailed(GdsError, exit_code=3):
    """A program that gdsdeploy started ended with an unexpected status."""


class MissingProgram(GdsError, exit_code=4):
    """A program that this step needs is not installed on the controller."""


class ControllerUnfit(GdsError, exit_code=5):
    """The controller lacks what its own part needs: open files, memory, disk, rights, a name server or a network."""


class FleetInvalid(GdsError, exit_code=10):
    """The fleet file cannot be read or breaks its schema; every problem is listed with its place."""


class LockInvalid(GdsError, exit_code=11):
    """The lock file is missing, malformed, edited by hand, or of a newer major version."""


class LockStale(GdsError, exit_code=12):
    """The lock does not fit the fleet file; the reasons are listed."""


class NoSolution(GdsError, exit_code=13):
    """No set of packages satisfies the pins and the compatibility rules; every reason is listed."""


class RepositoryUnusable(GdsError, exit_code=14):
    """Repository metadata could not be fetched, or a package does not tell its source tree."""


class RepositoryUntrusted(GdsError, exit_code=15):
    """Repository metadata or a package failed its signature, checksum or validity check."""


class CufileInvalid(GdsError, exit_code=16):
    """A cufile.json has errors, or cannot be read; every problem is listed with its place."""


class BuildCacheUnusable(GdsError, exit_code=18):
    """The controller's cache of built modules cannot be read or written, or its size is not understood."""


class SigningKeyUnusable(GdsError, exit_code=19):
    """A signing or verification key is missing, malformed, readable by others, or differs from the recorded one."""


class HostUnreachable(GdsError, exit_code=20):
    """A host did not answer, or refused the login."""


class HostKeyMismatch(GdsError, exit_code=21):
    """A host presented a key that is not the one on record."""


class HostUnfit(GdsError, exit_code=22):
    """A host cannot take this lock: its operating system, Python, privileges or disk space."""


class ConvergeFailed(GdsError, exit_code=23):
    """Ansible ended with a failed task on at least one host."""


class ModuleBuildFailed(GdsError, exit_code=24):
    """A kernel module could not be built, or its audit refused it."""


class NotProvisioned(GdsError, exit_code=25):
    """A host isn't provisioned: no machine could build the modules that it receives, or Ansible did nothing there."""


class ChecksFailed(GdsError, exit_code=30):
    """Validation ended with at least one failed check."""


class ChecksUnknown(GdsError, exit_code=31):
    """No check failed, but at least one is inconclusive."""


class ChangesPending(GdsError, exit_code=32):
    """A plan found that provision would change at least one host."""


class ReportsDiffer(GdsError, exit_code=33):
    """Two validation reports differ in hosts, verdicts or what runs."""


class RolloutRefused(GdsError, exit_code=50):
    """A rollout did not start: a host, a kernel or a driver is not ready for it; every reason is listed."""


class RolloutFailed(GdsError, exit_code=51):
    """A rollout halted, was aborted or ended with hosts that do not have the new lock."""


class Busy(GdsError, exit_code=52):
    """Another process works on a rollout of this fleet, changes a host, or writes the same mirror."""


class JournalUnusable(GdsError, exit_code=53):
    """A rollout's journal cannot be read or written, or is damaged."""


class DrainFailed(GdsError, exit_code=54):
    """A host could not be drained in time, or could not be brought back."""


class RebootFailed(GdsError, exit_code=55):
    """A host did not come back after its reboot, or came back with another kernel than expected."""


class RollbackFailed(GdsError, exit_code=56):
    """A host cannot be restored, or was not restored, to its earlier state."""


class SignatureRefused(GdsError, exit_code=60):
    """A lock has no valid signature of a signer that the fleet file lists, or is of another fleet."""


class Interrupted(GdsError, exit_code=130):
    """Stopped by Ctrl-C; finished work stays, and the next run resumes there."""


_FILES = "Raise this machine's limit of open files (ulimit -n), or let it do less at the same time"
MEMORY = "Look at this machine's memory and processes (free, ulimit -u), or let it do less at the same time"
_DISK = "Look at the disks of this machine: df -h"
NETWORK = "Look at the network of this machine: ip route"
#: What this machine lacks, by the system's error, and where to look.
_LACKING = {
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _FILES),
    **dict.fromkeys((errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN), MEMORY),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _DISK),
    errno.ENETDOWN: NETWORK,
}


def lack_of_controller(error: BaseException, doing: str) -> ControllerUnfit | None:
    """What this machine lacked to do ``doing``; None: the error says nothing about this machine."""
    hint = _LACKING.get(error.errno or 0) if isinstance(error, OSError) else None
    if isinstance(error, socket.gaierror):
        # Without its name server; of a name that isn't there, the system says EAI_NONAME.
        hint = "Ask this machine's name server: getent hosts NAME" if error.errno == socket.EAI_AGAIN else None
    if isinstance(error, MemoryError):
        hint = MEMORY
    why = getattr(error, "strerror", None) or "out of memory"
    return ControllerUnfit(f"this machine cannot {doing}: {why}", hint=hint) if hint else None


def all_errors(root: type[GdsError] = GdsError) -> Iterator[type[GdsError]]:
    """Yield ``root`` and every subclass, depth first; docs and tests walk this."""
    yield root
    for child in root.__subclasses__():
        yield from all_errors(child)


def error_named(name: str, default: type[GdsError] = GdsError) -> type[GdsError]:
    """The class of an error by its name; ``default`` for a name that there isn't."""
    return next((error for error in all_errors() if error.__name__ == name), default)


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one of ``names`` that is most like ``name``; None where none is like it by ``cutoff``, from 0 to 1."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown ``name``: the nearest known one, or nothing."""
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near else ""
