"""Running programs that have a GPU open or libcufile loaded: library, variables, configuration, counters, data files.

Of their environment only libcufile's variables are recorded, and those by which its callers choose their own way.  A
program in a container has its own files: they're read through /proc/PID/root.  The environment is that of the program's
start; a program may have changed it since.  Everything is read from outside; see docs/watch.md.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import re
import time
from functools import partial
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
    Union,
)

from ..evidence.recorder import matching_lines, read_all
from ..facts.document import Document, collected
from ..facts.unknown import Facts, Maybe, UndecidedError, fact, follows, if_known, known
from ..io.mounts import Mounts, Row, mounts_in
from ..libcufile import counters
from ..libcufile.counters import Counters, Observed, Route, route
from ..paths import CUFILE, PROCESSES
from ..rootdir import list_folder
from . import clients, syscalls
from .cufile_json import P2PDMA_VARIABLE, VARIABLE, CufileFacts, Overlay, merged, overlay, record_configuration
from .environment import Variable, relevant
from .filesystem import LOCAL
from .register import collector
from .types import EvidenceRequest, Mount, Recorder

if TYPE_CHECKING:
    from .storage import StorageFacts

#: Open files of one process that are looked at, and files that are recorded.
DESCRIPTORS_LIMIT, FILES_LIMIT = 8192, 16
#: Seconds by which the times of a process and of its segment may differ without meaning anything.
TOLERANCE = 2.0
#: Devices of NVIDIA's driver, and those of nvidia-fs among them.
NVIDIA, NVIDIA_FS = "/dev/nvidia", "/dev/nvidia-fs"
#: A Slurm job in a control group.
JOB = re.compile(r"/job_(\d{1,12})(?=/|$)")
#: A job as users of Slurm call it: 12, a task of an array 12_3, or a part of a heterogeneous job 12+1.
JOB_NAME = re.compile(r"\d{1,12}(?:_\d{1,10}|\+\d{1,4})?")
_PART = "SLURM_JOB_ID_HET_GROUP_"
#: Descriptors of standard input, output and error.
STANDARD = frozenset(("0", "1", "2"))
#: Bytes of a libcufile that are searched for its release; 1.20 has 4 MiB.
LIBRARY_LIMIT = 32 << 20
#: Files whose release is remembered.
RELEASES_LIMIT = 1024
_RELEASE = re.compile(rb"(?<=\0)1\.\d{1,3}\.\d{1,3}\.\d{1,5}(?=\0)")
#: Files that were searched: (device, inode, time of the last change, size) → release.
_RELEASES: Dict[Tuple[int, int, int, int], Optional[str]] = {}


class Identity(NamedTuple):
    """A process, and not another one that gets its id later."""

    pid: int
    #: clock ticks after the boot
    start: int


def identity(folder: str, pid: int) -> Identity:
    """Of the process whose folder in /proc that is; raises OSError when it has ended, ValueError for no such file."""
    # Its name may have spaces and parentheses.
    fields = _read(folder + "/stat", 4096).rpartition(")")[2].split()
    if len(fields) < 20:
        raise ValueError("it has no start time")
    return Identity(pid, int(fields[19]))


def age(process: Identity) -> float:
    """Seconds since its start."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.start / os.sysconf("SC_CLK_TCK")


def statistics(folder: str, process: Identity, mapped: Sequence[Tuple[int, int]]) -> Dict[str, Any]:
    """``{"counters": …}``, or ``{"reason": an id of counters.REASONS}``.

    mapped: (key, id) of each segment that the process has mapped.
    """
    try:
        # The process's id in its own namespace is the key of its statistics.
        (inside,) = re.findall(r"(?m)^NSpid:.*\s(\d+)$", _read(folder + "/status", 65536))
        key, begin = int(inside), time.time() - age(process)
        ids = [number for at, number in mapped if at == key]
        namespace = folder + "/ns/ipc"

        def read() -> Dict[str, Any]:
            return _own(process.pid, key, ids, begin)

        if os.readlink(namespace) == os.readlink("/proc/self/ns/ipc"):
            return read()
        return counters.within(namespace, read)
    except (OSError, ValueError) as error:
        return {"reason": counters.UNREADABLE, "error": f"{type(error).__name__}: {error}"}


