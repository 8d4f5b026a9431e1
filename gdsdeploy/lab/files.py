"""Files and folders that survive interruption: locks, cached folders, removal as root.

Every lasting thing of a lab is written under another name first and renamed when complete, so a reader, or
the next run, never meets half of one.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gdsdeploy import atomic, console, run

#: Fills a temporary folder with what will be cached.
Make = Callable[[Path], None]


@contextmanager
def locked(path: Path, *, what: str) -> Iterator[None]:
    """Hold the lock file ``path`` for the block; say so when somebody else has it first (``what``).

    The lock file is removed at the end, so that a lab that is taken down leaves none.  Waiters notice that
    they locked a removed file and take the new one.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # the folder was just removed with the last lab in it
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.say(f"  waiting for another gdsdeploy that is busy with {what}")
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
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace ``path`` at once by ``value`` as JSON."""
    atomic.write(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``, or None when there is no such file."""
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return value


def remove_tree(path: Path, *, within: Path) -> None:
    """Remove ``path`` and all below it, as root where it holds root's files; ``path`` must lie below ``within``.

    Does not cross into mounted file systems.
    """
    inside = path.absolute()
    if within.absolute() not in inside.parents or ".." in path.parts:
        raise ValueError(f"{path} does not lie below {within}")
    if not inside.is_symlink() and not inside.exists():
        return
    argv = ["rm", "-rf", "--one-file-system", "--", inside.as_posix()]
    run.run(argv if _owned(inside) else run.as_root(argv), doing=f"remove {inside}")


def _owned(path: Path) -> bool:
    """Whether all of the tree belongs to this user (root's files in it need root to remove)."""
    uid = os.geteuid()
    if path.lstat().st_uid != uid:
        return False
    for folder, names, leaves in os.walk(path):
        for name in (*names, *leaves):
            if (Path(folder) / name).lstat().st_uid != uid:
                return False
    return True


def cached(directory: Path, name: str, make: Make, *, what: str) -> Path:
    """The folder ``directory/name``, made by ``make`` in a temporary folder unless it already exists.

    Two labs that want the same thing make it once: the second waits for the first.  What an interrupted run
    left behind is discarded.
    """
    entry = directory / name
    if entry.is_dir():
        return entry
    with locked(directory / f"{name}.lock", what=what):
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
