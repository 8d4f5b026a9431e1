"""What a look at many processes costs: 10,000 in a folder like /proc, some of them with a GPU and open data files.

    .venv/bin/python benchmarks/watch/many.py               # --processes N, --gpus N, --rounds N, --over FOLDER

``--over``: a folder with another version of the package, which is measured in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

#: Mappings and data files of a process with a GPU, and mappings of any other.
LARGE, FILES, SMALL = 4000, 20, 60
MAPPING = "7f{:08x}000-7f{:08x}fff r--p 00000000 08:01 77                         {}\n"
MOUNTS = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n7 1 259:5 / /scratch rw - ext4 /dev/nvme1n1 rw\n"
#: Milliseconds of CPU time of the first look and of each later one, in an interpreter of its own.
LOOK = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
from gdsdeploy.host.evidence.recorder import Recorder
from gdsdeploy.host.subjects import processes
processes.PROC = sys.argv[2]
scan, times = processes.Scan(4096, 600.0), []
for _ in range(int(sys.argv[3])):
    begin = time.process_time()
    recorder = Recorder()
    scan.look(recorder)
    times.append((time.process_time() - begin) * 1e3)
print(json.dumps([len(recorder.document["processes"]["libcufile"]["programs"]), times]))
"""


def make(folder: Path, number: int, gpus: int) -> None:
    """So many processes, of which the first ones have a GPU."""
    for pid in range(1, number + 1):
        process = folder / str(pid)
        process.mkdir()
        # It started with the machine, so nothing may still be loading.
        (process / "stat").write_text(f"{pid} (python) S " + "0 " * 18 + "5 0\n")
        names = ["/usr/lib/libc.so.6"] * (LARGE if pid <= gpus else SMALL)
        names[-2:] = ["/dev/nvidia0", "/usr/lib/libcuda.so.1"] if pid <= gpus else names[-2:]
        (process / "maps").write_text("".join(MAPPING.format(at, at, name) for at, name in enumerate(names)))
        if pid > gpus:
            continue
        (process / "io").write_text("rchar: 1\nwchar: 1\nsyscr: 1\nsyscw: 1\nread_bytes: 1\nwrite_bytes: 1\n")
        (process / "mountinfo").write_text(MOUNTS)
        (process / "comm").write_text("python\n")
        (process / "cgroup").write_text("0::/system.slice/train.service\n")
        (process / "environ").write_text("HOME=/root\0")
        for name in ("fd", "fdinfo"):
            (process / name).mkdir()
        for descriptor in range(3, 3 + FILES):
            (process / "fd" / str(descriptor)).symlink_to(f"/scratch/{descriptor}.bin")
            (process / "fdinfo" / str(descriptor)).write_text("pos:\t0\nflags:\t0100000\nmnt_id:\t7\n")


def main() -> None:
    """Print a line of JSON for each version."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10_000)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--over", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    versions = [Path(__file__).parents[2], *arguments.over]
    first: dict[Path, list[float]] = {version: [] for version in versions}
    later: dict[Path, list[float]] = {version: [] for version in versions}
    listed: dict[Path, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), arguments.processes, arguments.gpus)
        for _ in range(arguments.rounds):
            for version in versions:
                argv = [sys.executable, "-c", LOOK, str(version), folder, "3"]
                done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=os.sep)
                listed[version], times = json.loads(done.stdout)
                first[version].append(times[0])
                later[version] += times[1:]
    for version in versions:
        row = {
            "version": str(version),
            "listed": listed[version],
            "first_ms": statistics.median(first[version]),
            "later_ms": statistics.median(later[version]),
        }
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
