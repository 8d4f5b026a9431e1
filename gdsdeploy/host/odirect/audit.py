"""The audit of one folder as a JSON object, made in its own process and within a time limit.

The object: ``folder``, ``seconds`` and either ``error`` (why nothing could be tried) or

    trials      name → {"result": see trials.py, "pages": used pages of the cache, "error": an errno's name}
    instrument  the call that showed the page cache; null: none works there
    kept        how the scratch file was kept from staying behind
    alignment   {"memory", "offset", "read"} in bytes from the kernel (statx), null where it reports none
    flags       inode flags of a new file there, as in linux/fs.h; null where the filesystem shows none
"""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import asdict, is_dataclass
from typing import Any, Callable, Dict

from ..io.reading import flags_of
from ..process import TIMED_OUT, apart
from . import trials
from .trials import Desk, NoDirectError, direct_alignment

#: The default of seconds for one mount: a slow disk writes its journal some thirty times.
SECONDS = 10.0
#: Name of an errno → its meaning for a file on a mount.
WORDS = {
    "EROFS": "it is mounted read-only",
    "ENOSPC": "it is full",
    "EDQUOT": "the quota there is used up",
    "EACCES": "only a user with write permission there can try it",
    "EPERM": "only a user with write permission there can try it",
    "ENOENT": "no file can be made there",
    "ESTALE": "its server doesn't have it any more",
}


def audit(folder: str, seconds: float = SECONDS) -> Dict[str, Any]:
    """Try direct I/O in ``folder`` for at most ``seconds``; the module describes the result.  Never raises OSError."""
    begin = time.monotonic()
    result = in_process(lambda: _audit(folder), folder, seconds, "the trial")
    return {"folder": folder, "seconds": round(time.monotonic() - begin, 3), **result}


def in_process(work: Callable[[], Dict[str, Any]], folder: str, seconds: float, what: str) -> Dict[str, Any]:
    """The result of ``work`` in its own process, or {"error": why it has none}.  ``what``: its name in that error."""

    def run() -> str:
        try:
            if not os.path.isdir(folder):
                return json.dumps(
                    {"error": "it isn't a folder" if os.path.exists(folder) else "there is no such folder"}
                )
            return json.dumps(work())
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error))
            return json.dumps({"error": f"{WORDS[name]} ({name})" if name in WORDS else name})

    output = apart(run, seconds)
    if output.status == TIMED_OUT:
        return {"error": f"it did not answer within {seconds:g} s"}
    if output.status != 0:
        return {"error": f"{what} ended early: {output.stderr.strip() or output.status}"}
    result: Dict[str, Any] = json.loads(output.stdout)
    return result


def _audit(folder: str) -> Dict[str, Any]:
    result: Dict[str, Any] = {}

    def inspect(desk: Desk) -> None:
        # Once: the second, tiny file has nothing new.
        if not result:
            result["kept"] = desk.naming
            result["instrument"] = desk.cache.instrument if desk.cache else None
            result["alignment"] = _optional(direct_alignment, desk.direct)
            result["flags"] = _optional(flags_of, desk.plain)

    try:
        result["trials"] = trials.run(folder, inspect)
    except NoDirectError as error:
        return {"trials": {"open": {"result": trials.REFUSED, "error": str(error)}}}
    return result


def _optional(read: Callable[[int], Any], descriptor: int) -> Any:
    """The JSON value that ``read`` returns; None where the system can't tell."""
    try:
        value = read(descriptor)
    except OSError:
        return None
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
