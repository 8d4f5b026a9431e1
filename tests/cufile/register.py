"""The program that registers a file on each of several filesystems with one libcufile; started by a test.

It runs in a private mount namespace with what ask.py shows there, except nvidia-fs: files then take compat mode.  Its
argument is ``{library, standin, work, folders: {name: folder}}``.  It prints ``{name: [error of cuFileDriverOpen, error
of cuFileHandleRegister]}``, with null for a call that wasn't made or didn't return.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

from tests.cufile import ask

#: Seconds for one file.
TIMEOUT = 10
_SIZE = 8192


class _Description(ctypes.Structure):
    """CUfileDescr_t; of its union only the file descriptor is used."""

    _fields_ = (("type", ctypes.c_int), ("fd", ctypes.c_ssize_t), ("operations", ctypes.c_void_p))


def show_without_nvidia_fs(work: Path) -> None:
    """Change what this namespace shows: the driver alone."""
    ask._PROC = {path: text for path, text in ask._PROC.items() if "nvidia-fs" not in path}
    ask._PROC["modules"] = "nvidia 14376960 0 - Live 0x0\n"
    ask._DEV = {}
    ask._mount("tests", work, "tmpfs", 0)
    os.chdir(work)
    ask._show(work, standin=True)


def main() -> None:
    request = json.loads(sys.argv[1])
    work = Path(request["work"])
    show_without_nvidia_fs(work)
    results = {}
    for name, folder in request["folders"].items():
        (work / name).mkdir()
        pid = os.fork()
        if pid == 0:
            _register(request, work, work / name, Path(folder))
        os.waitpid(pid, 0)
        answer = work / name / "answer"
        results[name] = json.loads(answer.read_text()) if answer.exists() else [None, None]
    sys.stdout.write(json.dumps(results))


def _register(request: dict[str, str], work: Path, folder: Path, where: Path) -> None:
    """Runs in a child of its own: some releases don't return."""
    signal.alarm(TIMEOUT)
    os.chdir(folder)
    # The library reopens the file below the number of its process, which came after the links of /proc.
    number = str(os.getpid())
    Path("/proc", number).symlink_to(work / "proc" / number)
    Path("cufile.json").write_text(json.dumps({"logging": {"dir": str(folder)}}))
    output = os.open("output", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    library = ask._load(request["library"], request["standin"])
    library.cuFileHandleRegister.restype = ask._Result
    errors = [library.cuFileDriverOpen().error, None]
    if errors[0] == 0:
        path = where / "file"
        path.write_bytes(bytes(_SIZE))
        descriptor = -1
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
        if descriptor < 0:
            descriptor = os.open(path, os.O_RDWR)
        handle, description = ctypes.c_void_p(), _Description(1, descriptor, None)
        errors[1] = library.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(description)).error
    Path("answer").write_text(json.dumps(errors))
    os._exit(0)


if __name__ == "__main__":
    main()
