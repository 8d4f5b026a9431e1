"""What ``watch`` costs: a look at N processes, the service for a minute, a call with a probe, and statistics at level 3.

    sudo .venv/bin/python benchmarks/watch/run.py          # --processes N …, --rounds N, --json FILE

Processes load the real libcufile of a release (Debian's, or a wheel's, as the tests fetch it) over the stand-in libcuda,
whose device memory is memory of this host.  So all I/O takes compat mode, and nothing here says anything about GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from gdsdeploy.host.watch import metrics, service
from gdsdeploy.host.watch.bpf import Counting
from gdsdeploy.host.watch.look import Watcher
from gdsdeploy.host.watch.probe import _attach
from gdsdeploy.host.watch.totals import Totals
from tests.cufile import libraries
from tests.cufile.jobs import CONTAINER, Running, config, job

VERSION = "1.20.0.107"
SMALL = 4096
#: Loads the library and waits; a process with CUDA is a hundred times as large, which a look doesn't read.
IDLE = r"""
import ctypes, os, sys, time
ctypes.CDLL(sys.argv[1])
for _ in range(int(sys.argv[2]) - 1):
    if not os.fork():
        break
os.write(1, b"ready\n")
time.sleep(3600)
"""


@contextlib.contextmanager
def crowd(number: int) -> Iterator[None]:
    """So many processes that have loaded libcufile."""
    library = str(libraries.library(VERSION).path)
    argv = [sys.executable, "-c", IDLE, library, str(number)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout is not None
        try:
            for _ in range(number):
                assert process.stdout.readline() == "ready\n"
            yield
        finally:
            os.killpg(process.pid, 9)


def looks(number: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of CPU time for a look, and for a look of the service with its file."""
    watcher, totals = Watcher(), Totals()
    watcher.look()
    plain, whole, size = [], [], 0
    for _ in range(rounds):
        begin = time.process_time()
        look = watcher.look()
        plain.append(time.process_time() - begin)
        totals.add([entry.program for entry in look.programs], time.monotonic())
        size = len(metrics.render(look, totals, {}, direct=service.expects_direct()))
        json.dumps(totals.as_record())
        whole.append(time.process_time() - begin)
        listed = len(look.programs)
    return {
        "processes": number,
        "listed": listed,
        "look_ms": statistics.median(plain) * 1e3,
        "service_ms": statistics.median(whole) * 1e3,
        "metrics_bytes": size,
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, nargs="+", default=[10, 50, 200, 2000])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    for number in arguments.processes:
        with crowd(number):
            print(json.dumps(looks(number, arguments.rounds)))


if __name__ == "__main__":
    main()
