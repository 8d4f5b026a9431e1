"""Errors while a host is changed.  ``kind`` is for programs, message and hint are for people."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Iterator

from ..errors import ApplyError, HostError
from ..io.atomic import UnsafePathError

_IN_THE_WAY = (errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ELOOP)


@contextlib.contextmanager
def with_kind(kind: str) -> Iterator[None]:
    """Turn every other HostError into an ApplyError of this kind."""
    try:
        yield
    except ApplyError:
        raise
    except HostError as error:
        raise ApplyError(error.message, error.hint, kind) from None


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn an OSError into the ApplyError for ``path``; empty: for the path in the OSError."""
    try:
        yield
    except OSError as error:
        raise io_error(path or str(error.filename or "this host"), error) from None


def io_error(path: str, error: OSError) -> ApplyError:
    """The error for a path that can't be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ApplyError(f"{path}: no space left on the device", f"make room: df {os.path.dirname(path)}", "no-space")
    if isinstance(error, UnsafePathError):
        return ApplyError(str(error.strerror), f"have it changed by root only, or move it away: {error.filename}", "io")
    hint = f"look at it: ls -ld {path}" if error.errno in _IN_THE_WAY else "run it as root, on a writable filesystem"
    return ApplyError(f"{path}: {error.strerror or error}", hint, "io")
