"""What programs get: libcufile's variables, the configuration that they name, and what running ones have loaded.

Any user can name any file with CUFILE_ENV_PATH_JSON, and this program may be root.  So only what libcufile reads of a
configuration is recorded: the sections that it knows, of a regular file that is one.  Also whether libcufile accepts
its configuration, and gdscheck's report.

Of programs that have loaded libcufile: which library, which of its variables, configuration and counters.  Of their
environment only libcufile's variables are recorded.  A program in a container has its own files: they're read through
/proc/PID/root.  The environment is that of the program's start; a program may have changed it since.  Everything is
read from outside; see docs/watch.md.
"""

from __future__ import annotations

import errno
import glob
import os
import posixpath
import re
import stat
import tempfile
import time
from functools import lru_cache
from itertools import islice
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..facts.cufile import parse_config, without_comments
from ..facts.document import Document
from ..facts.environment import SECTIONS, VARIABLE, WHEEL, EnvironmentFacts, sets_variables
from ..io.reading import plain_name, whole
from ..libcufile import counters, probe
from ..libcufile.counters import Segment
from ..paths import (
    CGROUP,
    CONTAINER_FILES,
    CUFILE,
    CUFILE_OPEN,
    CUFILE_SONAME,
    ENROOT,
    GDSCHECK,
    LIBRARY_FOLDERS,
    LIBRARY_PATTERN,
    OWN_NAME,
    OWN_PARENTS,
    PROCESSES,
    VARIABLE_FILES,
    VARIABLE_FOLDERS,
    VARIABLE_NAMES,
)
from ..process import is_roots
from ..rootdir import inside, list_folder
from ..subjects.register import collector
from .recorder import FILE_LIMIT, EvidenceRequest, Recorder, matching_lines, read_all

#: As of /etc/cufile.json.
LIMIT = 256 * 1024


def record_configuration(recorder: Recorder, path: str, root: str = "/") -> str:
    """Record the configuration ``path`` as seen inside ``root`` once; returns its key in the section ``configs``."""
    key = path if root == "/" else root + path
    if key not in recorder.document["configs"]:
        recorder.value("configs", key, lambda place: read_configuration(place if root == "/" else inside(root, path)))
    return key


