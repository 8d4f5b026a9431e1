"""A file of our own on a mount, that is gone whatever happens to the program.

A file without a name (O_TMPFILE) goes with its last descriptor, and so does one that lost its name while open.  Only
where a filesystem has neither does the file keep its name until the end, and then SIGTERM and SIGINT remove it, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import threading
from types import FrameType
from typing import Iterator, Optional, Tuple

#: How the file is kept from being left behind.
NAMELESS, UNLINKED, NAMED = "without a name", "unlinked while open", "removed at the end"
PREFIX = ".gdsdeploy-scratch-"
#: What open(2) says where a filesystem has no O_TMPFILE; kernels that do not know the flag open the folder: EISDIR.
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_MODE = os.O_RDWR | os.O_CLOEXEC


@contextlib.contextmanager
def scratch(folder: str) -> Iterator[Tuple[int, str]]:
    """(descriptor, how it is kept from staying) of a new empty file on the filesystem of ``folder``.

    Raises OSError where none can be made: EROFS, EACCES, ENOSPC, EDQUOT.
    """
    with ended_cleanly():
        descriptor, path = _made(folder)
        try:
            if path and _unlinked(descriptor, path):
                path, kept = "", UNLINKED
            else:
                kept = NAMED if path else NAMELESS
            yield descriptor, kept
        finally:
            os.close(descriptor)
            if path:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


def reopened(descriptor: int, flags: int) -> int:
    """A second description of the same open file, with other flags; raises OSError as open(2) does."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC | flags)


def _made(folder: str) -> Tuple[int, str]:
    try:
        return os.open(folder, os.O_TMPFILE | _MODE, 0o600), ""
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
    path = os.path.join(folder, PREFIX + secrets.token_hex(8))
    return os.open(path, os.O_CREAT | os.O_EXCL | _MODE, 0o600), path


def _unlinked(descriptor: int, path: str) -> bool:
    """Take the name away; False where the file cannot be used without one, and it has its name back or still."""
    try:
        os.unlink(path)
        os.fstat(descriptor)
        os.close(reopened(descriptor, 0))
    except OSError:
        return _named_again(descriptor, path)
    return True


def _named_again(descriptor: int, path: str) -> bool:
    if not os.path.exists(path):
        again = os.open(path, os.O_CREAT | os.O_EXCL | _MODE, 0o600)
        os.dup2(again, descriptor, inheritable=False)
        os.close(again)
    return False


@contextlib.contextmanager
def ended_cleanly() -> Iterator[None]:
    """Have SIGTERM, and SIGINT where it would end the program at once, end the body by an exception.

    Elsewhere than in the main thread nothing is changed: there no handler can be set.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: Optional[FrameType]) -> None:
        raise SystemExit(128 + number)

    plain = [item for item in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(item) is signal.SIG_DFL]
    for number in plain:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in plain:
            signal.signal(number, signal.SIG_DFL)
