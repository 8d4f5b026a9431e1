"""Check whether the installed libcufile accepts its configuration.

A child calls ``cuFileDriverOpen`` with the real configuration.  Where its log lists the configuration that is in force,
the library has accepted it.  Elsewhere a second child ("control") has a broken overlay: only if the library refuses the
control has it read a configuration, and only then does silence about the first mean acceptance.

It works without a GPU: 1.4.0 to 1.20.0 read their configuration before they look for CUDA (tests/evidence/cufile-open).
Then 1.4.0 to 1.15.1 return an error, and 1.16 to 1.20 open for host memory only, or hang without /proc/modules.
"""

from __future__ import annotations

import glob
import os
import re
import tempfile
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ..paths import CUFILE, CUFILE_CONTROL, CUFILE_OPEN, CUFILE_SONAME
from ..process import PYTHON, is_roots

#: Seconds for one child; with a GPU, cuInit alone can take several.
TIMEOUT = 20.0
LOG_LIMIT = 64 * 1024
#: GPUs that it doesn't name don't exist for CUDA (CUDA C++ Programming Guide: CUDA Environment Variables).
HIDING = "CUDA_VISIBLE_DEVICES"
#: Unclosed: every release refuses it.
BROKEN = '{"properties": {\n'
#: The SONAME, which the loader resolves, then where NVIDIA's packages put it.
LIBRARIES = (CUFILE_SONAME, "/usr/local/cuda*/lib64/libcufile.so.0", "/usr/local/cuda*/targets/*/lib/libcufile.so.0")

#: A separate program: the library may hang, spin or abort, and writes to C's own streams.
CHILD = r"""
import ctypes, os, sys

class Error(ctypes.Structure):
    _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]

libc = ctypes.CDLL(None)
# CLONE_NEWIPC: the shared memory of its statistics ends with this process, whatever becomes of it.
libc.unshare(0x08000000)
for stream in ("stdout", "stderr"):
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, stream), None, 2, 0)
library, reasons = None, []
for name in sys.argv[1:]:
    try:
        library = ctypes.CDLL(name)
        break
    except OSError as reason:
        reasons.append(str(reason))
if library is None:
    print("gdsdeploy: not loaded: " + "; ".join(reasons))
    sys.exit(3)
with open("/proc/self/maps") as maps:
    paths = {line.split(None, 5)[5].strip() for line in maps if "/libcufile.so" in line or "/libcuda.so" in line}
print("gdsdeploy: loaded " + " ".join(sorted(paths)), flush=True)
try:
    call = library.cuFileDriverOpen
except AttributeError:
    print("gdsdeploy: no cuFileDriverOpen in it", flush=True)
    sys.exit(3)
call.restype = Error
result = call()
libc.fflush(None)
print("gdsdeploy: cuFileDriverOpen returned err={} cu_err={}".format(result.err, result.cu_err), flush=True)
os._exit(0)
"""


_LOADED = re.compile(r"gdsdeploy: loaded (.*)")
_PROBLEM = re.compile(r"gdsdeploy: (not loaded: .*|no cuFileDriverOpen.*)")
_RETURNED = re.compile(r"gdsdeploy: cuFileDriverOpen returned err=(-?\d{1,18}) cu_err=(-?\d{1,18})")


class Said(NamedTuple):
    """What a child prints about the library that it was to open."""

    loaded: bool
    #: its file; empty: its name isn't one of libcufile
    library: str
    #: why it couldn't be used; empty where it could
    problem: str
    #: CUfileOpError and CUresult of cuFileDriverOpen; None: it didn't return
    error: Optional[int]
    cuda_error: Optional[int]


def said(output: str) -> Said:
    """What a child has printed on its standard output."""
    loaded, problem, result = (pattern.search(output) for pattern in (_LOADED, _PROBLEM, _RETURNED))
    library = next((path for path in loaded[1].split() if "/libcufile" in path), "") if loaded else ""
    error, cuda_error = map(int, result.groups()) if result else (None, None)
    return Said(loaded is not None, library, problem[1] if problem else "", error, cuda_error)


#: A line of the configuration in force, with which a library of any release ends the log of its start.
_LISTED = re.compile(r"\] INFO .* properties\.use_compat_mode : ")


def lists_configuration(log: str) -> bool:
    """Whether the library got as far as listing the configuration that it uses."""
    return _LISTED.search(log) is not None


def probe(command: Callable[..., Any], commands: Dict[str, Any], config: str) -> None:
    """Run the children through ``command`` (Recorder.command) and add the library's log to each of ``commands``."""
    with tempfile.TemporaryDirectory(prefix="cufile-") as folder:
        broken = os.path.join(folder, "broken.json")
        with open(broken, "w") as file:
            file.write(BROKEN)
        for name, overlay in ((CUFILE_OPEN, "" if config == CUFILE else config), (CUFILE_CONTROL, broken)):
            work = os.path.join(folder, name)
            os.mkdir(work)
            log = os.path.join(work, "cufile.log")
            command(name, child(libraries(), log, overlay), timeout=TIMEOUT, cwd=work)
            commands[name]["log"] = tail(log, LOG_LIMIT)
            if lists_configuration(commands[name]["log"]):
                return


def libraries() -> List[str]:
    """Names and paths of libcufile in the order in which they are tried; only those that only root can replace."""
    paths = (path for pattern in LIBRARIES for path in (sorted(glob.glob(pattern)) if "*" in pattern else [pattern]))
    return [path for path in paths if "/" not in path or is_roots(path)]


def is_anywhere(listed: str) -> bool:
    """Whether a child could find a libcufile; ``listed`` is what ``ldconfig -p`` lists.

    The loader looks in its cache, in its own folders, and where LD_LIBRARY_PATH says (ld.so(8)).
    """
    folders = ("/lib*/", "/lib*/*/", "/usr/lib*/", "/usr/lib*/*/")
    patterns = (*LIBRARIES[1:], *(folder + CUFILE_SONAME for folder in folders))
    return CUFILE_SONAME in listed or "LD_LIBRARY_PATH" in os.environ or any(map(glob.glob, patterns))


def unsafe_libraries() -> List[str]:
    """Files of libcufile that :func:`libraries` leaves out."""
    return [path for pattern in LIBRARIES for path in sorted(glob.glob(pattern)) if not is_roots(path)]


def child(names: List[str], log: str, overlay: str = "") -> List[str]:
    """The command that opens the first of ``names`` that loads, logs into a file, and prints what came of it."""
    argv = [*without_cufile(), "CUFILE_LOGFILE_PATH=" + log, "CUFILE_LOGGING_LEVEL=INFO"]
    if overlay:
        argv.append("CUFILE_ENV_PATH_JSON=" + overlay)
    return [*argv, *PYTHON, "-c", CHILD, *names]


def without_cufile() -> List[str]:
    """env(1) without the caller's variables that override the files (CUFILE_…), or that hide GPUs."""
    names = [name for name in sorted(os.environ) if name.startswith("CUFILE_") or name == HIDING]
    return ["env", *(word for name in names for word in ("-u", name))]


def tail(path: str, limit: int) -> str:
    """The last ``limit`` bytes of a log, from the beginning of a line; empty if there is none."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            data = file.read(limit)
    except OSError:
        return ""
    if size > limit:
        data = data.partition(b"\n")[2]
    return data.decode("utf-8", "replace")
