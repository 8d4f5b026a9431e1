"""What this program has read from files, so that the next call needn't read them again.

It is a folder inside the program's own one in /run/gdsdeploy: root's, empty after a boot, and another program has
another one (zipapp/bootstrap.py).  Without such a folder nothing is stored.  An entry counts while its inputs are the
same.  What files hold is stored, and what NVIDIA's library answers to them; never a verdict or an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from functools import lru_cache
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, TypeVar

from .. import process
from . import atomic

T = TypeVar("T")

#: Folders of programs; see zipapp/bootstrap.py.
PROGRAMS = "/run/gdsdeploy/program-"
#: Bytes of one entry; a driver's module has 200 KB, a kernel's symbols 3 MB.
ENTRY_LIMIT = 16 << 20
_OUTPUT = ("status", "stdout", "stderr", "truncated")
_NO_MODULE = r"mod(probe: FATAL|info: ERROR): Module \S+ not found(\.| in directory \S+)\n"


def of_file(kind: str, path: str, read: Callable[[], Any]) -> Any:
    """``read()``, a JSON value, or what it was while ``path`` was the same file.

    kind: what is read from it.  Raises what ``read`` raises.
    """
    return _kept(kind, path, lambda: _identities((path,)), read)


class Inputs(NamedTuple):
    """What decides about a value.

    ``paths``: regular files, and folders with what is directly in them; that one of them isn't there counts as well.
    ``words``: texts.
    """

    paths: Sequence[str]
    words: Sequence[str] = ()


def of(kind: str, inputs: Inputs, read: Callable[[], Any], fresh: bool = False) -> Any:
    """``read()``, a JSON value, or what it was while all ``inputs`` were the same.

    fresh: read in any case.  None isn't stored.  Raises what ``read`` raises.
    """
    # The digest of the words: /proc/modules alone has 20 KB.
    digest = hashlib.sha256("\0".join(inputs.words).encode("utf-8", "surrogateescape")).hexdigest()

    def now() -> Optional[List[Any]]:
        identities = _identities(inputs.paths)
        return None if identities is None else [digest, identities]

    return _kept(kind, "", now, read, fresh)


def stored_run(name: str, argv: Sequence[str], inputs: Inputs, run: Callable[[], process.Output]) -> process.Output:
    """``run()``, or what it printed while all ``inputs`` were the same.

    A failure or a complaint isn't stored, but kmod's that there is no such module: modules.dep says so.
    """
    outputs: List[process.Output] = []

    def read() -> Optional[List[Any]]:
        outputs.append(run())
        status, stdout, stderr, truncated = (getattr(outputs[0], name) for name in _OUTPUT)
        settled = (status == 0 and not stderr) or (status == 1 and re.fullmatch(_NO_MODULE, stderr))
        return [status, stdout, stderr] if settled and not truncated else None

    words = (*argv, "", *inputs.words)
    stored = of("command " + name, inputs._replace(words=words), read)
    return outputs[0] if outputs else process.Output(*stored)


def _kept(
    kind: str, path: str, now: Callable[[], Optional[List[Any]]], read: Callable[[], Any], fresh: bool = False
) -> Any:
    """now: what decides about the value; None: it can't be told."""
    before = None if folder() is None else now()
    if before is None:
        return read()
    value = None if fresh else _load(kind, path, before)
    if value is None:
        value = read()
        # A file that changed meanwhile may have been read half before, half after.
        if value is not None and now() == before:
            _store(kind, path, before, value)
    return value


@lru_cache(maxsize=1)
def folder() -> Optional[str]:
    """The folder of entries; None where there is none that only this user can write to."""
    program = __file__.rpartition("/gdsdeploy/host/")[0]
    if not program.startswith(PROGRAMS) or os.geteuid() != 0 or not _is_private(program):
        return None
    path = program + "/cache"
    with contextlib.suppress(FileExistsError), contextlib.suppress(OSError):
        os.mkdir(path, 0o700)
    return path if _is_private(path) else None


def _is_private(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _identities(paths: Sequence[str]) -> Optional[List[Any]]:
    """[path, identity] of each path and of what is directly in a folder; None where one of them can't be told."""
    identities: List[Any] = []
    try:
        for path in paths:
            inside = sorted(os.listdir(path)) if os.path.isdir(path) else []
            identities += [[entry, _state(entry)] for entry in (path, *(f"{path}/{name}" for name in inside))]
    except OSError:
        return None
    return identities


def _state(path: str) -> List[int]:
    """What changes with a file's content or a folder's names; empty where nothing is.

    The last one is the time of the last change, which no call sets.
    Raises OSError for anything else: its content may change while nothing of this does.
    """
    place = os.path.realpath(path) if os.path.islink(path) else path
    if place.startswith(("/proc/", "/sys/")):
        raise OSError(path + " is the kernel's")
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return []
    if status.st_rdev and status.st_rdev == os.stat(os.devnull).st_rdev:
        # So configuration is taken out of force.
        return [status.st_rdev]
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise OSError(path + " is neither a file nor a folder")
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _place(kind: str, path: str) -> str:
    name = hashlib.sha256(f"{kind}\0{path}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"{folder()}/{name[:32]}.json"


def _load(kind: str, path: str, inputs: List[Any]) -> Any:
    with contextlib.suppress(OSError, ValueError, RecursionError):
        with open(_place(kind, path), "rb") as file:
            entry = json.loads(file.read(ENTRY_LIMIT))
        if isinstance(entry, dict) and entry.get("of") == [kind, path, inputs]:
            return entry.get("value")
    return None


def _store(kind: str, path: str, inputs: List[Any], value: Any) -> None:
    data = json.dumps({"of": [kind, path, inputs], "value": value}).encode("utf-8", "surrogateescape")
    if len(data) < ENTRY_LIMIT:
        # Without room, the next call reads the files again.
        with contextlib.suppress(OSError):
            atomic.write(_place(kind, path), data, mode=0o600)
