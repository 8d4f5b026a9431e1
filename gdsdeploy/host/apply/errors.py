"""What can go wrong while a host is changed.  ``kind`` is for programs, the message and the hint are for people."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Iterator

from ..atomic import UnsafePathError
from ..kmod.errors import KmodError

FAILED, UNUSABLE, BUSY = 1, 2, 52
_IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ELOOP)


class ApplyError(KmodError):
    """A change failed.  The resource is as it was, or a second run continues where this one stopped.

    Kinds: ``failed`` (a program ended with an error), ``io``, ``no-space``, ``package-manager-locked``,
    ``half-installed``, ``refused`` (a preflight condition), ``verify`` (the result isn't what was asked for),
    ``modules`` (a build or an audit).
    """

    exit_code = FAILED

    def __init__(self, message: str, hint: str = "", kind: str = "failed") -> None:
        super().__init__(message, hint)
        self.kind = kind


class DesiredError(ApplyError):
    """The desired state can't be read, has a newer version, or breaks its schema; the message names the place."""

    exit_code = UNUSABLE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, "desired")


class BusyError(ApplyError):
    """Another run is changing this host; the message names it."""

    exit_code = BUSY

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, "busy")


class CannotTellError(Exception):
    """Something that decides what would change can't be read.  A check reports it, and never as "no change".

    ``hint`` and ``kind`` are those of the ApplyError that it becomes when the host is to be changed.
    """

    def __init__(self, message: str, hint: str = "", kind: str = "io") -> None:
        super().__init__(message)
        self.hint = hint
        self.kind = kind


@contextlib.contextmanager
def typed(kind: str) -> Iterator[None]:
    """Give a KmodError that is no ApplyError this kind."""
    try:
        yield
    except ApplyError:
        raise
    except KmodError as error:
        raise ApplyError(error.message, error.hint, kind) from None


def io_error(path: str, error: OSError) -> ApplyError:
    """The error for a path that can't be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ApplyError(f"{path}: no space left on the device", f"make room: df {os.path.dirname(path)}", "no-space")
    if isinstance(error, UnsafePathError):
        return ApplyError(str(error.strerror), f"have it changed by root only, or move it away: {error.filename}", "io")
    hint = f"look at it: ls -ld {path}" if error.errno in _IN_THE_WAY else "run it as root, on a writable filesystem"
    return ApplyError(f"{path}: {error.strerror or error}", hint, "io")