def _own(pid: int, key: int, ids: Sequence[int], begin: float) -> Dict[str, Any]:
    """In the process's namespace of IPC.  begin: when it started, in seconds since 1970."""
    for number in ids:
        segment = counters.stat(number)
        made_by_it = (segment.key, segment.creator) == (key, pid) and segment.changed >= begin - TOLERANCE
        if not made_by_it or not segment.attached:
            return {"reason": counters.NOT_ITS_OWN}
        if segment.size not in counters.sizes():
            return {"reason": counters.UNKNOWN_LAYOUT, "size": segment.size}
        content = counters.read(number, segment.size)
        result = counters.decode(content)
        if isinstance(result, str):
            return {"reason": result, "size": segment.size, "version": int.from_bytes(content[:4], "little")}
        return {"counters": counters.as_record(result), "at": round(time.monotonic(), 6)}
    try:
        counters.find(key)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return {"reason": counters.STATISTICS_OFF}
        raise
    return {"reason": counters.KEY_TAKEN}


def release(file: str) -> Optional[str]:
    """The one ``1.x.y.z`` that a libcufile has as a string; None: none, or several (so in 1.9 to 1.13).

    file: of /proc/PID/map_files, which is what the process runs, whatever has become of its name.  Raises OSError.
    """
    with open(file, "rb") as opened:
        state = os.fstat(opened.fileno())
        if state.st_size > LIBRARY_LIMIT:
            return None
        if len(_RELEASES) >= RELEASES_LIMIT:
            _RELEASES.clear()
        key = (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)
        if key not in _RELEASES:
            result = set(_RELEASE.findall(read_all(opened, LIBRARY_LIMIT)))
            _RELEASES[key] = result.pop().decode() if len(result) == 1 else None
        return _RELEASES[key]


def open_files(folder: str) -> Dict[str, Any]:
    """What a process has open.

    ``nvidia_fs``: whether it has nvidia-fs open, ``gpu``: any device of the driver; None: not known.  ``files``: those
    that cuFile may have registered: libcufile opens a registered file by its name once more, so these are open at least
    twice: [path, mount point, filesystem, whether one of both is for direct I/O, major:minor of the filesystem].  One
    that is only standard input, output or error isn't listed.  ``data``: descriptors of data files, as in
    syscalls.Opened.
    """
    try:
        with os.scandir(folder + "/fd") as entries:
            names = [entry.name for entry in islice(entries, DESCRIPTORS_LIMIT + 1)]
    except OSError:
        return {"nvidia_fs": None, "gpu": None, "files": [], "data": []}
    targets: Dict[str, List[str]] = {}
    for name in names[:DESCRIPTORS_LIMIT]:
        try:
            targets.setdefault(os.readlink(f"{folder}/fd/{name}"), []).append(name)
        except OSError:
            continue
    devices = [target for target in targets if target.startswith(NVIDIA)]
    is_open = any(target.startswith(NVIDIA_FS) for target in devices)
    complete = is_open or len(names) <= DESCRIPTORS_LIMIT
    ordinary = [
        (len(numbers) == 1, path)
        for path, numbers in targets.items()
        if not STANDARD.issuperset(numbers)
        if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/"))
    ]
    files: List[List[Any]] = []
    data: List[List[Any]] = []
    mounts = mounts_of(folder).by_id if ordinary else {}
    for once, path in sorted(ordinary)[: syscalls.FILES_LIMIT]:
        opened = [row for row in (_opened(folder, name, path, mounts) for name in targets[path][:FILES_LIMIT]) if row]
        if opened and not once and len(files) < FILES_LIMIT:
            files.append([*opened[-1][:3], any(row[4] & os.O_DIRECT for row in opened), opened[-1][3]])
        data += [row for row in opened if _holds_data(folder, row, mounts)]
    whole = complete or bool(devices)
    return {
        "nvidia_fs": is_open if complete else None,
        "gpu": bool(devices) if whole else None,
        "files": files,
        "data": data[: syscalls.FILES_LIMIT],
    }


