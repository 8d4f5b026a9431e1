"""Files of one root that decide an audit, and a record of those that exist and can't be read.

What doesn't exist is an answer.  What can't be read is none: the audit turns the record into a finding.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, List, TypeVar

from ..errors import HostError
from ..rootdir import inside, list_names, read_file

_Value = TypeVar("_Value")


class Inputs:
    """Reads texts and folders inside ``root``; paths are as seen from inside it."""

    def __init__(self, root: str) -> None:
        self.root = root
        #: message → hint of each file that can't be read
        self.unread: Dict[str, str] = {}

    def text(self, path: str) -> str:
        """The text of a file; empty where it doesn't exist or can't be read."""
        return self._read(path, read_file, "")

    def names(self, path: str) -> List[str]:
        """The sorted names in a folder; empty where it doesn't exist or can't be listed."""
        empty: List[str] = []
        return self._read(path, list_names, empty)

    def skip(self, error: HostError) -> None:
        """Record what the audit continues without."""
        self.unread.setdefault(error.message, error.hint)

    def skip_path(self, path: str, error: OSError) -> None:
        """Record a path of this machine that can't be read."""
        self.skip(HostError(f"{path}: cannot be read: {error.strerror or error}"))

    def _read(self, path: str, read: Callable[[str], _Value], nothing: _Value) -> _Value:
        place = inside(self.root, path)
        try:
            return read(place)
        except (FileNotFoundError, NotADirectoryError) as error:
            # A file in the place of a folder is there, and it is no folder.
            if isinstance(error, NotADirectoryError) and os.path.lexists(place):
                self.skip_path(place, error)
        except OSError as error:
            self.skip_path(place, error)
        return nothing