def read_configuration(path: str) -> Dict[str, Any]:
    """``config``: the known sections; or ``broken``: why every libcufile refuses the file.

    Raises OSError, and ValueError for a file that may be refused or not.
    """
    # A device isn't opened: that alone can have an effect.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it isn't a regular file")
    text = whole(path, LIMIT).decode("utf-8", "replace")
    try:
        value = parse_config(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if _is_refused(text, error):
            return {"broken": f"it isn't JSON: {error}"}
        raise ValueError(f"it may not be JSON: {error}") from None
    if value is None or value in ({}, []):
        return {"config": {}}
    if not isinstance(value, dict):
        return {"broken": "it isn't a JSON object"}
    config = {name: value[name] for name in SECTIONS if value.get(name) is not None}
    wrong = [name for name, section in config.items() if not isinstance(section, dict)]
    return {"broken": f"its section {wrong[0]} isn't an object"} if wrong else {"config": config}


def _is_refused(text: str, error: ValueError) -> bool:
    """Whether libcufile refuses a text for the reason for which Python does.

    It does for an empty or unclosed text, for one that begins with neither brace nor bracket, and for a comma before a
    closing one.  Otherwise it may accept it: its parser takes some numbers that Python's doesn't.
    """
    plain = without_comments(text).lstrip()
    rest = plain[getattr(error, "pos", 0) :]
    return plain[:1] not in ("{", "[") or not rest.strip() or re.match(r"[\s,]*[}\]]", rest) is not None


#: Words of container managers in the control group of the first process.
MANAGERS = r"docker|kubepods|containerd|libpod|crio|/lxc|enroot"
#: libcufile's variables in files.
VARIABLES = r"CUFILE_[A-Z]"


@collector("environment")
def collect_environment(recorder: Recorder, _request: EvidenceRequest) -> None:
    for path in CONTAINER_FILES:
        recorder.text(path)
    recorder.excerpt(CGROUP, MANAGERS)
    names = [name for name in os.environ if name.startswith(ENROOT) or name in VARIABLE_NAMES]
    own = {name: os.environ[name] for name in sorted(names)}
    recorder.document["environment"] = {**own, **relevant(os.environ)}
    for path in VARIABLE_FILES:
        recorder.excerpt(path, VARIABLES)
    for folder in VARIABLE_FOLDERS:
        for name in recorder.names(folder):
            if sets_variables(name):
                recorder.excerpt(folder + "/" + name, VARIABLES)
    for folder in OWN_PARENTS:
        recorder.names(folder, OWN_NAME)
    # A container may not have these of its host.
    recorder.names("/run/udev")
    recorder.names("/dev/infiniband")
    named = EnvironmentFacts(Document(recorder.document)).variables.get(VARIABLE)
    if named is not None and named.value.startswith("/"):
        record_configuration(recorder, named.value)


def relevant(environment: Mapping[str, str]) -> Dict[str, str]:
    """Libcufile's variables; any other may hold a secret."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith("CUFILE_")}


#: Debian's gds-tools, then NVIDIA's.
GDSCHECKS = ("/usr/libexec/gds/tools/gdscheck", "/usr/local/cuda*/gds/tools/gdscheck")
GDSCHECK_SECONDS = 30.0


@collector("programs")
def collect_programs(recorder: Recorder, request: EvidenceRequest) -> None:
    recorder.text(CUFILE, limit=256 * 1024)
    if request.cufile_path != CUFILE:
        recorder.text(request.cufile_path, limit=256 * 1024)
    for folder in LIBRARY_FOLDERS:
        for name in recorder.names(folder, LIBRARY_PATTERN):
            recorder.link(folder + "/" + name)
    paths = [path for pattern in GDSCHECKS for path in sorted(glob.glob(pattern))]
    recorder.document["listings"][GDSCHECK] = paths
    safe_paths = [path for path in paths if is_roots(path)]
    if safe_paths:
        _gdscheck(recorder, safe_paths[0])
    elif paths:
        recorder.gap(GDSCHECK, f"{paths[0]}: users other than root can replace it, so root doesn't run it")
    for path in probe.unsafe_libraries():
        recorder.gap(CUFILE_OPEN, f"{path}: users other than root can replace it, so root doesn't load it")
    ldconfig = recorder.document["commands"].get("ldconfig", {})
    if ldconfig.get("status") == 0 and not probe.is_anywhere(ldconfig["stdout"]):
        # A Python for nothing costs as much as a login.
        recorder.document["listings"][CUFILE_SONAME] = []
        return
    probe.probe(recorder.command, recorder.document["commands"], request.cufile_path)


def _gdscheck(recorder: Recorder, path: str) -> None:
    with tempfile.TemporaryDirectory(prefix="gdscheck-") as folder:
        log = os.path.join(folder, "cufile.log")
        # Only the log is redirected: this program doesn't write to its configured folder.
        argv = [*probe.without_cufile(), "CUFILE_LOGFILE_PATH=" + log, path, "-p"]
        recorder.command(GDSCHECK, argv, timeout=GDSCHECK_SECONDS, cwd=folder)
        recorder.document["commands"][GDSCHECK]["log"] = probe.tail(log, FILE_LIMIT)


#: Open files of one process that are looked at, and files that are recorded.
DESCRIPTORS_LIMIT, FILES_LIMIT = 8192, 16
#: Seconds by which the times of a process and of its segment may differ without meaning anything.
TOLERANCE = 2.0
#: Of linux/time.h; Python has it from 3.7 on.
_CLOCK_BOOTTIME = 7
NVIDIA_FS = "/dev/nvidia-fs"
#: Descriptors of standard input, output and error.
STANDARD = frozenset(("0", "1", "2"))
#: Bytes of the list of segments; the usual limit of 4,096 segments has 800 KiB.
SEGMENTS_LIMIT = 16 << 20
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
    with open(folder + "/stat", "rb") as file:
        # Its name may have spaces and parentheses.
        fields = read_all(file, 4096).rpartition(b")")[2].split()
    if len(fields) < 20:
        raise ValueError("it has no start time")
    return Identity(pid, int(fields[19]))


def age(process: Identity) -> float:
    """Seconds since its start."""
    with open("/proc/uptime", "rb") as file:
        return float(file.read(64).split()[0]) - process.start / _ticks()


def inside_pid(folder: str) -> int:
    """The process id in the process's own namespace, which is the key of its statistics."""
    with open(folder + "/status", "rb") as file:
        lines = read_all(file, 65536).split(b"\n")
    (line,) = [line for line in lines if line.startswith(b"NSpid:")]
    return int(line.split()[-1])


def statistics(folder: str, process: Identity, mapped: Sequence[Tuple[int, int]]) -> Dict[str, Any]:
    """``{"counters": …}``, or ``{"reason": an id of route.REASONS}``.

    mapped: (key, id) of each segment that the process has mapped.
    """
    try:
        key = inside_pid(folder)
        ids = [number for at, number in mapped if at == key]
        begin = _boot_time() + process.start / _ticks()
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
    """``nvidia_fs``: whether it has nvidia-fs open; None: not known.  ``files``: those that cuFile may have registered.

    libcufile opens a registered file by its name once more, so these are open at least twice: [path, mount point,
    filesystem, whether one of both is for direct I/O].  One that is only standard input, output or error isn't listed.
    """
    try:
        with os.scandir(folder + "/fd") as entries:
            names = [entry.name for entry in islice(entries, DESCRIPTORS_LIMIT + 1)]
    except OSError:
        return {"nvidia_fs": None, "files": []}
    targets: Dict[str, List[str]] = {}
    for name in names[:DESCRIPTORS_LIMIT]:
        try:
            targets.setdefault(os.readlink(f"{folder}/fd/{name}"), []).append(name)
        except OSError:
            continue
    is_open = any(target.startswith(NVIDIA_FS) for target in targets)
    twice = [
        path
        for path, numbers in targets.items()
        if len(numbers) > 1 and not STANDARD.issuperset(numbers) and _may_be_data(path)
    ]
    mounts = _mounts(folder) if twice else {}
    rows = [[path, *_mount(folder, targets[path], mounts)] for path in sorted(twice)[:FILES_LIMIT]]
    complete = is_open or len(names) <= DESCRIPTORS_LIMIT
    return {"nvidia_fs": is_open if complete else None, "files": [row for row in rows if row[1]]}


def _may_be_data(path: str) -> bool:
    return path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/"))


def _mounts(folder: str) -> Dict[str, Tuple[str, str]]:
    """Id of each mount that the process sees → (mount point, filesystem)."""
    try:
        with open(folder + "/mountinfo", "rb") as file:
            text = read_all(file, 4 << 20).decode("utf-8", "replace")
    except OSError:
        return {}
    rows = [(left.split(), right.split()) for left, _, right in (line.partition(" - ") for line in text.split("\n"))]
    return {left[0]: (plain_name(left[4]), right[0]) for left, right in rows if len(left) > 4 and right}


def _mount(folder: str, descriptors: Sequence[str], mounts: Dict[str, Tuple[str, str]]) -> List[Any]:
    """[mount point, filesystem, whether one descriptor is for direct I/O]"""
    point, direct = ("", ""), False
    for name in descriptors[:FILES_LIMIT]:
        try:
            with open(f"{folder}/fdinfo/{name}", "rb") as file:
                words = dict(line.split(None, 1) for line in read_all(file, 4096).split(b"\n")[:8] if b"\t" in line)
            flags = int(words.get(b"flags:", b"0"), 8)
        except (OSError, ValueError):
            continue
        direct = direct or bool(flags & os.O_DIRECT)
        point = mounts.get(words.get(b"mnt_id:", b"").decode().strip(), point)
    return [*point, direct]


def dead_segments() -> List[Segment]:
    """Statistics that processes which ended have left in this namespace of IPC; raises OSError.

    No process has the id of the creator, which is also the key, and none has mapped it.
    """
    with open("/proc/sysvipc/shm", "rb") as file:
        text = read_all(file, SEGMENTS_LIMIT).decode("ascii", "replace")
    return [segment for segment in counters.listed(text) if _is_dead(segment)]


def collect_statistics() -> int:
    """Remove them; returns their number.  Raises OSError, also for one of another user."""
    number = 0
    for segment in dead_segments():
        # Its id may be another segment's by now.
        if _is_dead(counters.stat(segment.id)):
            counters.remove(segment.id)
            number += 1
    return number


def _is_dead(segment: Segment) -> bool:
    if segment.size not in counters.sizes() or segment.key != segment.creator or segment.key < 1 or segment.attached:
        return False
    try:
        os.kill(segment.creator, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


@lru_cache(maxsize=1)
def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


def _boot_time() -> float:
    """When this kernel started, in seconds since 1970, by the clock as it is now."""
    return time.time() - time.clock_gettime(_CLOCK_BOOTTIME)


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


@collector("processes")
def collect_processes(recorder: Recorder, _request: EvidenceRequest) -> None:
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
        program["base"] = CUFILE if shared else _as_its_user(folder, recorder, CUFILE, root)
        pairs = (entry.partition("=") for entry in _read(folder + "/environ", ENVIRONMENT_LIMIT).split("\0"))
        variables = relevant({name: value for name, _, value in pairs})
        program["variables"] = variables
        if variables.get(VARIABLE):
            path = variables[VARIABLE]
            if not path.startswith("/") and shared:
                path = posixpath.join(os.readlink(folder + "/cwd"), path)
            if path.startswith("/"):
                program["config"] = _as_its_user(folder, recorder, path, root)
    except OSError as error:
        program["error"] = f"{type(error).__name__}: {error.strerror}"
    return program


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
