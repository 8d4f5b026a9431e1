"""Running programs: what keeps the I/O of each off a direct path, by its own configuration, variables and libraries.

The counters of a process are all since it opened cuFile.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple, Union

from ..facts.unknown import Maybe, UndecidedError, Unknown, as_dict, if_known, known, or_else, require
from ..libcufile.counters import MAPPED, NO_LIBRARY, NOT_COUNTED, REASONS, Route
from ..model.expectation import Expectation
from . import clients, cufile_json, mechanisms
from .condition import Cause, Condition, distinct, listed_cause, weigh
from .cufile_json import VARIABLE
from .environment import Variable
from .modules import loaded
from .path import path_of
from .processes import OpenFile, Program
from .rdma import CLIENTS
from .register import Answer, capitalized, check, failed, not_applicable, passed
from .storage import Mount
from .syscalls import Opened
from .types import HostFacts

#: Variables that choose no path; VARIABLE's file is compared instead of its name.
NEUTRAL = (VARIABLE, "CUFILE_LOGFILE_PATH", "CUFILE_LOGGING_LEVEL", "CUFILE_LOGFILE_MAX_SIZE_MB", "CUFILE_STATS_LEVEL")


#: Open files of a process that one cause names.
FILES_NAMED = 4


class ExplainedProgram(NamedTuple):
    """``causes`` keep its I/O off every direct path, or make it fail; ``unseen`` is what couldn't be judged."""

    program: Program
    #: whether its configuration differs from the default one
    differs: Maybe[bool]
    causes: Tuple[Cause, ...]
    unseen: Tuple[str, ...]


def programs(facts: HostFacts, mounts: Sequence[Mount] = ()) -> Tuple[ExplainedProgram, ...]:
    """Every program that has loaded libcufile.  mounts: those for which its denylist is judged.

    Raises UndecidedError where the programs aren't known.
    """
    return tuple(explain_program(facts, mounts, program) for program in facts.processes.programs)


def explain_program(facts: HostFacts, mounts: Sequence[Mount], program: Program) -> ExplainedProgram:
    """One program.  mounts: those for which its denylist is judged."""
    own = _facts_of(facts, program)
    conditions: List[Condition] = [*cufile_json.overlay_usable(own), *cufile_json.direct(own, None)]
    for mount in mounts:
        conditions += cufile_json.direct(own, mount)
        client = CLIENTS.get(mount.filesystem)
        # Where the program has the host's own choice, the mount's path has the cause.
        if client and not client.hooks and _peer_type(own) != _peer_type(facts):
            conditions += mechanisms.memory(own)
    verdict = weigh(conditions)
    differs = known(lambda: _differs(facts, own))
    return ExplainedProgram(program, differs, distinct(verdict.causes), verdict.unseen)


def _peer_type(facts: HostFacts) -> Maybe[str]:
    return known(lambda: mechanisms.peer_type(facts))


def _facts_of(facts: HostFacts, program: Program) -> HostFacts:
    """The host's facts with the configuration and the variables of the program."""
    base, over, named = (known(partial(getattr, program, name)) for name in ("base", "overlay", "variables"))
    place = f"the environment of process {program.pid}"
    variables = {name: Variable(name, value, place, f"{name}={value}") for name, value in or_else(named, {}).items()}
    complete = named if isinstance(named, Unknown) else True
    return facts.but(
        cufile=facts.cufile.but(config=base, overlay=over, path=program.base_path),
        environment=facts.environment.but(variables=variables, complete=complete),
    )


def _differs(facts: HostFacts, own: HostFacts) -> bool:
    default, mine = facts.cufile.merged, own.cufile.merged
    # Both are true, or raise.
    is_whole = own.environment.complete and facts.environment.complete
    return is_whole and (default != mine or _counting(own) != _counting(facts))


def _counting(facts: HostFacts) -> Dict[str, str]:
    return {name: variable.value for name, variable in facts.environment.variables.items() if _counts(name)}


def _counts(name: str) -> bool:
    return name.startswith("CUFILE_") and name not in NEUTRAL


def is_listed(explained: ExplainedProgram) -> bool:
    """Whether an explanation shows it: it differs, or that is unknown."""
    return bool(explained.causes) or explained.differs is not False


