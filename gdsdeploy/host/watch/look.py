"""Looks at this host's processes, again and again, and says what each belongs to: a job, a pod, a container, a unit."""

from __future__ import annotations

import re
import time
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..evidence.recorder import Recorder
from ..facts.document import Document
from ..facts.unknown import Unknown, if_known, known
from ..io.wording import line
from ..libcufile.counters import Counters, Route
from ..paths import CUFILE
from ..rootdir import list_folder
from ..subjects import processes
from ..subjects.cufile_json import CufileFacts
from ..subjects.processes import Before, ProcessFacts, Program, Scan

#: kubelet's folder for each pod is NAMESPACE_NAME_UID.
_POD_LOGS = "/var/log/pods"
JOB, POD, CONTAINER, UNIT, NONE = "job", "pod", "container", "unit", ""
#: Kind → what its part of the path looks like; the first kind that matches counts.
_PATTERNS = (
    (JOB, processes.JOB),
    (POD, re.compile(r"/(?:kubepods[^/]*-)?pod([0-9a-f]{8}[-_0-9a-f]{24,28})(?:\.slice)?(?=/|$)")),
    (CONTAINER, re.compile(r"(?:/|docker-|libpod-|crio-|containerd-|nerdctl-)([0-9a-f]{64})(?:\.scope)?(?=/|$)")),
    (CONTAINER, re.compile(r"/lxc(?:\.payload)?[./]([\w.-]{1,64})(?=/|$)")),
    (UNIT, re.compile(r".*/([^/]+\.(?:service|scope))(?=/|$)")),
)


class Owner(NamedTuple):
    """``name``: the number of a Slurm job, a pod's UID, 12 characters of a container's id, or a unit's name."""

    kind: str
    name: str


def owner(cgroup: str) -> Owner:
    """The innermost unit, unless a job, a pod or a container is around it."""
    for kind, pattern in _PATTERNS:
        match = pattern.search(cgroup)
        if match:
            name = match.group(1)
            return Owner(kind, name[:12] if kind == CONTAINER else name.replace("_", "-") if kind == POD else name)
    return Owner(NONE, "")


def pods() -> Dict[str, str]:
    """UID of each pod of this host → ``namespace/name``, from the folders in which kubelet keeps its logs."""
    parts = [name.split("_") for name in list_folder("/", _POD_LOGS)]
    return {row[2]: f"{row[0]}/{row[1]}" for row in parts if len(row) == 3}


def named(whose: Owner, names: Mapping[str, str]) -> Owner:
    """In one line, and with the name of a pod in place of its UID, where it's known."""
    return whose._replace(name=line(names.get(whose.name, whose.name) if whose.kind == POD else whose.name))


#: Most processes with a GPU or libcufile that are shown, and seconds for one look at all processes.
PROGRAMS, SECONDS = 500, 30.0


class Entry(NamedTuple):
    """A process and the way of its I/O."""

    program: Program
    route: Route


class Look(NamedTuple):
    """What one look found."""

    #: seconds since 1970
    at: float
    programs: Tuple[Entry, ...]
    #: why processes may be missing; None: all were looked at
    incomplete: Optional[str]
    #: segments of statistics that programs which ended have left; None: not known
    dead: Optional[int]


class Watcher:
    """Remembers what each process had counted and moved when it was looked at last.

    counters_alone: whether all else about a process that is counted may be a minute old.
    """

    def __init__(self, programs: int = PROGRAMS, *, counters_alone: bool = False) -> None:
        self._scan = Scan(programs, SECONDS, counters_alone=counters_alone)
        self._before: Dict[Tuple[int, int], Before] = {}

    def look(self) -> Look:
        """All processes with a GPU or libcufile, those that bounce most first."""
        recorder = Recorder()
        recorder.text(CUFILE)
        recorder.attempt("processes", lambda: self._scan.look(recorder), 2 * SECONDS)
        document = Document(recorder.finish())
        facts = ProcessFacts(document, CufileFacts(document))
        programs = if_known(lambda: facts.every, ())
        before, self._before = self._before, {}
        entries: List[Entry] = []
        for program in programs:
            key = (program.pid, program.start)
            counted = program.counters if isinstance(program.counters, Counters) else None
            self._before[key] = Before(program.at, counted, program.io)
            entries.append(Entry(program, program.way(before.get(key))))
        gaps = [gap["reason"] for gap in recorder.document["gaps"]]
        complete = known(lambda: facts.complete)
        missing = complete.reason if isinstance(complete, Unknown) else next(iter(gaps), None)
        dead = if_known(lambda: facts.dead_segments, None)
        return Look(time.time(), tuple(sorted(entries, key=_rank)), missing, dead)


def _rank(entry: Entry) -> Tuple[float, float, int]:
    result = entry.route
    return -(result.rate(result.bounced) or 0.0), -float(result.bounced), entry.program.pid
