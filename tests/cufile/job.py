"""A program that reads and writes through one real libcufile, as it is told on standard input; jobs.py starts it.

It runs in a mount namespace where no nvidia-fs is loaded, and the stand-in libcuda has memory (memory.c): its I/O takes
compat mode.  Its argument is ``{library, standin, work, data, config}``: ``data`` is a folder on a disk.  Each line of
input is a JSON list: ``["read", calls, size]``, ``["write", calls, size]``, ``["host", calls, size]`` (a read into the
memory of the host), each perhaps with an offset in the file as its last word, ``["level", n]`` (cuFileSetStatsLevel and
cuFileStatsStart), ``["close"]``, ``["exit"]``.
Each answer is a line of JSON: the process id first, then the bytes that each command moved.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.cufile import ask
from tests.cufile.register import _Description, show_without_nvidia_fs

SIZE = 4 << 20


def show(work: Path, data: Path, config: str) -> None:
    """Change what this namespace shows: a driver without nvidia-fs, udev's record of the disk, the configuration."""
    show_without_nvidia_fs(work)
    Path("/proc", str(os.getpid())).symlink_to(work / "proc" / str(os.getpid()))
    Path("/etc/cufile.json").unlink()
    Path("/etc/cufile.json").write_text(config)
    Path("/run/udev").mkdir(exist_ok=True)
    ask._mount("tests", Path("/run/udev"), "tmpfs", 0)
    Path("/run/udev/data").mkdir()
    device = data.stat().st_dev
    record = Path(f"/run/udev/data/b{os.major(device)}:{os.minor(device)}")
    record.write_text("E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4\n")


class Job:
    """One open file, and memory of the stand-in GPU and of the host."""

    def __init__(self, request: dict[str, str]) -> None:
        self.library = ask._load(request["library"], request["standin"])
        cuda = ctypes.CDLL(request["standin"])
        for call in (self.library.cuFileHandleRegister, self.library.cuFileSetStatsLevel if self.has_levels else None):
            if call is not None:
                call.restype = ask._Result
        self.library.cuFileRead.restype = self.library.cuFileWrite.restype = ctypes.c_ssize_t
        context = ctypes.c_void_p()
        cuda.cuInit(0)
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        cuda.cuCtxSetCurrent(context)
        self.gpu, self.host = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.cuMemAlloc_v2(ctypes.byref(self.gpu), ctypes.c_size_t(SIZE))
        cuda.cuMemAllocHost_v2(ctypes.byref(self.host), ctypes.c_size_t(SIZE))
        self.opened = self.library.cuFileDriverOpen().error
        path = Path(request["data"]) / "file"
        if not path.exists():
            path.write_bytes(bytes(SIZE))
        self.descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.handle = ctypes.c_void_p()
        description = _Description(1, self.descriptor, None)
        self.registered = self.library.cuFileHandleRegister(ctypes.byref(self.handle), ctypes.byref(description)).error

    @property
    def has_levels(self) -> bool:
        return hasattr(self.library, "cuFileSetStatsLevel")

    def do(self, what: str, *words: int) -> Any:
        if what in ("read", "write", "host"):
            calls, size, *offset = words
            place = ctypes.c_longlong(*offset)
            call = self.library.cuFileWrite if what == "write" else self.library.cuFileRead
            memory = self.host if what == "host" else self.gpu
            return sum(
                call(self.handle, memory, ctypes.c_size_t(size), place, ctypes.c_longlong(0)) for _ in range(calls)
            )
        if what == "level":
            return [self.library.cuFileSetStatsLevel(words[0]).error, self.library.cuFileStatsStart()]
        if what == "close":
            return self.library.cuFileDriverClose()
        sys.exit(0)


def main() -> None:
    request = json.loads(sys.argv[1])
    data = Path(request["data"])
    show(Path(request["work"]), data, request["config"])
    # The library writes to standard output, too.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = Job(request)
    output.write(json.dumps([os.getpid(), job.opened, job.registered]) + "\n")
    output.flush()
    for line in sys.stdin:
        output.write(json.dumps(job.do(*json.loads(line))) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