def mounts_of(folder: str) -> Mounts:
    """The mounts that a process sees; none where they can't be read."""
    return mounts_in(_if_readable(lambda: _read(folder + "/mountinfo", 4 << 20)) or "")


def _opened(folder: str, name: str, path: str, mounts: Mapping[str, Row]) -> Optional[List[Any]]:
    """As in syscalls.Opened, with the mount's id at the end; None: it's closed, or on no mount, or a folder."""
    try:
        lines = _read(f"{folder}/fdinfo/{name}", 4096).split("\n")[:8]
        words = dict(line.split(None, 1) for line in lines if "\t" in line)
        flags, position = int(words.get("flags:", "0"), 8), int(words.get("pos:", "0"))
    except (OSError, ValueError):
        return None
    number = words.get("mnt_id:", "").strip()
    row = mounts.get(number)
    if row is None or flags & os.O_DIRECTORY:
        return None
    return [path, row.point, row.filesystem, row.number, flags, position, int(name), number]


def _holds_data(folder: str, opened: List[Any], mounts: Mapping[str, Row]) -> bool:
    """Takes the mount's id from the end of the row."""
    path, point, descriptor, row = opened[0], opened[1], opened[6], mounts[opened.pop()]
    if str(descriptor) in STANDARD or not syscalls.is_data(path, row):
        return False
    # Elsewhere than on / nothing asks the filesystem: it may not answer.
    size = _if_readable(lambda: os.stat(f"{folder}/fd/{descriptor}").st_size) if point == "/" else None
    return point != "/" or (size or 0) >= syscalls.LEAST


PROC = "/proc"


def is_hidden() -> bool:
    """Whether /proc hides the processes of other users from this one (hidepid of proc(5))."""
    row = mounts_of("/proc/self").at("/proc")
    hiding = (
        [option for option in row.options if re.match(r"hidepid=(2|4|invisible|ptraceable)$", option)] if row else []
    )
    return bool(hiding) and not os.path.isdir(PROC + "/1")


#: Most programs that are recorded, and seconds for looking at all processes.
PROGRAMS_LIMIT = 256
SECONDS = 10.0
#: Seconds between two looks at what processes move, for evidence.
PAUSE = 1.0
#: Bytes of the list of one process's mappings; a program with GPUs has thousands of mappings of 100 bytes.
MAPS_LIMIT = 16 * 1024 * 1024
ENVIRONMENT_LIMIT = 2 * 1024 * 1024
MAPPED = r"/(?:libcufile\.so[.0-9]*|libcuda\.so[.0-9]*|SYSV[0-9a-f]{8}|nvidia[-a-z0-9]*)(?: \(deleted\))?$"
#: A range of an ordinary file that is mapped: its begin, its end, whether it is run, and its path.
RANGE = re.compile(rb"(?m)^([0-9a-f]+)-([0-9a-f]+) ..(?:(x)|-)\S \S+ \S+ [1-9]\d* +(/(?!dev/).*)$")
#: How the kernel names a mapped segment; its id is in the place of the inode.
SHARED = re.compile(r"/SYSV([0-9a-f]{8})")
PACKAGES = re.compile(r"^/.*?/(?:site|dist)-packages(?=/)")
#: Seconds before a process without libcufile and libcuda is looked at again, by a program that looks often.  A younger
#: one may still load them.
AGAIN = 60.0


#: (key, id) of segments of shared memory that a process has mapped.
Segments = Tuple[Tuple[int, int], ...]
Read = TypeVar("Read")


class Maps(NamedTuple):
    """What a process has mapped."""

    #: file of libcufile → one of its ranges, as in /proc/PID/map_files
    libraries: Mapping[str, str]
    segments: Segments
    #: whether it has libcuda, and a device of the driver
    cuda: bool
    gpu: bool
    #: file that isn't run → bytes of it, for a program that may use a GPU
    data: Mapping[str, int]
    #: clients.CLIENTS of which it has the library
    clients: Tuple[str, ...]
    #: whether all its mappings were read
    whole: bool


