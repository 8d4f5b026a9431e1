"""What can go wrong on a host; the command line turns it into one line and an exit status."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Iterable, Iterator, Type

#: Exit status of everything that this host refuses.
REFUSED = 30
FAILED, UNUSABLE, BUSY = 1, 2, 52


class UsageError(Exception):
    """The caller's arguments or files cannot be used; the message says what and what to do."""


class UndecidedError(Exception):
    """A fact is not known; the message is the reason.  hint: the next step; empty: the caller's own."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


class HostError(Exception):
    """A file, tree or kernel that cannot be used: one message and one next step."""

    #: Exit status of the command line.
    exit_code = 2
    #: Stable id of what went wrong, for programs; empty where no program needs to know.
    id = ""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class ElfError(HostError):
    """A file is not a kernel module that this program can read; the message names the file."""


class SymversError(HostError):
    """A Module.symvers cannot be read; the message names the file and the line."""


class TreeError(HostError):
    """A folder is not the source it should be, or no driver tree, or several, fit; all candidates are listed."""


class KernelError(HostError):
    """A kernel release has no modules, no headers, or headers that cannot build anything."""


class BuildError(HostError):
    """A module could not be built.  Unless a subclass says more, the sources weren't judged, and the next run tries."""

    exit_code = 1


class UnbuildableError(BuildError):
    """The compiler or modpost refuses these sources for this kernel, or the audit what they make.  It stays true."""

    id = "unbuildable"


class StubError(BuildError):
    """nvidia-peermem would be a stub: there is no OFED tree of this kernel, so nothing was compiled."""

    #: As the audit's finding about a stub that was built.
    id = "peermem-stub"


class AuditError(HostError):
    """Modules did not pass the audit that this step depends on; the findings are listed."""

    exit_code = 1


class PackError(HostError):
    """An archive of modules cannot be made, is damaged, or was made for something else."""


class RolloutError(HostError):
    """The host refuses; ``kind`` is one word for programs, message and hint are for people."""

    exit_code = REFUSED

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.kind = kind


class ApplyError(HostError):
    """A change failed.  The resource is as it was, or a second run continues where this one stopped.

    Kinds: ``failed`` (a program ended with an error), ``io``, ``no-space``, ``package-manager-locked``,
    ``half-installed``, ``refused`` (a preflight condition), ``verify`` (the result isn't what was asked for),
    ``modules`` (a build or an audit), ``in-use`` (a module that has to be unloaded).
    """

    exit_code = FAILED
    kind = "failed"

    def __init__(self, message: str, hint: str = "", kind: str = "") -> None:
        super().__init__(message, hint)
        self.kind = kind or self.kind


class DesiredError(ApplyError):
    """The desired state can't be read, has a newer version, or breaks its schema; the message names the place."""

    exit_code = UNUSABLE
    kind = "desired"


class BusyError(ApplyError):
    """Another run is changing this host; the message names it."""

    exit_code = BUSY
    kind = "busy"


class CannotTellError(Exception):
    """Something that decides what would change can't be read.  A check reports it, and never as "no change".

    ``hint`` and ``kind`` are those of the ApplyError that it becomes when the host is to be changed.
    """

    def __init__(self, message: str, hint: str = "", kind: str = "io") -> None:
        super().__init__(message)
        self.hint = hint
        self.kind = kind


class NotOfferedError(CannotTellError):
    """No repository of the host offers packages in the versions that were asked for; ``names`` are theirs."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__("no repository of this host offers this version", kind="verify")
        self.names = frozenset(names)


@contextlib.contextmanager
def failing(kind: Type[HostError], words: str, hint: str = "") -> Iterator[None]:
    """Turn an OSError into an error of this kind: what failed, in ``words``, and the system's own words."""
    try:
        yield
    except OSError as error:
        raise kind(f"{words}: {error.strerror or error}", hint) from None


def guarded(run: Callable[[Any], int]) -> Callable[[Any], int]:
    """Turn a HostError into its one line on stderr, with the hint, and its exit status."""

    def inner(arguments: Any) -> int:
        try:
            return run(arguments)
        except HostError as error:
            hint = f" ({error.hint})" if error.hint else ""
            print("\n  | ".join(f"error: {error.message}{hint}".splitlines()), file=sys.stderr)
            return error.exit_code

    return inner
