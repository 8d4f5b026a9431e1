"""SELinux: a file that was replaced has the label of its folder until restorecon looks up its own in the policy."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

from .. import derived, process
from ..errors import ApplyError, HostError
from . import written
from .host import LABELS, SELINUX, ManagedHost
from .model import writing
from .record import beside

_SECONDS = 300.0


@contextlib.contextmanager
def restore_after(host: ManagedHost) -> Iterator[None]:
    """When the block ends, :func:`restore`; after an error of the block, a failure of that is a note only.

    What an earlier run couldn't label, because it was killed or restorecon failed, is labelled with it.
    """
    if not host.check and derived.is_due(LABELS, host.root):
        host.written.update([*written.paths(host.root), *host.record.paths])
    try:
        yield
    except BaseException:
        try:
            restore(host)
        except HostError as error:
            host.notes.append(f"{error.message}: {error.hint}")
        raise
    restore(host)


def restore(host: ManagedHost) -> None:
    """Label every file and folder that this run has written; raises ApplyError where SELinux is enabled."""
    paths = sorted(path for path in host.written if os.path.lexists(beside(host.root, path)))
    host.written.clear()
    if not paths or not host.exists(SELINUX):
        return
    argv = ["restorecon", *paths]
    output = host.attempt(argv, _SECONDS)
    if output.status == process.NOT_FOUND:
        message = (
            "SELinux is enabled on this host, and restorecon is missing: files that were written need their labels"
        )
        raise ApplyError(message, f"dnf install policycoreutils, then run: {' '.join(argv)}")
    if output.status != 0:
        raise ApplyError(f"restorecon can't label what was written: {output.failure()}", f"run: {' '.join(argv)}")
    with writing(derived.PATH):
        derived.settle([LABELS], host.root, keep=False)