def configuration(program: Program) -> str:
    """The files of its configuration and the variables over them, in words."""
    over = known(lambda: program.overlay)
    more = [f"({over.reason})"] if isinstance(over, Unknown) else [over.path] if over else []
    variables = if_known(lambda: program.variables, {})
    more += [f"{name}={value}" for name, value in variables.items() if _counts(name)]
    return program.base_path + (" with " + ", ".join(more) if more else "")


def versions(program: Program) -> List[str]:
    """Each libcufile that it has loaded: its file, and its version where that is known."""
    shown = {path: or_else(version, "") for path, version in program.libraries.items()}
    return [f"{path} ({version})" if version else path for path, version in shown.items()]


def as_row(explained: ExplainedProgram) -> Dict[str, Any]:
    """As JSON values; see docs/explain.md."""
    program = explained.program
    return {
        **_about(program),
        "container": if_known(lambda: program.container, None),
        "differs": or_else(explained.differs, None),
        "causes": as_dict(explained.causes),
        "unseen": list(explained.unseen),
    }


def _about(program: Program) -> Dict[str, Any]:
    return {
        "pid": program.pid,
        "program": program.name,
        "unit": program.unit,
        "libcufile": {path: or_else(version, None) for path, version in program.libraries.items()},
        "configuration": configuration(program),
    }


class NoSuchProcessError(Exception):
    """No process of that id has a GPU open or libcufile loaded, as far as the evidence shows."""


class ExplainedProcess(NamedTuple):
    """``causes`` keep its I/O off a direct path, or may; the first ones are of the process itself."""

    program: Program
    route: Route
    causes: Tuple[Cause, ...]
    #: path of each of its files on a mount of this host, as the host allows it
    files: Tuple[Tuple[str, str], ...]
    unseen: Tuple[str, ...]


def explain_process(facts: HostFacts, pid: int) -> ExplainedProcess:
    """Explain the process; raises NoSuchProcessError."""
    running = known(lambda: facts.processes.every)
    if isinstance(running, Unknown):
        raise NoSuchProcessError(f"running programs are not known: {running.reason}")
    for program in running:
        if program.pid == pid:
            return _explain(facts, program)
    pids = ", ".join(str(program.pid) for program in running) or "none"
    raise NoSuchProcessError(
        f"no process {pid} was seen that has a GPU open or libcufile loaded; it may have ended, or may be readable"
        f" for root only (seen: {pids})"
    )


def mounts_at(facts: HostFacts, paths: Iterable[str]) -> List[Mount]:
    """The mounts that the paths lie on, where that is known."""
    mounts = [if_known(partial(facts.storage.mount_of, path), None) for path in paths]
    return [mount for mount in mounts if mount is not None]


def _explain(facts: HostFacts, program: Program) -> ExplainedProcess:
    registered = {file.path for file in program.files}
    others = {file.path: file for file in (program.io.files if program.io else ()) if file.path not in registered}
    files: Tuple[Union[OpenFile, Opened], ...] = (*program.files, *others.values())
    at = {file: if_known(partial(program.mount_of, file, facts.storage), None) for file in files}
    mounts = {mount.mount_point: mount for mount in at.values() if mount is not None}
    own = explain_program(facts, tuple(mounts.values()), program)
    if program.counters == NO_LIBRARY:
        # No configuration of cuFile counts for it.
        own = own._replace(causes=(), unseen=())
    paths = {point: path_of(facts, mount) for point, mount in mounts.items()}
    of_mounts = [cause for path in paths.values() for cause in (*path.causes, *path.suspects)]
    way = program.way()
    causes = [*_own(facts, program, way), *own.causes, *of_mounts]
    allowed = []
    for file, mount in at.items():
        path = None if mount is None else paths[mount.mount_point]
        allowed.append((file.path, "not judged" if path is None else or_else(path.path, "not proven")))
    return ExplainedProcess(program, way, distinct(causes), tuple(allowed), own.unseen)


