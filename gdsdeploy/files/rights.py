"""Files that this machine doesn't let this user use: of root, of another user, on a disk that is full or broken."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path

from gdsdeploy import paths
from gdsdeploy.errors import ControllerUnfit, lack_of_controller

#: Errors of files that exist and can't be used.
_REFUSALS = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENAMETOOLONG),
    *(errno.ENOTDIR, errno.ELOOP),
)


def refusal(error: OSError) -> ControllerUnfit | None:
    """Why this machine refuses a file, and the way out; None: the error names no file, or one that is missing."""
    if error.errno == errno.ENOENT and not Path().stat().st_nlink:
        return ControllerUnfit("the current folder was removed", hint="Change to another folder")
    if not isinstance(error.filename, str):
        return None
    if error.errno not in _REFUSALS:
        return lack_of_controller(error, f"use {error.filename}")
    path = Path(error.filename).absolute()
    # The first folder on the way that can't be entered; else what is there of the file.
    closed = next((folder for folder in reversed(path.parents) if not os.access(folder, os.X_OK)), None)
    place = closed or next(each for each in (path, *path.parents) if os.path.lexists(each))
    words, hint = f"{error.filename}: {error.strerror}", f"Look at it: ls -ld {place}"
    if isinstance(error, PermissionError) and (owner := place.stat().st_uid) != os.geteuid():
        words += f": {place} belongs to {_user(owner)}, and this is {_user(os.geteuid())}"
        hint = f"Run it as {_user(owner)}, or ask {_user(owner)} for the right to use {place}"
        folders = {"GDSDEPLOY_STATE_DIR": paths.state(), "GDSDEPLOY_CACHE_DIR": paths.cache()}
        for variable in (name for name, folder in folders.items() if path.is_relative_to(folder)):
            hint = f"Run it as {_user(owner)}, or choose another folder by {variable}"
    return ControllerUnfit(words, hint=hint)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
