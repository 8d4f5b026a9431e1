"""Cached folders, their locks, removal as root.  A complete folder is renamed into place, so no reader sees half."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gdsdeploy import console, run

#: Writes a file or fills a folder at a temporary path.
Make = Callable[[Path], object]


@contextmanager
def hold_lock(path: Path, *, what: str) -> Iterator[None]:
    """Hold the lock file ``path`` for the block; print that another process holds it (``what``).

    The lock file is removed at the end; a waiter that locked a removed file takes the new one.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # the folder was just removed by its other users
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.say(f"  waiting for another gdsdeploy, which uses {what}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        if _same_file(handle, path):
            break
        os.close(handle)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def remove_tree(path: Path, *, within: Path) -> None:
    """Remove ``path``, which must lie below ``within``, as root where needed; mounted file systems stay."""
    inside = path.absolute()
    if within.absolute() not in inside.parents or ".." in path.parts:
        raise ValueError(f"{path} does not lie below {within}")
    if not inside.is_symlink() and not inside.exists():
        return
    argv = ["rm", "-rf", "--one-file-system", "--", inside.as_posix()]
    run.run(argv if _is_owned(inside) else run.as_root(argv), doing=f"remove {inside}")


def _is_owned(path: Path) -> bool:
    """Whether the whole tree belongs to this user; only root can remove root's files."""
    entries = (Path(folder) / name for folder, folders, leaves in os.walk(path) for name in (*folders, *leaves))
    return all(entry.lstat().st_uid == os.geteuid() for entry in itertools.chain([path], entries))


def cached_folder(directory: Path, name: str, make: Make, *, what: str) -> Path:
    """The folder ``directory/name``, made once by ``make`` in a temporary folder; other processes wait for it.

    What an interrupted run left is removed.
    """
    entry = directory / name
    if entry.is_dir():
        return entry
    with hold_lock(directory / f"{name}.lock", what=what):
        if entry.is_dir():
            return entry
        for leftover in directory.glob(f"{name}.tmp-*"):
            remove_tree(leftover, within=directory)
        work = Path(tempfile.mkdtemp(prefix=f"{name}.tmp-", dir=directory))
        try:
            work.chmod(0o755)
            make(work)
            work.rename(entry)
        except BaseException:
            remove_tree(work, within=directory)
            raise
    return entry
