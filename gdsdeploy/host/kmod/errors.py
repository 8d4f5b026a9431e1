"""What can go wrong with modules on a host; ``cli.py`` turns it into one line and an exit status."""

from __future__ import annotations

import sys
from typing import Any, Callable


class KmodError(Exception):
    """A file, tree or kernel that cannot be used: one message and one next step."""

    #: Exit status of the command line; documented in ``cli.py``.
    exit_code = 2
    #: Stable id of what went wrong, for programs; empty where no program needs to know.
    id = ""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class ElfError(KmodError):
    """A file is not a kernel module that this program can read; the message names the file."""


class SymversError(KmodError):
    """A Module.symvers cannot be read; the message names the file and the line."""


class TreeError(KmodError):
    """A folder is not the source it should be, or no driver tree, or several, fit; all candidates are listed."""


class KernelError(KmodError):
    """A kernel release has no modules, no headers, or headers that cannot build anything."""


class BuildError(KmodError):
    """A module could not be built, or what was built did not pass its audit."""

    exit_code = 1


class StubError(BuildError):
    """nvidia-peermem would be a stub: there is no OFED tree of this kernel, so nothing was compiled."""

    #: As the audit's finding about a stub that was built.
    id = "peermem-stub"


class AuditError(KmodError):
    """Modules did not pass the audit that this step depends on; the findings are listed."""

    exit_code = 1


class PackError(KmodError):
    """An archive of modules cannot be made, is damaged, or was made for something else."""


def guarded(run: Callable[[Any], int]) -> Callable[[Any], int]:
    """Turn a KmodError into its one line on stderr, with the hint, and its exit status."""

    def inner(arguments: Any) -> int:
        try:
            return run(arguments)
        except KmodError as error:
            hint = f" ({error.hint})" if error.hint else ""
            print(f"error: {error.message}{hint}", file=sys.stderr)
            return error.exit_code

    return inner
