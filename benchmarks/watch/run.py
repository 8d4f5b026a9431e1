"""What ``watch`` costs: a look at N processes, the service, and a read with statistics.

    sudo .venv/bin/python benchmarks/watch/run.py          # --processes N …, --rounds N, --calls N, --seconds N

Processes load a real libcufile over the stand-in libcuda, whose device memory is memory of this host.  So all I/O takes
compat mode, and nothing here says anything about GPUs.
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

from gdsdeploy.host.libcufile.counters import collect_statistics
from gdsdeploy.host.paths import WATCH_STATE
from gdsdeploy.host.watch import service
from gdsdeploy.host.watch.look import Watcher
from gdsdeploy.host.watch.service import Totals
from gdsdeploy.zipapp import hostapp
from tests.cufile import libraries
from tests.cufile.jobs import CONTAINER, Running, config, job

VERSION = "1.20.0.107"
SMALL = 4096
PAUSE = 2.0
#: Loads the library, makes a segment of statistics of one GPU as level 3 does, and waits.  A process with CUDA has a
#: hundred times as many mappings, which a look reads once in a minute.
IDLE = r"""
import ctypes, os, sys, time
ctypes.CDLL(sys.argv[1])
for _ in range(int(sys.argv[2]) - 1):
    if not os.fork():
        break
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
address = libc.shmat(libc.shmget(os.getpid(), 32256, 0o1644), None, 0)
ctypes.memmove(address, (10).to_bytes(4, "little"), 4)
ctypes.memmove(address + 908, (1).to_bytes(4, "little"), 4)
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
            process.wait()
            removed, end = 0, time.monotonic() + 20
            while removed < number and time.monotonic() < end:
                removed += collect_statistics()
                time.sleep(0.1)


def looks(number: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of CPU time for a look, and for one of the service with its file; in turn."""
    watchers, totals = (Watcher(service.PROGRAMS), Watcher(service.PROGRAMS, counters_alone=True)), Totals()
    for watcher in watchers:
        watcher.look()
    plain, whole, size = [], [], 0
    for _ in range(rounds):
        # As a service finds its machine, whose caches have something else.
        time.sleep(PAUSE)
        begin = time.process_time()
        watchers[0].look()
        plain.append(time.process_time() - begin)
        time.sleep(PAUSE)
        begin = time.process_time()
        look = watchers[1].look()
        totals.add([entry.program for entry in look.programs], time.monotonic(), {})
        totals.add_calls(look.programs, time.monotonic(), {})
        size = len(service.render(look, totals, direct=service.expects_direct()))
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


def busy(running: Running) -> float:
    """Seconds of CPU time of all threads of a program."""
    tasks = Path(f"/proc/{running.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def per_call(running: Running, number: int) -> float:
    """Microseconds of CPU time of a read of 4 KiB."""
    begin = busy(running)
    assert running.tell("read", number, SMALL) == number * SMALL
    return (busy(running) - begin) / number * 1e6


def reads(rounds: int, number: int, folder: Path) -> dict[str, Any]:
    """Of one program each: statistics off, and at level 3; in turn."""
    results: dict[str, list[float]] = {"level 0": [], "level 3": []}
    (folder / "0").mkdir()
    (folder / "3").mkdir()
    with (
        job(VERSION, folder / "0", config(0), *CONTAINER) as off,
        job(VERSION, folder / "3", config(3), *CONTAINER) as on,
    ):
        for _ in range(rounds):
            results["level 0"].append(per_call(off, number))
            results["level 3"].append(per_call(on, number))
    return {name: statistics.median(values) for name, values in results.items()}


def service_for(seconds: float, folder: Path) -> dict[str, Any]:
    """Memory and share of one CPU of the host program as gds-watch.service starts it, with its usual interval."""
    program, is_old = folder / "gdsdeploy-host.pyz", Path(WATCH_STATE).exists()
    program.write_bytes(hostapp.build())
    argv = [sys.executable, "-I", "-S", str(program), "watch", "--metrics", "--folder", str(folder)]
    with subprocess.Popen(argv) as process:
        time.sleep(5)
        task = Path(f"/proc/{process.pid}/schedstat")
        begin = int(task.read_text().split()[0])
        time.sleep(seconds)
        used = (int(task.read_text().split()[0]) - begin) / 1e9
        status = Path(f"/proc/{process.pid}/status").read_text()
        (peak,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
        process.terminate()
        process.wait()
    if not is_old:
        Path(WATCH_STATE).unlink(missing_ok=True)
    return {"percent_of_a_cpu": used / seconds * 100, "peak_mib": peak / 1024}


def main() -> None:
    """Print a line of JSON for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[10, 200, 2000])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--folder", help="where the file is read: on a disk (default: TMPDIR)")
    parser.add_argument("--seconds", type=float, default=120, help="for which the service is watched")
    arguments = parser.parse_args()
    for number in arguments.processes:
        with crowd(number):
            show(looks(number, arguments.rounds))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        show({"microseconds_per_read": reads(arguments.rounds, arguments.calls, Path(folder))})
        with crowd(50):
            show({"service_with_50_processes": service_for(arguments.seconds, Path(folder))})


def show(values: dict[str, Any]) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
