"""Running programs that have loaded libcufile: which library, which of its variables, and which configuration.

Of their environment only libcufile's variables and those of data/consumers.json are recorded.  A program in a container
has its own files: they're read through /proc/PID/root.  The environment is that of the program's start; a program may
have changed it since.
"""

from __future__ import annotations

import os
import posixpath
import re
import time
from typing import Any, Dict, List, Tuple

from ..facts.overlay import VARIABLE
from ..facts.userland import WHEEL
from ..paths import CUFILE, PROCESSES
from ..rootdir import list_folder
from . import configs
from .environment import relevant
from .recorder import Recorder, matching_lines, read_all
from .request import EvidenceRequest

PROC = "/proc"
#: Most programs that are recorded, and seconds for looking at all processes.
PROGRAMS_LIMIT = 256
SECONDS = 10.0
#: Bytes of the list of one process's mappings; a program with GPUs has thousands of mappings of 100 bytes.
MAPS_LIMIT = 16 * 1024 * 1024
ENVIRONMENT_LIMIT = 2 * 1024 * 1024
MAPPED = r"/libcufile\.so[.0-9]*(?: \(deleted\))?$"
PACKAGES = re.compile(r"^/.*?/(?:site|dist)-packages(?=/)")


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
    programs: List[Dict[str, Any]] = []
    summary: Dict[str, Any] = {"programs": programs, "unread": 0, "more": False}
    recorder.document["processes"][PROCESSES] = summary
    end = time.monotonic() + SECONDS
    for pid in sorted(int(name) for name in os.listdir(PROC) if name.isdecimal()):
        if len(programs) >= PROGRAMS_LIMIT or time.monotonic() > end:
            summary["more"] = True
            break
        try:
            libraries, whole = _libraries(f"{PROC}/{pid}/maps")
        except PermissionError:
            summary["unread"] += 1
            continue
        except OSError:
            continue  # it ended
        summary["more"] = summary["more"] or not whole
        if libraries:
            programs.append(_program(recorder, pid, libraries))


def _libraries(maps: str) -> Tuple[List[str], bool]:
    """The files of libcufile that are mapped, and whether all mappings were read."""
    with open(maps, "rb") as file:
        data = read_all(file, MAPS_LIMIT)
    lines = matching_lines(data, MAPPED)
    return sorted({line.split(None, 5)[5] for line in lines if line.count(" ") >= 5}), len(data) < MAPS_LIMIT


def _program(recorder: Recorder, pid: int, libraries: List[str]) -> Dict[str, Any]:
    folder = f"{PROC}/{pid}"
    program: Dict[str, Any] = {"pid": pid, "libraries": libraries, "program": "", "unit": "", "container": None}
    try:
        program["program"] = _read(folder + "/comm", 64).strip()
        program["unit"] = _read(folder + "/cgroup", 4096).strip().split("\n")[-1].split(":", 2)[-1]
        shared = all(_same(folder, name) for name in ("ns/mnt", "root"))
        program["container"] = not shared
        root = "/" if shared else folder + "/root"
        program["wheels"] = {library: _wheels(root, library) for library in libraries}
        program["base"] = CUFILE if shared else configs.record(recorder, CUFILE, root)
        pairs = (entry.partition("=") for entry in _read(folder + "/environ", ENVIRONMENT_LIMIT).split("\0"))
        variables = relevant({name: value for name, _, value in pairs})
        program["variables"] = variables
        if variables.get(VARIABLE):
            path = variables[VARIABLE]
            if not path.startswith("/") and shared:
                path = posixpath.join(os.readlink(folder + "/cwd"), path)
            if path.startswith("/"):
                program["config"] = configs.record(recorder, path, root)
    except OSError as error:
        program["error"] = f"{type(error).__name__}: {error.strerror}"
    return program


def _same(folder: str, link: str) -> bool:
    """Whether a process shares this program's namespace or root."""
    return os.readlink(f"{folder}/{link}") == os.readlink(f"{PROC}/self/{link}")


def _wheels(root: str, library: str) -> List[str]:
    packages = PACKAGES.match(library)
    names = list_folder(root, packages.group(0)) if packages else []
    return [name for name in names if WHEEL.fullmatch(name)]


def _read(path: str, limit: int) -> str:
    with open(path, "rb") as file:
        return read_all(file, limit).decode("utf-8", "replace")
