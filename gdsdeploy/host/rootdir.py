"""Paths inside a root folder that is not this machine's own: its absolute symlinks mean its own tree."""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO, Dict, List

from .errors import HostError

_LINKS_LIMIT = 40
#: Configuration files and the like; bounds what a hostile root can make this program read.
_TEXT_LIMIT = 8 << 20
_PIECE = 64 << 10


class LoopError(HostError):
    """Symbolic links lead round in a circle."""


def inside(root: str, path: str) -> str:
    """Return where ``path`` (as seen from inside ``root``) is on this machine, with every symlink followed inside root.

    The result may not exist.  Raises LoopError.
    """
    todo: List[str] = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    parts: List[str] = []
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            parts = parts[:-1]
            continue
        place = os.path.join(root, *parts, part)
        if not os.path.islink(place):
            parts.append(part)
            continue
        links += 1
        if links > _LINKS_LIMIT:
            raise LoopError(f"{place}: too many symbolic links")
        target = os.readlink(place)
        if target.startswith("/"):
            parts = []
        todo.extend(name for name in reversed(target.split("/")) if name not in ("", "."))
    return os.path.join(root, *parts)


def open_file(path: str) -> BinaryIO:
    """The file ``path`` for reading; raises OSError.

    A named pipe without a writer is empty; a usual open would wait until a program writes to it.
    """
    file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - the caller closes it
    os.set_blocking(file.fileno(), True)
    return file


def read_text(root: str, path: str) -> str:
    """The text of a file inside ``root``; empty when it is not there or cannot be read."""
    try:
        return read_file(inside(root, path))
    except OSError:
        return ""


def read_file(place: str) -> str:
    """The text of a file of this machine, of at most 8 MiB; raises OSError."""
    with open_file(place) as file:
        # In pieces: files in /proc/sys refuse to be asked for megabytes at once (ENOMEM, fs/proc/proc_sysctl.c).
        pieces = [file.read(_PIECE)]
        while pieces[-1] and len(pieces) * _PIECE < _TEXT_LIMIT:
            pieces.append(file.read(_PIECE))
        return b"".join(pieces).decode("utf-8", "replace")


def read_object(root: str, path: str) -> Dict[str, Any]:
    """The JSON object in a file inside ``root``; empty when there is none that can be read."""
    try:
        value = json.loads(read_text(root, path) or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_bytes(root: str, path: str, limit: int = 1 << 20) -> bytes:
    """The first ``limit`` bytes of a file inside ``root``; empty when it is not there or cannot be read."""
    try:
        with open_file(inside(root, path)) as file:
            return file.read(limit)
    except OSError:
        return b""


def list_folder(root: str, path: str) -> List[str]:
    """The sorted names in a folder inside ``root``; empty when it is not there."""
    try:
        return list_names(inside(root, path))
    except OSError:
        return []


def list_names(place: str) -> List[str]:
    """The sorted names in a folder of this machine; raises OSError."""
    return sorted(os.listdir(place))


class Files:
    """What is read of the host below ``root``; what isn't there is empty.  A record of a host may stand for it."""

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def text(self, path: str) -> str:
        """The text of a file."""
        return read_text(self._root, path)

    def content(self, path: str) -> bytes:
        """The bytes of a small file."""
        return read_bytes(self._root, path)

    def names(self, folder: str) -> List[str]:
        """The sorted names in a folder."""
        return list_folder(self._root, folder)

    def exists(self, path: str) -> bool:
        """Whether a file is there."""
        return os.path.exists(inside(self._root, path))


def _without_waiting(path: str, _flags: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
