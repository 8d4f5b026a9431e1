"""``watch --metrics``: looks at this host's processes until it is stopped, and writes what they did.

gds-watch.service runs it.  It writes a file for each collector of node_exporter, and removes it when it ends.  Its sums
go to a file in /run, with which the next start continues.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import Any, Optional, Tuple

from ..io import atomic, jsontext
from ..io.prometheus import folders
from ..model import expectation
from ..paths import EXPECTATION
from . import metrics
from .look import Watcher
from .owner import pods
from .totals import Totals, from_record

#: The sums; only root reads them.
STATE = "/run/gdsdeploy/watch.json"
#: Bytes of that file; with 500 owners of 8 GPUs and 500 processes it has 1 MiB.
STATE_LIMIT = 64 << 20
#: Most processes with libcufile that are counted.
PROGRAMS = 4096
_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def run(setting: str, every: float, state: str = STATE) -> None:
    """Until SIGTERM or SIGINT, or until the program on the disk is another one; raises OSError.

    setting: the folder of the collector; empty: the usual ones that are there.
    """
    program, files = _program(), [os.path.join(folder, metrics.FILE) for folder in folders(setting)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt):
        try:
            for path in [*files, state]:
                atomic.sweep(path, shared=True)
            watcher, totals = Watcher(PROGRAMS, counters_alone=True), restored(state)
            while _program() == program:
                begin = time.monotonic()
                look = watcher.look()
                totals.add([entry.program for entry in look.programs], begin)
                text = metrics.render(look, totals, pods(), direct=expects_direct())
                for path in files:
                    atomic.write(path, text, shared=True)
                atomic.write(state, json.dumps(totals.as_record()), 0o600)
                time.sleep(max(0.0, every - (time.monotonic() - begin)))
        finally:
            for path in files:
                atomic.remove(path)


def _program() -> Optional[Tuple[int, int]]:
    """Which program this is on the disk; systemd starts the unit again where another one was installed."""
    try:
        status = os.stat(sys.argv[0])
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def restored(path: str = STATE) -> Totals:
    """The sums of a file; new ones where it isn't there or can't be used."""
    try:
        return from_record(_record(path))
    except (OSError, *_DAMAGED):
        return Totals()


def _record(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        return jsontext.loads(file.read(STATE_LIMIT), limit=STATE_LIMIT)


def expects_direct() -> Optional[bool]:
    """Whether the lock expects a direct path on this host; None: it has no expectation."""
    try:
        with open(EXPECTATION, encoding="utf-8") as file:
            return expectation.from_json(file.read()).mode != "compat"
    except (OSError, ValueError):
        return None
