"""Files that others made or named: reading one neither waits for a writer nor takes more than a bound."""

from __future__ import annotations

import errno
import os
import shlex
from typing import BinaryIO


def open_file(path: str) -> BinaryIO:
    """The file ``path`` for reading; raises OSError.

    A named pipe without a writer is empty; a usual open would wait until a program writes to it.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - the caller closes it
    os.set_blocking(file.fileno(), True)
    return file


def beginning(path: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a file, and one more where it has more; raises OSError."""
    with open_file(path) as file:
        return file.read(limit + 1)


def whole(path: str, limit: int) -> bytes:
    """A file of at most ``limit`` bytes; raises OSError, also for a larger one."""
    data = beginning(path, limit)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", path)
    return data


def look(path: str) -> str:
    """The next command for a file that cannot be read."""
    return f"Look at it with: ls -lL {shlex.quote(path)}"


def _without_waiting(path: str, _flags: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