@collector("processes")
def collect_processes(recorder: Recorder, _request: EvidenceRequest) -> None:
    Scan(PROGRAMS_LIMIT, SECONDS).look(recorder)
    rows = recorder.document["processes"][PROCESSES]["programs"]
    reading = [row for row in rows if row.get("io") and row["io"]["files"]]
    if reading:
        # What a process has moved since its start says nothing about now.
        time.sleep(PAUSE)
    for row in reading:
        again = _again(Identity(row["pid"], row["start"]))
        row.update({} if again is None else {"io_before": row["io"], "io": again})


def _again(process: Identity) -> Optional[Dict[str, Any]]:
    """What it has moved by now; None: it ended."""
    folder = f"{PROC}/{process.pid}"
    try:
        moving: Optional[Dict[str, Any]] = _moving(folder)["io"]
        return moving if identity(folder, process.pid) == process else None
    except (OSError, ValueError):
        return None


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
        """Record the programs that have a GPU open or libcufile loaded."""
        programs: List[Dict[str, Any]] = []
        dead = _if_readable(lambda: len(counters.dead_segments()))
        summary: Dict[str, Any] = {
            "programs": programs,
            "unread": 0,
            "more": False,
            "dead": dead,
            "hidden": is_hidden(),
        }
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
            if program["libraries"]:
                program = {**program, "statistics": statistics(folder, process, mapped)}
            program = {**program, **_moving(folder)}
            if _is_settled(program) and identity(folder, pid) == process:
                self._now.whole[process] = until, program, mapped
                return program
        again = before.others.get(process, 0.0)
        if again <= time.monotonic():
            maps = mapped_files(folder + "/maps")
            summary["more"] = summary["more"] or not maps.whole
            if maps.libraries or maps.gpu or (maps.cuda and open_files(folder)["gpu"]):
                program = _program(recorder, process, maps)
                if self._counters_alone and _is_settled(program):
                    self._now.whole[process] = time.monotonic() + AGAIN, program, maps.segments
                return program if identity(folder, pid) == process else None
            may_load = maps.cuda or age(process) < AGAIN
            again = 0.0 if may_load else time.monotonic() + AGAIN
        self._now.others[process] = again
        return None


def _is_settled(program: Dict[str, Any]) -> bool:
    """Whether all but its numbers may be a minute old."""
    return not program["libraries"] or "counters" in program.get("statistics", {})


def mapped_files(maps: str) -> Maps:
    """From a file ``maps`` of /proc; raises OSError."""
    with open(maps, "rb") as file:
        data = read_all(file, MAPS_LIMIT)
    rows = [line.split(None, 5) for line in matching_lines(data, MAPPED) if line.count(" ") >= 5]
    names = [(row[5], row[4], row[0]) for row in rows if len(row) == 6]
    of_gpu = any("/libcu" in path or path.startswith(NVIDIA) for path, _, _ in names)
    mapped, run = _ranges(data) if of_gpu else ({}, set())
    shared = [(SHARED.match(path), inode) for path, inode, _ in names]
    return Maps(
        {path: at for path, _, at in sorted(names) if "/libcufile.so" in path},
        tuple(sorted({(int(match.group(1), 16), int(inode)) for match, inode in shared if match})),
        any("/libcuda.so" in path for path, _, _ in names),
        any(path.startswith(NVIDIA) for path, _, _ in names),
        {path: size for path, size in mapped.items() if path not in run},
        clients.mapped(run),
        len(data) < MAPS_LIMIT,
    )


def _ranges(maps: bytes) -> Tuple[Dict[str, int], Set[str]]:
    """Bytes of each file that is mapped, and those of which a part is run."""
    sizes: Dict[bytes, int] = {}
    run: Set[bytes] = set()
    for begin, end, is_run, path in RANGE.findall(maps):
        sizes[path] = sizes.get(path, 0) + int(end, 16) - int(begin, 16)
        if is_run:
            run.add(path)
    names = {path: path.decode("utf-8", "replace") for path in sizes}
    return {names[path]: size for path, size in sizes.items()}, {names[path] for path in run}


