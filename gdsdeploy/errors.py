"""The error family: an error class is its message, its exit code and its hint.

Everything a user can cause ends in a subclass of :class:`GdsError`; `cli/__init__.py` is the only
place that turns one into an exit code.  Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence


class GdsError(Exception):
    """A user's error or a host's fault: one message, one next step, one exit code."""

    #: Process exit status; documented in README.md and docs/exit-codes.md, unique by class.
    exit_code: int = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class ProgramFailed(GdsError):
    """A program that gdsdeploy started ended with a status it does not accept."""

    exit_code = 3


class MissingProgram(GdsError):
    """A program that this step needs is not installed on the controller."""

    exit_code = 4


class FleetInvalid(GdsError):
    """The fleet file cannot be read or breaks its schema; every problem is listed with its place."""

    exit_code = 10


class LockInvalid(GdsError):
    """The lock file is missing, malformed, edited by hand, or of a newer major version."""

    exit_code = 11


class LockStale(GdsError):
    """The lock does not fit the fleet file; the reasons are listed."""

    exit_code = 12


class NoSolution(GdsError):
    """No set of packages satisfies the pins and the compatibility rules; every reason is listed."""

    exit_code = 13


class RepositoryUnusable(GdsError):
    """Repository metadata could not be fetched."""

    exit_code = 14


class RepositoryUntrusted(GdsError):
    """Repository metadata or a package failed its signature, checksum or validity check."""

    exit_code = 15


class CufileInvalid(GdsError):
    """A cufile.json has errors, or cannot be read; every problem is listed with its place."""

    exit_code = 16


class LibraryUnusable(GdsError):
    """A libcufile cannot be asked here: there is none, it does not load, or it has no namespace to run in."""

    exit_code = 17


class BuildCacheUnusable(GdsError):
    """The controller's cache of built modules cannot be read or written, or its size is not understood."""

    exit_code = 18


class SigningKeyUnusable(GdsError):
    """A key that signs, or one that verifies, is missing, malformed, another than on record, or open to others."""

    exit_code = 19


class HostUnreachable(GdsError):
    """A host did not answer, or refused the login."""

    exit_code = 20


class HostKeyMismatch(GdsError):
    """A host presented a key that is not the one on record."""

    exit_code = 21


class HostUnfit(GdsError):
    """A host cannot take this lock: its operating system, Python, privileges or disk space."""

    exit_code = 22


class ConvergeFailed(GdsError):
    """Ansible ended with a failed task on at least one host."""

    exit_code = 23


class ModuleBuildFailed(GdsError):
    """A kernel module could not be built, or its audit refused it."""

    exit_code = 24


class NotProvisioned(GdsError):
    """A host was left as it is because nobody could build the kernel modules that it has to receive."""

    exit_code = 25


class ChecksFailed(GdsError):
    """Validation ended with at least one failed check."""

    exit_code = 30


class ChecksUnknown(GdsError):
    """No check failed, but at least one could not be decided."""

    exit_code = 31


class ChangesPending(GdsError):
    """A plan found that provision would change at least one host."""

    exit_code = 32


class ReportsDiffer(GdsError):
    """Two validation reports differ in hosts, verdicts or what runs."""

    exit_code = 33


class LabUnavailable(GdsError):
    """The lab cannot run here, or one of its hosts did not come up."""

    exit_code = 40


class RolloutRefused(GdsError):
    """A rollout was not begun: a host, a kernel or a driver is not ready for it; every reason is listed."""

    exit_code = 50


class RolloutFailed(GdsError):
    """A rollout halted, was aborted or ended with hosts that do not have the new lock."""

    exit_code = 51


class Busy(GdsError):
    """Another process works on a rollout of this fleet, or changes a host."""

    exit_code = 52


class JournalUnusable(GdsError):
    """The journal of a rollout cannot be read or written, or is not what it should be."""

    exit_code = 53


class DrainFailed(GdsError):
    """A host could not be taken out of work in time, or not be brought back."""

    exit_code = 54


class RebootFailed(GdsError):
    """A host did not come back after its reboot, or not with the kernel that it was rebooted into."""

    exit_code = 55


class RollbackFailed(GdsError):
    """A host cannot be, or is not, what it was before."""

    exit_code = 56


class AttestationInvalid(GdsError):
    """A file is no signed statement, is not what was signed, or is not covered by any statement; each is named."""

    exit_code = 60


class AttestationRefused(GdsError):
    """A statement is signed by a key that the policy does not accept for its kind, or the policy has expired."""

    exit_code = 61


class PolicyInvalid(GdsError):
    """A policy of accepted keys cannot be read or breaks its schema; every problem is listed with its place."""

    exit_code = 62


class Interrupted(GdsError):
    """Stopped by Ctrl-C; what was done so far stays and the next run goes on from there."""

    exit_code = 130


def all_errors(root: type[GdsError] = GdsError) -> Iterator[type[GdsError]]:
    """Yield ``root`` and every subclass, depth first; docs and tests walk this."""
    yield root
    for child in root.__subclasses__():
        yield from all_errors(child)


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The one of ``names`` that is most like ``name``; None where none is like it by ``cutoff``, from 0 to 1."""
    return next(iter(difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown ``name``: the nearest known one, or nothing."""
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near else ""


def first_few(words: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first ``most`` of ``words``, and how many more there are."""
    rest = len(words) - most
    before = " " if separator == ", " else separator
    return separator.join(words[:most]) + (f"{before}and {rest} more" if rest > 0 else "")
