"""Running programs that have loaded libcufile, and the configuration that each has."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple, Union

from ..libcufile import counters
from ..libcufile.counters import Counters
from ..paths import CUFILE, PROCESSES
from .cufile import CufileFacts
from .document import Document
from .environment import VARIABLE, WHEEL, Overlay, Variable, merged, overlay
from .unknown import Maybe, Unknown, all_known, if_present

_VERSION = re.compile(r"libcufile\.so\.(\d+\.\d+\S*)$")
#: The wheel for CUDA 12 has its library here, each later one elsewhere.
_CUDA12 = "/nvidia/cufile/lib/"
DELETED = " (deleted)"
_NOT_RECORDED = Unknown("its open files were not recorded")


class OpenFile(NamedTuple):
    """A file that is open at least twice, as one that cuFile has registered."""

    path: str
    mount: str
    filesystem: str
    #: whether it is open for direct I/O
    direct: bool


@dataclass(frozen=True)
class Program:
    """A process, as it was when the evidence was collected."""

    pid: int
    #: as in /proc/PID/comm: at most 15 characters
    name: str
    #: its control group, which names its unit, container or job
    unit: str
    #: whether its files are others than this host's, as in a container
    container: Maybe[bool]
    #: file of each libcufile → its version
    libraries: Mapping[str, Maybe[str]]
    #: libcufile's variables, as the program was started
    variables: Maybe[Mapping[str, str]]
    #: the path and the content of its /etc/cufile.json; None: there is none
    base_path: str
    base: Maybe[Optional[Mapping[str, Any]]]
    overlay: Maybe[Optional[Overlay]]
    #: when it started, in clock ticks after the boot; -1: not recorded
    start: int = -1
    #: what it has counted, or why that isn't known: an id of libcufile/route.py
    counters: Union[Counters, str] = counters.NO_RECORD
    #: whether it has nvidia-fs open, without which its I/O can't take it
    nvidia_fs: Maybe[bool] = _NOT_RECORDED
    files: Tuple[OpenFile, ...] = ()
    #: when its counters were read, in seconds of the host's monotonic clock
    at: float = 0.0

    @property
    def level(self) -> Maybe[Optional[int]]:
        """profile.cufile_stats of the configuration that it reads; None: not there, or not a number from 0 to 3."""
        both = all_known([self.base, self.overlay])
        if isinstance(both, Unknown):
            return both
        base, over = self.base, self.overlay
        config = merged(base if isinstance(base, Mapping) else None, over.config if isinstance(over, Overlay) else {})
        profile = config.get("profile")
        level = profile.get("cufile_stats") if isinstance(profile, dict) else None
        return level if isinstance(level, int) and not isinstance(level, bool) and 0 <= level <= 3 else None

    @property
    def label(self) -> str:
        unit = f" of {self.unit}" if self.unit not in ("", "/") else ""
        return f"process {self.pid} ({self.name or 'no name'}){unit}"


@dataclass(frozen=True)
class ProcessFacts:
    programs: Maybe[Tuple[Program, ...]]
    #: whether every process of the host was looked at
    complete: Maybe[bool]
    #: segments of statistics that programs which ended have left
    dead_segments: Maybe[int]


def process_facts(document: Document, cufile: CufileFacts) -> ProcessFacts:
    record = document.record("processes", PROCESSES)
    rows = record.get("programs") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        unknown = document.not_collected("running programs were", "processes")
        if PROCESSES in document.paths("processes"):
            unknown = Unknown("the record of running programs is malformed")
        return ProcessFacts(unknown, unknown, unknown)
    dead = record.get("dead")
    return ProcessFacts(
        tuple(_program(document, cufile, row) for row in rows),
        _complete(record),
        dead if isinstance(dead, int) else Unknown("shared memory of programs that ended was not looked for"),
    )


def _complete(record: Mapping[str, Any]) -> Maybe[bool]:
    unread, more = record.get("unread"), record.get("more")
    if not isinstance(unread, int) or not isinstance(more, bool):
        return Unknown("the record of running programs is malformed")
    if unread:
        return Unknown("{} process{} could not be read: permission denied".format(unread, "" if unread == 1 else "es"))
    return Unknown("not every process was looked at: there are too many") if more else True


def _program(document: Document, cufile: CufileFacts, row: Dict[str, Any]) -> Program:
    pid, base = row.get("pid"), _text(row.get("base"))
    libraries, wheels = row.get("libraries"), row.get("wheels")
    paths = [path for path in libraries if isinstance(path, str)] if isinstance(libraries, list) else []
    container = row.get("container")
    start, is_open, statistics = row.get("start"), row.get("nvidia_fs"), row.get("statistics")
    at = statistics.get("at") if isinstance(statistics, dict) else None
    unread = Unknown("{} of process {}".format(_text(row.get("error")) or "no record", pid))
    variables = _variables(row.get("variables"))
    return Program(
        pid=pid if isinstance(pid, int) else 0,
        name=_text(row.get("program")),
        unit=_text(row.get("unit")),
        container=container if isinstance(container, bool) else unread,
        libraries={path: _version(path, _of(wheels, path), _of(row.get("releases"), path)) for path in paths},
        variables=unread if variables is None else variables,
        base_path=base or CUFILE,
        base=cufile.config if base == CUFILE else _base(document, base) if base else unread,
        overlay=unread if variables is None else _overlay(document, row, variables),
        start=start if isinstance(start, int) else -1,
        counters=_counters(statistics),
        at=float(at) if isinstance(at, (int, float)) else 0.0,
        nvidia_fs=is_open if isinstance(is_open, bool) else _NOT_RECORDED,
        files=_files(row.get("files")),
    )


def _counters(record: Any) -> Union[Counters, str]:
    record = record if isinstance(record, dict) else {}
    reason = record.get("reason", counters.NO_RECORD)
    reason_id = reason if isinstance(reason, str) and reason in counters.REASONS else counters.NO_RECORD
    result = counters.from_record(record.get("counters"))
    return reason_id if result is None else result


def _files(rows: Any) -> Tuple[OpenFile, ...]:
    kinds = (str, str, str, bool)
    whole = [row for row in rows if isinstance(row, list) and len(row) == 4] if isinstance(rows, list) else []
    return tuple(OpenFile(*row) for row in whole if all(isinstance(part, kind) for part, kind in zip(row, kinds)))


def _variables(value: Any) -> Optional[Dict[str, str]]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        return None
    return {str(name): text for name, text in value.items()}


def _base(document: Document, key: str) -> Maybe[Optional[Mapping[str, Any]]]:
    """The /etc/cufile.json of a container."""

    def read(record: Dict[str, Any]) -> Maybe[Mapping[str, Any]]:
        config = record.get("config")
        return config if isinstance(config, dict) else Unknown("{}: {}".format(key, record.get("broken", "malformed")))

    return if_present(document.record("configs", key), read)


def _overlay(document: Document, row: Mapping[str, Any], variables: Mapping[str, str]) -> Maybe[Optional[Overlay]]:
    named, key = variables.get(VARIABLE, ""), _text(row.get("config"))
    if not named:
        return None
    if not key:
        return Unknown(f"{VARIABLE}={named} names a file in a folder of another container")
    place = "the environment of process {}".format(row.get("pid"))
    return overlay(document, key, Variable(VARIABLE, named, place, f"{VARIABLE}={named}"))


def _version(path: str, wheels: Any, inside: Any) -> Maybe[str]:
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
        return Unknown(f"{path}: it was replaced while the program ran, and its name has no version")
    return Unknown(f"{path}: neither its name nor a package beside it has a version ({posixpath.basename(path)})")


def _of(values: Any, key: str) -> Any:
    return values.get(key) if isinstance(values, dict) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
