"""The lock beside a journal, which one process holds to write, and which names that process."""

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


def lock_path(journal: Path) -> Path:
    """The lock file of ``journal``."""
    return journal.with_name(journal.name + ".lock")


@contextlib.contextmanager
def lock_journal(journal: Path, *, doing: str) -> Iterator[None]:
    """Be the one process that may write ``journal``; raises Busy that names another one, or OSError.

    The kernel releases the lock at the end of the process; over NFS the lock holds on all machines.  The file stays,
    because a new file would admit a second process.
    """
    handle = os.open(lock_path(journal), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy_error(journal, os.pread(handle, 4096, 0)) from None
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "doing": doing}
        os.ftruncate(handle, 0)
        # On a full disk the lock works without a name.
        with contextlib.suppress(OSError):
            os.pwrite(handle, json.dumps(who).encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _busy_error(journal: Path, content: bytes) -> Busy:
    hint = "Watch it with: gdsdeploy rollout status --watch; have it pause with: gdsdeploy rollout pause"
    try:
        who = json.loads(content)
        text = f"process {who['pid']} on {who['host']} ({who['doing']}, since {who['since']})"
    except (ValueError, KeyError, TypeError):
        text = "another process"  # it hasn't written its name yet
    return Busy(f"{journal}: {text} works on a rollout of this fleet", hint=hint)
