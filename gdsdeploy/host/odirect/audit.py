"""The audit of one folder as a JSON object, made in a process of its own and within a time limit.

The object: ``folder``, ``seconds`` and either ``error`` (why nothing could be tried) or

    trials      name → {"result": see trials.py, "pages": of the cache that were used, "error": an errno's name}
    instrument  what looked into the page cache; null: nothing works there
    kept        what kept the scratch file from staying behind
    alignment   {"memory", "offset", "read"} in bytes as the kernel says (statx), null where it says nothing
    flags       inode flags of a new file there, as in linux/fs.h; null where the filesystem shows none
"""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import asdict
from typing import Any, Dict

from ..io.inspect import flags_of
from ..process import TIMED_OUT, apart
from . import trials
from .syscalls import direct_alignment
from .trials import Desk, NoDirectError

#: Seconds for one mount, unless the caller says otherwise: a slow disk writes its journal some thirty times.
SECONDS = 10.0
#: Name of an errno → what it means for a file on a mount.
WORDS = {
    "EROFS": "it is mounted read-only",
    "ENOSPC": "it is full",
    "EDQUOT": "the quota there is used up",
    "EACCES": "only a user who may write there can try it",
    "EPERM": "only a user who may write there can try it",
    "ENOENT": "no file can be made there",
    "ESTALE": "its server does not know it any more",
}


def audit(folder: str, seconds: float = SECONDS) -> Dict[str, Any]:
    """Try direct I/O in ``folder`` for at most ``seconds``; see the module for the answer.  Never raises OSError."""
    begin = time.monotonic()
    done = apart(lambda: json.dumps(_audit(folder)), seconds)
    if done.status == 0:
        found: Dict[str, Any] = json.loads(done.stdout)
    elif done.status == TIMED_OUT:
        found = {"error": f"it did not answer within {seconds:g} s"}
    else:
        found = {"error": f"the trial ended early: {done.stderr.strip() or done.status}"}
    return {"folder": folder, "seconds": round(time.monotonic() - begin, 3), **found}


def _audit(folder: str) -> Dict[str, Any]:
    found: Dict[str, Any] = {}

    def see(desk: Desk) -> None:
        if "kept" in found:
            # The second, tiny file says nothing new.
            return
        found["kept"] = desk.kept
        found["instrument"] = desk.cache.instrument if desk.cache else None
        found["alignment"] = _alignment(desk.direct)
        found["flags"] = _flags(desk.plain)

    try:
        if not os.path.isdir(folder):
            return {"error": "it is no folder" if os.path.exists(folder) else "there is no such folder"}
        found["trials"] = trials.run(folder, see)
    except NoDirectError as refused:
        return {"trials": {"open": {"result": trials.REFUSED, "error": str(refused)}}}
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error))
        return {"error": f"{WORDS[name]} ({name})" if name in WORDS else name}
    return found


def _alignment(descriptor: int) -> Any:
    try:
        said = direct_alignment(descriptor)
    except OSError:
        return None
    return asdict(said) if said is not None else None


def _flags(descriptor: int) -> Any:
    try:
        return flags_of(descriptor)
    except OSError:
        return None
