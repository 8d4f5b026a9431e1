"""Running programs that have loaded libcufile: which library, which of its variables, configuration and counters.

Of their environment only libcufile's variables are recorded.  A program in a container
has its own files: they're read through /proc/PID/root.  The environment is that of the program's start; a program may
have changed it since.
"""

from __future__ import annotations

import os
import posixpath
import re
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..facts.environment import VARIABLE, WHEEL
from ..paths import CUFILE, PROCESSES
from ..rootdir import list_folder
from . import configs
from .environment import relevant
from .recorder import Recorder, matching_lines, read_all
from .request import EvidenceRequest
from .statistics import Identity, age, dead_segments, identity, open_files, release, statistics

PROC = "/proc"
#: Most programs that are recorded, and seconds for looking at all processes.
PROGRAMS_LIMIT = 256
SECONDS = 10.0
#: Bytes of the list of one process's mappings; a program with GPUs has thousands of mappings of 100 bytes.
MAPS_LIMIT = 16 * 1024 * 1024
ENVIRONMENT_LIMIT = 2 * 1024 * 1024
MAPPED = r"/(?:libcufile\.so[.0-9]*|libcuda\.so[.0-9]*|SYSV[0-9a-f]{8})(?: \(deleted\))?$"
#: How the kernel names a mapped segment; its id is in the place of the inode.
SHARED = re.compile(r"/SYSV([0-9a-f]{8})")
PACKAGES = re.compile(r"^/.*?/(?:site|dist)-packages(?=/)")
#: Seconds before a process without libcufile and libcuda is looked at again, by a program that looks often.  A younger
#: one may still load them.
AGAIN = 60.0


#: (key, id) of segments of shared memory that a process has mapped.
Segments = Tuple[Tuple[int, int], ...]


class Maps(NamedTuple):
    """What a process has mapped."""

    #: file of libcufile → one of its ranges, as in /proc/PID/map_files
    libraries: Mapping[str, str]
    segments: Segments
    cuda: bool
    #: whether all its mappings were read
    whole: bool


def collect(recorder: Recorder, _request: EvidenceRequest) -> None:
    Scan(PROGRAMS_LIMIT, SECONDS).look(recorder)


class _Remembered(NamedTuple):
    """What a scan needs not read again."""

    #: processes without the libraries → when to look again
    others: Dict[Identity, float]
    #: programs with counters → when to look at them again, their record, their segments
    whole: Dict[Identity, Tuple[float, Dict[str, Any], Segments]]


class Scan:
    """Looks at all processes, and need not look at all of them again.

    programs: most that are recorded; seconds: for one look.  counters_alone: whether a program whose counters were read
    is looked at whole only once in AGAIN seconds.
    """

    def __init__(self, programs: int, seconds: float, *, counters_alone: bool = False) -> None:
        self._programs, self._seconds, self._counters_alone = programs, seconds, counters_alone
        self._now = _Remembered({}, {})

    def look(self, recorder: Recorder) -> None:
        """Record the programs that have loaded libcufile."""
        programs: List[Dict[str, Any]] = []
        summary: Dict[str, Any] = {"programs": programs, "unread": 0, "more": False, "dead": _dead()}
        recorder.document["processes"][PROCESSES] = summary
        before, self._now = self._now, _Remembered({}, {})
        end = time.monotonic() + self._seconds
        for pid in sorted(int(name) for name in os.listdir(PROC) if name.isdecimal()):
            if len(programs) >= self._programs or time.monotonic() > end:
                summary["more"] = True
                break
            try:
                program = self._look(recorder, pid, before, summary)
            except PermissionError:
                summary["unread"] += 1
            except (OSError, ValueError):
                continue  # it ended
            else:
                programs += [program] if program else []

    def _look(
        self, recorder: Recorder, pid: int, before: _Remembered, summary: Dict[str, Any]
    ) -> Optional[Dict[str, Any]]:
        """The program; None if it has no libcufile, or ended.  Raises OSError and ValueError."""
        folder = f"{PROC}/{pid}"
        process = identity(folder, pid)
        until, program, mapped = before.whole.get(process, (0.0, {}, ()))
        if until > time.monotonic():
            program = {**program, "statistics": statistics(folder, process, mapped)}
            if "counters" in program["statistics"] and identity(folder, pid) == process:
                self._now.whole[process] = until, program, mapped
                return program
        again = before.others.get(process, 0.0)
        if again <= time.monotonic():
            maps = mapped_files(folder + "/maps")
            summary["more"] = summary["more"] or not maps.whole
            if maps.libraries:
                program = _program(recorder, process, maps)
                if self._counters_alone and "counters" in program.get("statistics", {}):
                    self._now.whole[process] = time.monotonic() + AGAIN, program, maps.segments
                return program if identity(folder, pid) == process else None
            may_load = maps.cuda or age(process) < AGAIN
            again = 0.0 if may_load else time.monotonic() + AGAIN
        self._now.others[process] = again
        return None


def mapped_files(maps: str) -> Maps:
    """From a file ``maps`` of /proc; raises OSError."""
    with open(maps, "rb") as file:
        data = read_all(file, MAPS_LIMIT)
    rows = [line.split(None, 5) for line in matching_lines(data, MAPPED) if line.count(" ") >= 5]
    names = [(row[5], row[4], row[0]) for row in rows if len(row) == 6]
    shared = [(SHARED.match(path), inode) for path, inode, _ in names]
    return Maps(
        {path: at for path, _, at in sorted(names) if "/libcufile.so" in path},
        tuple(sorted({(int(match.group(1), 16), int(inode)) for match, inode in shared if match})),
        any("/libcuda.so" in path for path, _, _ in names),
        len(data) < MAPS_LIMIT,
    )


def _program(recorder: Recorder, process: Identity, maps: Maps) -> Dict[str, Any]:
    folder, libraries = f"{PROC}/{process.pid}", sorted(maps.libraries)
    program: Dict[str, Any] = {"pid": process.pid, "start": process.start, "libraries": libraries}
    program.update({"program": "", "unit": "", "container": None})
    try:
        program["statistics"] = statistics(folder, process, maps.segments)
        program.update(open_files(folder))
        program["releases"] = {path: _release(f"{folder}/map_files/{at}") for path, at in maps.libraries.items()}
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


def _dead() -> Optional[int]:
    try:
        return len(dead_segments())
    except OSError:
        return None


def _release(file: str) -> Optional[str]:
    try:
        return release(file)
    except OSError:
        return None


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
