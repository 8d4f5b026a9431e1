"""What a path was before gdsdeploy first changed it; ``remove`` and a rollback read it.

``/var/lib/gdsdeploy/before.json`` holds ``{"version": 1, "paths": {PATH: null | {"mode", "uid", "gid", "content"}}}``
with content in base64, ``link`` or ``folder`` in its place, and ``attributes``: extended ones, in base64, where there
are any.  It is written before the path is, so that an interrupted
run has recorded what it changed.  A file that an older gdsdeploy left is recorded as nothing.
"""

from __future__ import annotations

import base64
import json
import os
import stat
from functools import cached_property
from typing import Any, Dict, Optional

from ..errors import ApplyError
from ..io import atomic
from ..rootdir import inside
from . import written
from .files import replace
from .model import writing

PATH = "/var/lib/gdsdeploy/before.json"
VERSION = 1
#: Configuration files are smaller.
_LIMIT = 4 << 20


class Record:
    """The record of one host, read when it is first needed.  Raises ApplyError where it is damaged."""

    def __init__(self, root: str = "/") -> None:
        self._root = root

    @cached_property
    def paths(self) -> Dict[str, Any]:
        """Path → what it was; None: nothing was there."""
        place = inside(self._root, PATH)
        try:
            with open(place, "rb") as file:
                value = json.loads(file.read().decode("utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise _damage(place, error) from None
        if not isinstance(value, dict) or value.get("version") != VERSION or not isinstance(value.get("paths"), dict):
            raise _damage(place, f"not a record of version {VERSION}")
        return dict(value["paths"])

    def remember(self, path: str) -> None:
        """Record what ``path`` is now, unless it is recorded already; raises ApplyError."""
        if path in self.paths:
            return
        before = look(self._root, path)
        self.paths[path] = None if is_ours(path, before) else before
        try:
            self._write()
        except BaseException:
            del self.paths[path]
            raise

    def forget(self, path: str) -> None:
        """Drop ``path``, which is what it was before."""
        if path in self.paths:
            del self.paths[path]
            self._write()

    def _write(self) -> None:
        text = json.dumps({"version": VERSION, "paths": self.paths}, sort_keys=True, indent=1) + "\n"
        with writing(PATH):
            replace(inside(self._root, PATH), text.encode(), 0o600)


def look(root: str, path: str) -> Optional[Dict[str, Any]]:
    """What ``path`` is, without following a link at its end; None: nothing.  Raises ApplyError."""
    place = beside(root, path)
    try:
        status = os.lstat(place)
        value: Dict[str, Any] = {"mode": stat.S_IMODE(status.st_mode), "uid": status.st_uid, "gid": status.st_gid}
        if stat.S_ISLNK(status.st_mode):
            value["link"] = os.readlink(place)
        elif stat.S_ISREG(status.st_mode):
            if status.st_size > _LIMIT:
                words = f"{path}: {status.st_size} bytes is too large for a configuration file"
                raise ApplyError(words, f"move it away: mv {path} {path}.aside")
            with open(place, "rb") as file:
                value["content"] = base64.b64encode(file.read()).decode("ascii")
        elif stat.S_ISDIR(status.st_mode):
            value["folder"] = True
        else:
            raise ApplyError(f"{path}: is neither a file nor a folder", f"move it away: mv {path} {path}.aside", "io")
        attributes = {} if "link" in value else atomic.attributes_of(place)
        if attributes:
            value["attributes"] = {name: base64.b64encode(attributes[name]).decode("ascii") for name in attributes}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ApplyError(f"{path}: can't be read: {error.strerror}", kind="io") from None
    return value


def beside(root: str, path: str) -> str:
    """Where ``path`` itself is: links to its folder are followed, a link at its end isn't.  Raises HostError."""
    return os.path.join(inside(root, os.path.dirname(path)), os.path.basename(path))


def is_ours(path: str, entry: Optional[Dict[str, Any]]) -> bool:
    """Whether an older gdsdeploy, which kept no record, left this entry: it must not come back."""
    head = base64.b64decode(str((entry or {}).get("content", "")))[:400]
    return written.is_ours(path) or written.MARK.encode() in head


def _damage(place: str, error: Any) -> ApplyError:
    words = f"{place}: the record of what was here before can't be read: {error}"
    return ApplyError(words, f"look at it; without it nothing can be taken back: mv {place} {place}.damaged", "io")
