"""One process writes a journal at a time: the lock beside it, which says who has it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from gdsdeploy.errors import Busy


def place(journal: Path) -> Path:
    """Where the lock of the journal ``journal`` is."""
    return journal.with_name(journal.name + ".lock")


@contextlib.contextmanager
def held(journal: Path, *, doing: str) -> Iterator[None]:
    """Be the one process that may write ``journal``; raises Busy, which says who is, or OSError.

    The kernel lets go of the lock when a process ends, however it ends, and over NFS it holds on all machines.  The
    file stays: whoever removed it would let two in.
    """
    handle = os.open(place(journal), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(journal, os.pread(handle, 4096, 0)) from None
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "doing": doing}
        os.ftruncate(handle, 0)
        # A disk that is full may keep this from being said, but nobody from being refused.
        with contextlib.suppress(OSError):
            os.pwrite(handle, json.dumps(who).encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _busy(journal: Path, said: bytes) -> Busy:
    hint = "Watch it with: gdsdeploy rollout status --watch; have it pause with: gdsdeploy rollout pause"
    try:
        who = json.loads(said)
        text = f"process {who['pid']} on {who['host']} ({who['doing']}, since {who['since']})"
    except (ValueError, KeyError, TypeError):
        text = "another process"  # it has the lock, and has not said yet who it is
    return Busy(f"{journal}: {text} works on a rollout of this fleet", hint=hint)
