"""A scratch file on a mount that is removed whatever happens to the program.

A file without a name (O_TMPFILE) is removed with its last descriptor, and so is one that lost its name while open.  If
a filesystem has neither, the file keeps its name until the end, and SIGTERM and SIGINT remove it, too.

Time limits of reading under load.
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
#: Errors of open(2) where a filesystem has no O_TMPFILE; kernels without the flag open the folder: EISDIR.
_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
_MODE = os.O_RDWR | os.O_CLOEXEC


@contextlib.contextmanager
def scratch(folder: str) -> Iterator[Tuple[int, str]]:
    """(descriptor, how it is kept from staying) of a new empty file on the filesystem of ``folder``.

    Raises OSError where none can be made: EROFS, EACCES, ENOSPC, EDQUOT.
    """
    with ended_cleanly():
        descriptor, path = _new_file(folder)
        try:
            if path and _unlink(descriptor, path):
                path, naming = "", UNLINKED
            else:
                naming = NAMED if path else NAMELESS
            yield descriptor, naming
        finally:
            os.close(descriptor)
            if path:
                # What was measured counts, whatever becomes of the mount.
                with contextlib.suppress(OSError):
                    os.unlink(path)


def reopened(descriptor: int, flags: int) -> int:
    """A second description of the same open file, with other flags; raises OSError as open(2) does."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC | flags)


def _new_file(folder: str) -> Tuple[int, str]:
    try:
        return os.open(folder, os.O_TMPFILE | _MODE, 0o600), ""
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            raise
    path = os.path.join(folder, PREFIX + secrets.token_hex(8))
    return os.open(path, os.O_CREAT | os.O_EXCL | _MODE, 0o600), path


def _unlink(descriptor: int, path: str) -> bool:
    """Remove the name; False where the file can't be used without one: then it keeps its name or has it again."""
    try:
        os.unlink(path)
        os.fstat(descriptor)
        os.close(reopened(descriptor, 0))
    except OSError:
        if not os.path.exists(path):
            named = os.open(path, os.O_CREAT | os.O_EXCL | _MODE, 0o600)
            os.dup2(named, descriptor, inheritable=False)
            os.close(named)
        return False
    return True


@contextlib.contextmanager
def ended_cleanly() -> Iterator[None]:
    """Make SIGTERM, and SIGINT where it would end the program at once, raise SystemExit in the body.

    Outside the main thread nothing changes: no handler can be set there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: Optional[FrameType]) -> None:
        raise SystemExit(128 + number)

    defaults = [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) is signal.SIG_DFL]
    for number in defaults:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in defaults:
            signal.signal(number, signal.SIG_DFL)


#: Seconds of reading under load: the default, and the most; and the limit of writing the file.
SECONDS, LONGEST, FILLING = 10.0, 60.0, 20.0
#: For making and removing that file, where a filesystem is slow with it.
_GRACE = 15.0


def longest(seconds: float) -> float:
    """Seconds that reading for ``seconds`` under load may take in all."""
    return seconds + FILLING + _GRACE