def _moving(folder: str) -> Dict[str, Any]:
    """What changes while a process runs: its open files, and what it has moved by system calls."""
    opened = open_files(folder)
    data = opened.pop("data")
    text = _if_readable(lambda: _read(folder + "/io", 4096))
    return {**opened, "io": None if text is None else syscalls.read_io(text, data)}


def _program(recorder: Recorder, process: Identity, maps: Maps) -> Dict[str, Any]:
    folder, libraries = f"{PROC}/{process.pid}", sorted(maps.libraries)
    program: Dict[str, Any] = {"pid": process.pid, "start": process.start, "libraries": libraries}
    program.update({"program": "", "unit": "", "container": None})
    try:
        none = {"reason": counters.NO_LIBRARY}
        program["statistics"] = statistics(folder, process, maps.segments) if libraries else none
        program.update(_moving(folder))
        program["clients"] = list(maps.clients)
        program["mapped"] = syscalls.mapped_data(maps.data, mounts_of(folder).at) if maps.data else []
        program["releases"] = {
            path: _if_readable(partial(release, f"{folder}/map_files/{at}")) for path, at in maps.libraries.items()
        }
        program["program"] = _read(folder + "/comm", 64).strip()
        program["unit"] = control_group(_read(folder + "/cgroup", 4096))
        # A service or a batch job has mounts of its own and the host's files (PrivateTmp=, job_container/tmpfs).
        program["container"] = not os.path.samestat(os.stat(folder + "/root/"), os.stat("/"))
        shared = all(_same(folder, name) for name in ("ns/mnt", "root"))
        root = "/" if shared else folder + "/root"
        program["wheels"] = {library: _wheels(root, library) for library in libraries}
        program["base"] = CUFILE if shared else _as_its_user(folder, recorder, CUFILE, root)
        pairs = (entry.partition("=") for entry in _read(folder + "/environ", ENVIRONMENT_LIMIT).split("\0"))
        environment = {name: value for name, _, value in pairs}
        variables = program["variables"] = relevant(environment)
        program["modes"] = clients.modes(environment)
        program["udev"] = _udev(folder, program["io"])
        program["jobs"] = job_names(program["unit"], environment)
        if variables.get(VARIABLE):
            path = variables[VARIABLE]
            if not path.startswith("/") and shared:
                path = posixpath.join(os.readlink(folder + "/cwd"), path)
            if path.startswith("/"):
                program["config"] = _as_its_user(folder, recorder, path, root)
    except OSError as error:
        program["error"] = f"{type(error).__name__}: {error.strerror}"
    return program


def control_group(text: str) -> str:
    """The path that says most of a process's /proc/PID/cgroup: that of a Slurm job, else systemd's, which is the last.

    Of version 1, Slurm's proctrack/cgroup makes groups of its own controllers, and the last line has slurmd's unit.
    Where both versions are mounted, systemd may use the first alone: the last line is then the root.
    """
    paths = [line.split(":", 2)[-1] for line in text.strip().split("\n")]
    return next((path for path in paths if JOB.search(path)), next((path for path in paths[::-1] if path != "/"), "/"))


def job_names(group: str, environment: Mapping[str, str]) -> List[str]:
    """What a Slurm job is called beside its number: its array and the task in it, its heterogeneous job and the part.

    By the variables of sbatch(1): for each part of a heterogeneous job, SLURM_JOB_ID is the first one's.
    """
    job = JOB.search(group)
    array, task, first = (environment.get("SLURM_" + name, "") for name in ("ARRAY_JOB_ID", "ARRAY_TASK_ID", "JOB_ID"))
    parts = [name[len(_PART) :] for name, value in environment.items() if name.startswith(_PART)]
    part = next((part for part in parts if job and environment[_PART + part] == job.group(1)), "")
    names = (array, f"{array}_{task}", first if part else "", f"{first}+{part}")
    return [name for name in names if job and JOB_NAME.fullmatch(name)]


