"""Replace a file at once: a reader meets the old content or the new one, never half of it, whatever happens."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

_LINKS_LIMIT = 40


def write(path: Path, content: str | bytes | Iterable[str], *, mode: int | None = None) -> None:
    """Replace the content of ``path``, text as UTF-8; on disk when this returns.

    A link stays, and the file that it leads to is replaced.  A device, a pipe and this process's own descriptors, such
    as /dev/stdout, are written to.

    content: whole, or in parts, of which each is written as it comes.
    mode: of the new file, which is this user's; None: mode, group and owner stay, as far as this user may give them,
    and a file that wasn't there has what the umask leaves of 0666.
    Raises OSError, and what the parts raise; then a file is as it was and nothing is left beside it.
    """
    parts = (content,) if isinstance(content, (str, bytes)) else content
    data = (part.encode() if isinstance(part, str) else part for part in parts)
    place = _followed(path)
    own = place.parent == _descriptors()
    before = place.stat() if place.exists() else None
    if own or (before is not None and not stat.S_ISREG(before.st_mode)):
        with os.fdopen(os.dup(int(place.name)) if own else os.open(place, os.O_WRONLY), "wb") as stream:
            stream.writelines(data)
        return
    new = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    private = mode is not None or before is not None
    try:
        # The system applies the umask, or the folder's access list.
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(data)
            if mode is not None:
                os.fchmod(handle, mode)
            elif before is not None:
                _keep_access(handle, before)
            stream.flush()
            os.fsync(handle)
        new.replace(place)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _keep_access(handle: int, before: os.stat_result) -> None:
    for owner, group in ((-1, before.st_gid), (before.st_uid, -1)):
        with contextlib.suppress(OSError):
            os.fchown(handle, owner, group)
    os.fchmod(handle, before.st_mode & 0o777)


def _descriptors() -> Path:
    """Where this process's descriptors lie."""
    return Path(f"/proc/{os.getpid()}/fd")


def _followed(path: Path) -> Path:
    """Where ``path`` leads in the end, in a folder without links.

    Raises OSError, also for what another user has put into a folder that everyone can write to.
    """
    for _ in range(_LINKS_LIMIT):
        folder = Path(os.path.realpath(path.absolute().parent))
        path = folder / path.name
        if folder == _descriptors() or not os.path.lexists(path):
            return path
        entry, above = path.lstat(), folder.stat()
        if above.st_mode & stat.S_IWOTH and entry.st_uid not in (os.geteuid(), above.st_uid):
            raise PermissionError(errno.EACCES, "another user's, in a folder that everyone can write to", str(path))
        if not path.is_symlink():
            return path
        path = folder / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
