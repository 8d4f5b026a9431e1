"""The audit trail: a line for each run of this program as root, which says who ran what, and how it ended.

It goes to the journal (syslog, AUTHPRIV) and to ``/var/log/gdsdeploy/audit.jsonl``, mode 0600, which root's runs only
append to.  A run that may change the host has a second line, when it begins, so that one that is killed leaves a trace.
No run fails because of the trail: ``trouble`` says why the file has no line, and the journal has it still.

Every value comes from the kernel, or is matched with a pattern.  ``claimed`` is who the controller claims to be.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import stat
import sys
import time
from functools import lru_cache
from typing import Any, Callable, Dict, Sequence

from .io import atomic
from .paths import IMAGE, TRAIL

IDENT = "gdsdeploy-audit"
VERSION = 1
#: The variable in which zipapp/bootstrap.py leaves who the controller claims to be.
CLAIM = "GDSDEPLOY_CONTROLLER"
#: Bytes of the file that evidence has where it is requested.
TAIL = 16 * 1024
#: What other services ask each minute; they log the answers themselves.
PASSED_OVER = ("gate npd", "gate slurm-health")
#: Verbs that change nothing lasting: they have no line when they begin.
READING = (
    "hello", "evidence", "facts", "validate", "explain", "doctor", "topology", "watch", "packages", "gdscheck",
    "odirect", "proof", "rdma", "load", "serve", "gate show", "guard status", "kmod audit", "pins", "rollout status",
)  # fmt: skip
#: Login names, also of directories (``SITE\\ann``), with a host behind them; ids and digests.
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@\\-]{0,127}\$?")
_ADDRESS = re.compile(r"[0-9A-Fa-f:.]{2,45}")
_DIGEST = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
_WORD = re.compile(r"[a-z][a-z0-9-]{0,31}")
#: What stands for a value that doesn't match.
_ODD = "?"
#: loginuid of a process that no login started.
_UNSET = 2**32 - 1

_noted: Dict[str, Any] = {}
_trouble = ""


def note(
    *,
    verb: str = "",
    desired: bytes = b"",
    lock: str = "",
    serial: int = 0,
    resources: Sequence[str] = (),
    claimed: str = "",
) -> None:
    """Add to the line of this run.

    verb: that a request names.  desired: the text of the desired state or expectation, of which the line has the
    digest.  lock: its digest; serial: its place among the fleet's locks.  resources: names.  claimed: who the
    controller claims to be.
    """
    known = {
        "verb": verb,
        "desired": hashlib.sha256(desired).hexdigest() if desired else "",
        "lock": _matching(_DIGEST, lock),
        "serial": serial if 0 < serial < 1 << 63 else 0,
        "resources": [_matching(_WORD, name.partition(".")[0]) for name in resources[:40]],
        "claimed": _matching(_NAME, claimed),
    }
    _noted.update({key: value for key, value in known.items() if value})


def trouble() -> str:
    """Why the file has no line of this run; empty: it has one, or this run isn't root's."""
    return _trouble


def record(words: Sequence[str], run: Callable[[], int]) -> int:
    """Run a command with the arguments ``words``, and leave its line if this is root.  Returns its exit status."""
    claim = os.environ.pop(CLAIM, "")
    verb = verb_of(words)
    # The trail of a root folder is that of the machine that works in it.
    if os.geteuid() != 0 or verb in PASSED_OVER or os.path.exists(IMAGE):
        return run()
    _noted.clear()
    line = {"version": VERSION, "start": _now(), "pid": os.getpid(), "verb": verb, **_who(), "program": program()}
    line["claimed"] = _matching(_NAME, claim)
    _unlimit()
    begins = verb not in READING and "--check" not in words
    _append({**line, "result": "began"} if begins else None)
    result: Any = 0
    try:
        result = run()
        return int(result)
    except SystemExit as ending:
        result = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
        raise
    except BaseException as error:
        result = type(error).__name__
        raise
    finally:
        _append({**line, **_noted, "result": result, "end": _now()})


def verb_of(words: Sequence[str]) -> str:
    """The verb and what it is applied to, up to the first option: ``gate run``, ``apply cufile``."""
    return " ".join(itertools.takewhile(_WORD.fullmatch, words[:2])) or _ODD


def tail() -> str:
    """The last lines of the file, of at most 16 KiB.  Raises OSError, also for what isn't a file."""
    descriptor = os.open(TRAIL, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it isn't a file", TRAIL)
        begin = max(0, status.st_size - TAIL)
        text = os.pread(descriptor, TAIL, begin).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
    return text.partition("\n")[2] if begin else text


def archive(loader: Any = None) -> str:
    """The file of the zipapp that runs: the one that Python reads, or the one beside what was unpacked; empty: none."""
    name = getattr(loader or sys.modules[__name__].__loader__, "archive", "")
    beside = os.path.join(os.path.abspath(__file__).partition("/gdsdeploy/host/")[0], "program.pyz")
    return name or (beside if os.path.isfile(beside) else "")


@lru_cache(maxsize=1)
def program() -> str:
    """The SHA-256 of the zipapp that runs; empty outside of one."""
    try:
        with open(archive(), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _who() -> Dict[str, Any]:
    """Who has this process run: the login by the kernel, who called sudo, and where an SSH session comes from."""
    uid = _login_uid()
    return {
        "loginuid": uid,
        "login": _login_name(uid),
        "sudo": _matching(_NAME, os.environ.get("SUDO_USER", "")),
        "from": _matching(_ADDRESS, os.environ.get("SSH_CONNECTION", "").partition(" ")[0]),
    }


def _login_uid() -> int:
    """The id by which the login came; -1: no login has started this process."""
    try:
        with open("/proc/self/loginuid", encoding="ascii") as file:
            uid = int(file.read(16))
    except (OSError, ValueError):
        return -1
    return -1 if uid == _UNSET else uid


def _login_name(uid: int) -> str:
    if uid < 0:
        return ""
    import pwd

    try:
        return _matching(_NAME, pwd.getpwuid(uid).pw_name)
    except (KeyError, OSError):
        return ""


def _matching(pattern: Any, text: str) -> str:
    return text if not text or pattern.fullmatch(text) else _ODD


def _now() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"


def _unlimit() -> None:
    """A caller of sudo may have limited the size of files that its programs write."""
    import resource

    size, most = resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    # In a container, root may not be allowed to raise what is the most.
    for limit in (most, resource.RLIM_INFINITY):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(size, (limit, limit))


def _append(line: Any) -> None:
    """Write a line to the journal and to the file; None: only look whether the file can be written."""
    global _trouble
    text = json.dumps(line, sort_keys=True) if line else ""
    if line:
        import syslog

        syslog.openlog(IDENT, 0, syslog.LOG_AUTHPRIV)
        syslog.syslog(syslog.LOG_NOTICE, text)
    try:
        descriptor = atomic.open_descriptor(TRAIL, os.O_WRONLY | os.O_APPEND)
        try:
            if line:
                os.write(descriptor, text.encode() + b"\n")
            elif os.fstatvfs(descriptor).f_bfree == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), TRAIL)
        finally:
            os.close(descriptor)
    except OSError as error:
        if not _trouble:
            _trouble = f"{TRAIL} can't be written: {error.strerror}"
            with contextlib.suppress(OSError, ValueError):
                print(f"gdsdeploy-host: {_trouble}", file=sys.stderr)