def _udev(folder: str, io: Any) -> Dict[str, bool]:
    """major:minor of each disk with data files → whether udev's database, as the process sees it, knows it."""
    numbers = {file[3] for file in (io or {}).get("files", []) if file[2] in LOCAL}
    return {number: os.path.exists(f"{folder}/root/run/udev/data/b{number}") for number in sorted(numbers)}


def _as_its_user(folder: str, recorder: Recorder, path: str, root: str) -> str:
    """Record a configuration that a process names, with the rights of its user: who names it may read the evidence.

    Not those of the owner of /proc/PID: a process that can't be dumped belongs to root there.
    """
    ids = dict(re.findall(r"(?m)^(Uid|Gid|Groups):(.*)", _read(folder + "/status", 65536)))
    uid, gid = (int(ids[name].split()[0]) for name in ("Uid", "Gid"))
    if os.geteuid() != 0 or uid == 0:
        return record_configuration(recorder, path, root)
    own = os.getegid(), os.getgroups()
    try:
        os.setgroups([int(number) for number in ids["Groups"].split()])
        os.setegid(gid)
        os.seteuid(uid)
        return record_configuration(recorder, path, root)
    finally:
        os.seteuid(0)
        os.setegid(own[0])
        os.setgroups(own[1])


def _if_readable(read: Callable[[], Read]) -> Optional[Read]:
    try:
        return read()
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


#: The folder of an NVIDIA wheel with a libcufile; the groups are its CUDA release, up to 12, and its version.
WHEEL = re.compile(r"nvidia_cufile(_cu\d+)?-(\d[\d.]*)\.dist-info")
_VERSION = re.compile(r"libcufile\.so\.(\d+\.\d+\S*)$")
#: The wheel for CUDA 12 has its library here, each later one elsewhere.
_CUDA12 = "/nvidia/cufile/lib/"
DELETED = " (deleted)"


class OpenFile(NamedTuple):
    """A file that is open at least twice, as one that cuFile has registered."""

    path: str
    mount: str
    filesystem: str
    #: whether it is open for direct I/O
    direct: bool
    #: major:minor of the filesystem, the same wherever that is mounted
    number: str


#: Key of a process's record → the type of its value.
_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("pid", "start"), int),
    **dict.fromkeys(("program", "unit", "base", "config", "error"), str),
    **dict.fromkeys(("container", "nvidia_fs"), bool),
    **dict.fromkeys(("statistics", "wheels", "releases", "variables", "io", "io_before", "modes", "udev"), dict),
    **dict.fromkeys(("libraries", "files", "jobs", "mapped", "clients"), list),
}


class Before(NamedTuple):
    """What an earlier look at a process found."""

    #: seconds of the host's monotonic clock
    at: float
    counters: Optional[Counters]
    io: Optional[syscalls.Io]