def _own(facts: HostFacts, program: Program, way: Route) -> Iterator[Cause]:
    label = f"/proc/{program.pid}"
    yield from _bounces(program, way)
    # Without the module the mount's own path says so.
    is_loaded = if_known(lambda: "nvidia_fs" in facts.kernel.modules, True)
    if program.libraries and is_loaded and not if_known(lambda: program.nvidia_fs, True):
        cause = listed_cause("process.no-nvidia-fs", (f"{label}/fd: no /dev/nvidia-fs*",))
        # A process can't open what isn't there.
        yield loaded(facts, facts.nvidia_fs.module).cause or cause
    release = if_known(lambda: facts.cufile.library, None)
    if release is not None:
        yield from _other_libraries(program, release, "the host's")
    if way.unaligned:
        yield listed_cause("process.unaligned", (f"{label}: statistics of libcufile",), number=str(way.unaligned))
    if way.path == NOT_COUNTED:
        why, fix = REASONS[way.reason]
        evidence = (f"{label}: {way.reason}",)
        yield Cause("process.not-counted", f"which path it takes isn't counted: {why}", fix, evidence)


def _bounces(program: Program, way: Route) -> Iterator[Cause]:
    """Bytes by system calls, and files that are mapped."""
    if not way.beside and way.path != MAPPED:
        return
    why, fix = clients.words(way.path, clients.fallback(program), bool(program.libraries))
    about = "" if way.exact else "about "
    speed = way.beside_bytes / way.seconds / (1 << 20) if way.beside else 0.0
    rate = f"{about}{speed:.0f} MiB/s go through CPU memory: " if way.beside else ""
    seen = [f"/proc/{program.pid}/io: {way.beside_bytes} bytes in {way.seconds:.1f} seconds"] if way.beside else []
    files = [file.path for file in program.io.files] if program.io else []
    seen += [f"/proc/{program.pid}/fd: {path}" for path in dict.fromkeys(files)][:FILES_NAMED]
    yield Cause("process.bounces", rate + why, fix, tuple(seen))


class Bouncing(NamedTuple):
    """A process whose bytes go through the memory of the host now; ``cause`` says why, and what to do."""

    program: Program
    #: ``rate(bounced)``: bytes per second
    route: Route
    cause: Cause


def bouncing(facts: HostFacts) -> Tuple[Bouncing, ...]:
    """Processes that moved bytes by system calls while the evidence was collected, those that move most first.

    It needs no expectation.  Empty where processes aren't known: ``facts.processes.complete`` says whether all are.
    """
    running = [(program, program.way()) for program in if_known(lambda: facts.processes.every, ())]
    rows = [Bouncing(each, way, cause) for each, way in running if way.beside for cause in _bounces(each, way)]
    return tuple(sorted(rows, key=lambda row: -(row.route.rate(row.route.beside_bytes) or 0.0)))


def _other_libraries(program: Program, release: str, whose: str) -> Iterator[Cause]:
    """Copies of its own that aren't this release; versions of three or four numbers are compared by what both have."""
    for path, version in program.libraries.items():
        mine, other = f"{version}.", f"{release}."
        if not isinstance(version, Unknown) and not (mine.startswith(other) or other.startswith(mine)):
            values = {"version": version, "whose": whose, "release": release}
            yield listed_cause("process.own-libcufile", (f"/proc/{program.pid}/maps: {path}",), **values)


def process_document(explained: ExplainedProcess) -> Dict[str, Any]:
    """As JSON values; see docs/explain.md."""
    program, way = explained.program, explained.route
    return {
        "version": 1,
        **_about(program),
        "path": way.path,
        "reason": way.reason,
        "operations": dict(way.operations),
        "beside": way.beside,
        "beside_bytes": way.beside_bytes,
        "read_bytes": way.read,
        "written_bytes": way.written,
        "bounced_bytes": way.bounced,
        "files": [{"path": path, "mount_path": name} for path, name in explained.files],
        "causes": as_dict(explained.causes),
        "unseen": list(explained.unseen),
    }


#: Segments of programs that ended which are no problem yet; the kernel has room for 4,096 by default.
DEAD_SEGMENTS = 1000


