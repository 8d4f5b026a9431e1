"""``watch``: which processes of this host do I/O through cuFile, and which way it takes."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from ..errors import UsageError
from ..io import streams
from ..io.wording import joined
from ..libcufile.counters import collect_statistics
from ..subjects.processes import JOB_NAME
from ..watch.document import VERSION, document, lines, total
from ..watch.look import Watcher
from .parsers import PROGRAM, matching, number, option

#: Seconds between two looks: usual, least, most.
EVERY, LEAST, MOST = 2.0, 0.2, 3600.0
METRICS_EVERY = 30.0


#: Of ``--every`` and ``--job``.
interval = number(lambda seconds: LEAST <= seconds <= MOST, f"a number of seconds from {LEAST:g} to {MOST:g}")
job = matching(JOB_NAME, "isn't a Slurm job, such as 12, 12_3 (of an array) or 12+1")


@PROGRAM.command(
    "watch",
    "show which processes do I/O through cuFile, and whether it takes a direct path or bounces through CPU memory",
    option("--once", action="store_true", help="end after one interval, instead of going on"),
    option(
        "--collect",
        action="store_true",
        help="instead, remove the shared memory that programs with cuFile have left when they ended",
    ),
    option(
        "--metrics",
        action="store_true",
        help="instead, write counters for node_exporter's textfile collector until it ends, as gds-watch.service does",
    ),
    option(
        "--folder",
        default="",
        metavar="DIR",
        help="--metrics: folder of the collector (default: the usual ones that are there)",
    ),
    option("--job", type=job, metavar="JOB", help="only processes of this Slurm job: 12, 12_3, 12+1"),
    option(
        "--every",
        type=interval,
        metavar="N",
        help=f"seconds of an interval ({EVERY:g}; --metrics: {METRICS_EVERY:g})",
    ),
)
def command(arguments: argparse.Namespace) -> int:
    """Print what each interval shows: as one line of JSON, or as a table; 0 always."""
    if arguments.metrics:
        return _metrics(arguments)
    if arguments.collect:
        number = _collected()
        print(json.dumps({"version": VERSION, "removed": number}) if arguments.json else f"removed {number}")
        return 0
    watcher = Watcher()
    watcher.look()
    while True:
        time.sleep(arguments.every or EVERY)
        _print(document(watcher.look(), arguments.job), arguments.json, last=arguments.once)
        if arguments.once or streams.lost():
            return 0


def _print(answer: Any, as_json: bool, *, last: bool) -> None:
    """Print what a look found."""
    if as_json:
        print(json.dumps(answer, sort_keys=True), flush=True)
    else:
        rows = answer["processes"]
        heading = [f"{answer['at']}: {total(rows)}"]
        missing = [f"processes may be missing: {answer['incomplete']}"] if answer["incomplete"] else []
        text = [*heading, *lines([("", row) for row in rows]), *missing]
        print(joined(text if last else [*text, ""]), flush=True)


def _metrics(arguments: argparse.Namespace) -> int:
    from ..watch import service

    try:
        service.run(arguments.folder, arguments.every or METRICS_EVERY)
    except OSError as error:
        where = arguments.folder or "the usual folders"
        raise UsageError(f"metrics can't be written to {where}: {error.strerror}") from None
    return 0


def _collected() -> int:
    try:
        return collect_statistics()
    except OSError as error:
        raise UsageError(f"shared memory can't be removed: {error.strerror}; run this as root") from None