class Program(Facts):
    """A process, as it was when the evidence was collected."""

    def __init__(self, document: Document, cufile: CufileFacts, row: Dict[str, Any]) -> None:
        super().__init__(document)
        # What has another type counts as not recorded.
        row = {key: value for key, value in row.items() if isinstance(value, _TYPES.get(key, ()))}
        self._cufile, self._row = cufile, row
        self.pid: int = row.get("pid", 0)
        #: as in /proc/PID/comm: at most 15 characters
        self.name: str = row.get("program", "")
        #: its control group, which names its unit, container or job
        self.unit: str = row.get("unit", "")
        #: the path of its /etc/cufile.json
        self.base_path: str = row.get("base") or CUFILE
        #: when it started, in clock ticks after the boot; -1: not recorded
        self.start: int = row.get("start", -1)
        statistics = row.get("statistics", {})
        at = statistics.get("at")
        #: what it has counted, or why that isn't known: an id of counters.REASONS
        self.counters = _counters(statistics)
        #: when its counters were read, in seconds of the host's monotonic clock
        self.at = float(at) if isinstance(at, (int, float)) else 0.0
        self.files = _files(row.get("files", []))
        #: what it has moved by system calls, and a moment before; None: not recorded
        self.io, self.io_before = (syscalls.from_record(row.get(name)) for name in ("io", "io_before"))
        #: data files that it has mapped: (path, mount point, filesystem)
        self.mapped = tuple((str(row[0]), str(row[1]), str(row[2])) for row in _lists(row.get("mapped", []), 3))
        #: clients.CLIENTS that it has loaded, and the variables by which they choose their way
        self.clients = tuple(map(str, row.get("clients", [])))
        self.modes = {str(name): str(value) for name, value in row.get("modes", {}).items()}
        #: major:minor of each disk with data files → whether udev's database knows it, as the process sees it
        self.udev = {str(number): value is True for number, value in row.get("udev", {}).items()}
        #: what its Slurm job is called beside its number
        self.jobs = tuple(map(str, row.get("jobs", [])))

    @property
    def _unread(self) -> str:
        return "{} of process {}".format(self._row.get("error") or "no record", self._row.get("pid"))

    #: whether its root is another than this host's, as in a container
    container: bool = follows(lambda self: collected(self._row.get("container"), self._unread))

    @fact
    def libraries(self) -> Mapping[str, Maybe[str]]:
        """File of each libcufile → its version."""
        wheels, releases = (self._row.get(key, {}) for key in ("wheels", "releases"))
        paths = [path for path in self._row.get("libraries", []) if isinstance(path, str)]
        return {path: known(partial(_version, path, wheels.get(path), releases.get(path))) for path in paths}

    @fact
    def variables(self) -> Mapping[str, str]:
        """Libcufile's variables, as the program was started."""
        value = collected(self._row.get("variables"), self._unread)
        return collected(value if all(isinstance(text, str) for text in value.values()) else None, self._unread)

    @fact
    def base(self) -> Optional[Mapping[str, Any]]:
        """The content of its /etc/cufile.json; None: there is none."""
        path = self._row.get("base", "")
        if path == CUFILE:
            return self._cufile.config
        record = self.document.record("configs", collected(path or None, self._unread))
        config = record.get("config") if record is not None else None
        if record is not None and not isinstance(config, dict):
            raise UndecidedError("{}: {}".format(path, record.get("broken", "malformed")))
        return config

    @fact
    def overlay(self) -> Optional[Overlay]:
        named, key = self.variables.get(VARIABLE, ""), self._row.get("config")
        if not named:
            return None
        if not key:
            raise UndecidedError(f"{VARIABLE}={named} names a file in a folder of another container")
        place = "the environment of process {}".format(self._row.get("pid"))
        return overlay(self.document, key, Variable(VARIABLE, named, place, f"{VARIABLE}={named}"))

    @property
    def has_no_nvidia_fs(self) -> bool:
        """Whether it's known to have no nvidia-fs open."""
        return if_known(lambda: self.nvidia_fs, None) is False

    #: whether it has nvidia-fs open, without which its I/O can't take it
    nvidia_fs: bool = follows(lambda self: collected(self._row.get("nvidia_fs"), "its open files were not recorded"))

    def mount_of(self, file: Union[OpenFile, syscalls.Opened], storage: StorageFacts) -> Optional[Mount]:
        """The host's mount of a file's filesystem, which may be elsewhere in a namespace of its own; None: it has none.

        Raises UndecidedError.
        """
        return storage.of_filesystem(file.number, file.mount)

    def way(self, before: Optional[Before] = None) -> Route:
        """The way of its I/O since an earlier look, beside all that cuFile has counted.

        before: None: the evidence itself has two looks at what it moved by system calls.
        """
        old = before or Before(self.at, None, self.io_before)
        counted = route(Observed(self.counters, old.counters, self.at - old.at))
        moved = syscalls.moved(self.io, old.io)
        return clients.beside(counted, moved, self)

    @property
    def may_use_p2pdma(self) -> bool:
        """Whether its configuration, or the variable over it, asks for P2PDMA anywhere, or that isn't known."""
        try:
            over = self.overlay
            words = json.dumps(merged(self.base, over.config if over else {}))
            return '"use_pci_p2pdma": true' in words or self.variables.get(P2PDMA_VARIABLE, "").lower() == "true"
        except UndecidedError:
            return True

    @property
    def level(self) -> Optional[int]:
        """profile.cufile_stats of the configuration that it reads; None: not there, or not a number from 0 to 3."""
        base, over = self.base, self.overlay
        profile = merged(base, over.config if over else {}).get("profile")
        level = profile.get("cufile_stats") if isinstance(profile, dict) else None
        return level if isinstance(level, int) and not isinstance(level, bool) and 0 <= level <= 3 else None

    @property
    def label(self) -> str:
        unit = f" of {self.unit}" if self.unit not in ("", "/") else ""
        return f"process {self.pid} ({self.name or 'no name'}){unit}"