@check(
    "cufile.processes",
    "no running program's own configuration keeps it off the direct path",
    expects="running programs with libcufile have no configuration or variable that forces compat mode",
    prevents="jobs that go through CPU memory on a healthy host, because of their own cufile.json or variable",
    unknown_hint="Run this as root: it reads /proc/PID/maps and environ, and the file that the environment names",
)
def running(facts: HostFacts, expectation: Expectation) -> Answer:
    if expectation.mode == "compat":
        return not_applicable("not asked: the mode is compat")
    points = [str(entry["mount"]) for entry in expectation.storage]
    explained = programs(facts, mounts_at(facts, points))
    causes = [(each.program.label, cause) for each in explained for cause in each.causes]
    if causes:
        lines = [f"{label}: {cause.what}" for label, cause in causes]
        quotes = [line for _, cause in causes for line in cause.evidence]
        hint = "See each program's configuration: gdsdeploy explain HOST. Correct the file, and start the program again"
        return failed("; ".join(lines), hint, [*lines, *quotes])
    for point in points if explained else []:
        facts.storage.mount_of(point)  # where it isn't known, a program's denylist may name it
    for each in explained:
        if each.unseen:
            raise UndecidedError(f"{each.program.label}: {each.unseen[0]}")
    bounces = [f"{each.program.label}: {each.cause.what}" for each in bouncing(facts)]
    differing = [f"{each.program.label}: {configuration(each.program)}" for each in explained if each.differs is True]
    also = f"; {len(bounces)} with bytes through CPU memory: {bounces[0]}" if bounces else ""
    words = f"; {len(differing)} with another configuration{also}"
    return _of_all(facts, words, [*differing, *bounces], also)


def _of_all(facts: HostFacts, words: str, evidence: Sequence[str] = (), also: str = "") -> Answer:
    """The answer where no program that was looked at speaks against it.  also: words where none has libcufile."""
    number = len(facts.processes.programs)
    if not facts.processes.complete or not number:
        return not_applicable(f"no running program uses libcufile{also}")
    return passed(f"{number} programs{words}", evidence)


@check(
    "cufile.bundled",
    "running programs have loaded the locked libcufile",
    expects="libcufile {libcufile_version} in every program that uses it",
    prevents="a libcufile from a Python package or an image, which reads the configuration differently",
    unknown_hint="Run this as root: it reads /proc/PID/maps",
)
def bundled(facts: HostFacts, expectation: Expectation) -> Answer:
    programs = facts.processes.programs
    others = [
        (f"{program.label}: {cause.what}", cause)
        for program in programs
        for cause in _other_libraries(program, expectation.libcufile_version, "the locked one")
    ]
    if others:
        lines = [line for line, _ in others]
        quotes = [line for _, cause in others for line in cause.evidence]
        return failed("; ".join(lines), capitalized(others[0][1].fix), [*lines, *quotes])
    for program in programs:
        for version in program.libraries.values():
            require(version)
    return _of_all(facts, ", each with the locked one")


@check(
    "cufile.statistics",
    "programs with libcufile keep statistics that gdsdeploy watch can read, if the fleet asks for them",
    expects="profile.cufile_stats is 0 or 3 in {cufile_path}, and few programs have left their statistics behind",
    prevents="jobs whose path can't be seen from outside, and dead shared memory that later programs stumble over",
    unknown_hint="Run this as root: it reads /proc/PID/maps and /proc/sysvipc/shm",
)
def statistics(facts: HostFacts, _expectation: Expectation) -> Answer:
    level = facts.cufile.setting("profile", "cufile_stats", 0)
    if level in (1, 2):
        return failed(
            f"profile.cufile_stats is {level}, which has no paths, and from 1.16 on nothing for other processes",
            "Set cufile_stats: 3 in the profile of the fleet file, or 0, and provision again",
        )
    dead = facts.processes.dead_segments
    if dead > DEAD_SEGMENTS:
        words = f"{dead} segments of shared memory are left of programs that ended"
        return failed(words, "Remove them on the host: gdsdeploy-host.pyz watch --collect")
    if level != 3:
        return passed("off")
    programs = facts.processes.programs
    silent = [f"{each.label}: {REASONS[each.counters][0]}" for each in programs if isinstance(each.counters, str)]
    return passed(f"{len(programs)} programs, {len(silent)} without; {dead} left of programs that ended", silent)
