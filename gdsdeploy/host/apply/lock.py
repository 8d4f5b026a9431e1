"""Keeps two runs from changing the same host at once.

``/run/gdsdeploy/apply.lock`` is locked with flock(2) while the program works.  A run that consists of several calls
names itself with ``--run``: between its calls the file keeps the run's name, and other runs are refused until it is
released, or until the run has made no call for ``LEASE`` seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import time
from typing import Any, Dict, Iterator

from ..errors import ApplyError, BusyError
from ..io import atomic

PATH = "/run/gdsdeploy/apply.lock"
#: Seconds for which a run of several calls keeps the host between two of them.
LEASE = 600.0


@contextlib.contextmanager
def hold(run: str = "", who: str = "", path: str = PATH) -> Iterator[None]:
    """Hold the lock while the block runs; raises BusyError with the name of the holder, ApplyError.

    run: the id of a run of several calls, which keeps the host afterwards; empty: this call alone.
    """
    with _locked(path) as fd:
        now, holder = time.time(), _read(fd)
        if holder.get("run") and holder.get("run") != run and _is_leased(holder, now):
            raise _busy(holder)
        since = holder.get("since") if run and holder.get("run") == run else now
        entry = {"run": run, "who": who or _user(), "since": since, "pid": os.getpid(), "until": 0.0}
        _write(fd, entry)
        try:
            yield
        finally:
            _write(fd, {**entry, "until": time.time() + LEASE} if run else {})


def release(run: str, path: str = PATH) -> bool:
    """End the lease of ``run``; whether it held the host.  Raises BusyError while one of its calls works."""
    with _locked(path) as fd:
        ours = _read(fd).get("run") == run
        if ours:
            _write(fd, {})
        return ours


def holder(path: str = PATH) -> Dict[str, Any]:
    """``{"run", "who", "works"}`` of the run that reserves this host; empty texts: none does.  works: a call works now.

    Takes no lock and makes no file.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            entry = _read(file.fileno())
    except OSError:
        return {"run": "", "who": "", "works": False}
    # Without an end it works now, or was killed.
    works = bool(entry) and not entry.get("until") and os.path.isdir(f"/proc/{entry.get('pid')}")
    is_reserved = works or (bool(entry.get("run")) and _is_leased(entry, time.time()))
    return {**{key: str(entry.get(key) or "") if is_reserved else "" for key in ("run", "who")}, "works": works}


@contextlib.contextmanager
def _locked(path: str) -> Iterator[int]:
    """The file, locked; raises BusyError with the name of the holder, ApplyError."""
    try:
        fd = atomic.open_descriptor(path)
    except OSError as error:
        raise ApplyError(f"{path}: {error.strerror}", "run it as root", "io") from None
    try:
        holder = _read(fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _busy(holder) from None
        yield fd
    finally:
        os.close(fd)


def _is_leased(holder: Dict[str, Any], now: float) -> bool:
    # A lease that ends later than any can was written before the clock was set back.
    return now < float(holder.get("until") or 0) <= now + LEASE


def _read(fd: int) -> Dict[str, Any]:
    with contextlib.suppress(ValueError):
        value = json.loads(os.pread(fd, 4096, 0).decode("utf-8") or "{}")
        if isinstance(value, dict) and isinstance(value.get("until", 0.0), (int, float)):
            return value
    return {}


def _write(fd: int, value: Dict[str, Any]) -> None:
    data = json.dumps(value).encode() if value else b""
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)


def _busy(holder: Dict[str, Any]) -> BusyError:
    who, since = str(holder.get("who") or "another process"), holder.get("since")
    started = time.strftime("%H:%M:%S", time.localtime(since)) if isinstance(since, (int, float)) else "a moment ago"
    hint, until = "Wait until it ends, and run this again", holder.get("until")
    if isinstance(until, (int, float)) and until > time.time():
        hint += f"; if it was killed, the host is free at {time.strftime('%H:%M:%S', time.localtime(until))}"
    return BusyError(f"{who} is changing this host since {started}", hint)


def _user() -> str:
    name = os.environ.get("SUDO_USER") or ""
    try:
        return name or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