class ProcessFacts(Facts):
    """Programs that have a GPU open, or libcufile loaded."""

    def __init__(self, document: Document, cufile: CufileFacts) -> None:
        super().__init__(document)
        self._cufile = cufile

    @property
    def _record(self) -> Dict[str, Any]:
        """Raises UndecidedError where it has no list of programs."""
        record = if_known(lambda: self.document.record("processes", PROCESSES), None) or {}
        rows = record.get("programs")
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            return record
        if PROCESSES in self.document.paths("processes"):
            raise UndecidedError("the record of running programs is malformed")
        raise self.document.not_collected("running programs were", "processes")

    every: Tuple[Program, ...] = follows(
        lambda self: tuple(Program(self.document, self._cufile, row) for row in self._record["programs"])
    )
    #: those with libcufile
    programs: Tuple[Program, ...] = follows(
        lambda self: tuple(each for each in self.every if each.counters != counters.NO_LIBRARY)
    )

    @fact
    def complete(self) -> bool:
        """True: every process of the host was looked at."""
        unread, more = self._record.get("unread"), self._record.get("more")
        if not isinstance(unread, int) or not isinstance(more, bool):
            raise UndecidedError("the record of running programs is malformed")
        if unread:
            words = "{} process{} could not be read: permission denied"
            raise UndecidedError(words.format(unread, "" if unread == 1 else "es"))
        if self._record.get("hidden") is True:
            raise UndecidedError("processes of other users are hidden (hidepid of /proc): only root sees them")
        if more:
            raise UndecidedError("not every process was looked at: there are too many")
        return True

    @fact
    def dead_segments(self) -> int:
        """Segments of statistics that programs which ended have left."""
        dead = self._record.get("dead")
        words = "shared memory of programs that ended was not looked for"
        return collected(dead if isinstance(dead, int) else None, words)


def _counters(record: Dict[str, Any]) -> Union[Counters, str]:
    reason = record.get("reason", counters.NO_RECORD)
    reason_id = reason if isinstance(reason, str) and reason in counters.REASONS else counters.NO_RECORD
    result = counters.from_record(record.get("counters"))
    return reason_id if result is None else result


def _lists(rows: List[Any], length: int) -> List[List[Any]]:
    return [row for row in rows if isinstance(row, list) and len(row) == length]


def _files(rows: List[Any]) -> Tuple[OpenFile, ...]:
    kinds = [str, str, str, bool, str]
    return tuple(OpenFile(*row) for row in rows if isinstance(row, list) and list(map(type, row)) == kinds)


def _version(path: str, wheels: Any, inside: Any) -> str:
    """From the file's name, else from that of the wheel that installed it, else as it is ``inside`` the file."""
    deleted = path.endswith(DELETED)
    match = _VERSION.search(path[: -len(DELETED)] if deleted else path)
    if match:
        return match.group(1)
    for name in wheels if isinstance(wheels, list) and not deleted else ():
        wheel = WHEEL.fullmatch(str(name))
        if wheel and (wheel.group(1) == "_cu12") == (_CUDA12 in path):
            return wheel.group(2)
    if isinstance(inside, str) and re.fullmatch(r"\d+(\.\d+){1,3}", inside):
        return inside
    if deleted:
        raise UndecidedError(f"{path}: it was replaced while the program ran, and its name has no version")
    words = f"{path}: neither its name nor a package beside it has a version ({posixpath.basename(path)})"
    raise UndecidedError(words)
