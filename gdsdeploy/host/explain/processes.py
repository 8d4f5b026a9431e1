"""Running programs whose libcufile has another configuration than programs of this host have by default.

Why one running process bounces: what it has counted, its library, its configuration, its files.  Pure.

``gdsdeploy explain HOST PID`` prints it.  The counters are all since the process opened cuFile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from ..facts import HostFacts, Maybe, Unknown, as_dict
from ..facts.environment import VARIABLE, Overlay, Variable
from ..facts.processes import Program
from ..facts.storage import Mount
from ..facts.unknown import all_known, if_known, when_known
from ..libcufile.counters import NOT_COUNTED, REASONS, Observed, Route, route
from . import config, mechanisms, reference
from .cause import Cause, Condition, distinct, weigh
from .path import path_of

#: Variables that choose no path; VARIABLE's file is compared instead of its name.
NEUTRAL = (VARIABLE, "CUFILE_LOGFILE_PATH", "CUFILE_LOGGING_LEVEL", "CUFILE_LOGFILE_MAX_SIZE_MB", "CUFILE_STATS_LEVEL")


@dataclass(frozen=True)
class ExplainedProgram:
    """``causes`` keep its I/O off every direct path, or make it fail; ``unseen`` is what couldn't be judged."""

    program: Program
    #: whether its configuration differs from the default one
    differs: Maybe[bool]
    causes: Tuple[Cause, ...]
    unseen: Tuple[str, ...]


def programs(facts: HostFacts, mounts: Sequence[Mount] = ()) -> Maybe[Tuple[ExplainedProgram, ...]]:
    """Every program that has loaded libcufile.  mounts: those for which its denylist is judged."""
    return when_known(
        facts.processes.programs, lambda running: tuple(explain_program(facts, mounts, program) for program in running)
    )


def explain_program(facts: HostFacts, mounts: Sequence[Mount], program: Program) -> ExplainedProgram:
    """One program.  mounts: those for which its denylist is judged."""
    own = _facts_of(facts, program)
    conditions: List[Condition] = [*config.overlay_usable(own), *config.direct(own, None)]
    for mount in mounts:
        conditions += config.direct(own, mount)
        client = mechanisms.CLIENTS.get(mount.filesystem)
        # Where the program has the host's own choice, the mount's path has the cause.
        if client and not client.hooks and mechanisms.peer_type(own) != mechanisms.peer_type(facts):
            conditions += mechanisms.memory(own)
    verdict = weigh(conditions)
    return ExplainedProgram(program, _differs(facts, own, program), distinct(verdict.causes), verdict.unseen)


def _facts_of(facts: HostFacts, program: Program) -> HostFacts:
    """The host's facts with the configuration and the variables of the program."""
    cufile = replace(facts.cufile, config=program.base, overlay=program.overlay, path=program.base_path)
    if isinstance(program.variables, Unknown):
        environment = replace(facts.environment, variables={}, complete=program.variables)
    else:
        place = f"the environment of process {program.pid}"
        variables = {name: Variable(name, v, place, f"{name}={v}") for name, v in program.variables.items()}
        environment = replace(facts.environment, variables=variables, complete=True)
    return replace(facts, cufile=cufile, environment=environment)


def _differs(facts: HostFacts, own: HostFacts, program: Program) -> Maybe[bool]:
    both = all_known([facts.cufile.merged, own.cufile.merged, program.variables, facts.environment.complete])
    if isinstance(both, Unknown):
        return both
    mine, default = (
        {name: v.value for name, v in each.environment.variables.items() if _counts(name)} for each in (own, facts)
    )
    return facts.cufile.merged != own.cufile.merged or mine != default


def _counts(name: str) -> bool:
    return name.startswith("CUFILE_") and name not in NEUTRAL


def is_listed(explained: ExplainedProgram) -> bool:
    """Whether an explanation shows it: it differs, or that is unknown."""
    return bool(explained.causes) or explained.differs is not False


def configuration(program: Program) -> str:
    """The files of its configuration and the variables over them, in words."""
    over, variables = program.overlay, program.variables
    more = [over.path] if isinstance(over, Overlay) else [f"({over.reason})"] if isinstance(over, Unknown) else []
    if not isinstance(variables, Unknown):
        more += [f"{name}={value}" for name, value in variables.items() if _counts(name)]
    return program.base_path + (" with " + ", ".join(more) if more else "")


def versions(program: Program) -> List[str]:
    """Each libcufile that it has loaded: its file, and its version where that is known."""
    shown = {path: if_known(version, "") for path, version in program.libraries.items()}
    return [f"{path} ({version})" if version else path for path, version in shown.items()]


def as_row(explained: ExplainedProgram) -> Dict[str, Any]:
    """As JSON values; see docs/explain.md."""
    program = explained.program
    return {
        **_about(program),
        "container": if_known(program.container, None),
        "differs": if_known(explained.differs, None),
        "causes": as_dict(explained.causes),
        "unseen": list(explained.unseen),
    }


def _about(program: Program) -> Dict[str, Any]:
    return {
        "pid": program.pid,
        "program": program.name,
        "unit": program.unit,
        "libcufile": {path: if_known(version, None) for path, version in program.libraries.items()},
        "configuration": configuration(program),
    }


class NoSuchProcessError(Exception):
    """No process of that id has libcufile loaded, as far as the evidence shows."""


@dataclass(frozen=True)
class ExplainedProcess:
    """``causes`` keep its I/O off a direct path, or may; the first ones are of the process itself."""

    program: Program
    route: Route
    causes: Tuple[Cause, ...]
    #: path of each of its files on a mount of this host, as the host allows it
    files: Tuple[Tuple[str, str], ...]
    unseen: Tuple[str, ...]


def explain_process(facts: HostFacts, pid: int) -> ExplainedProcess:
    """Explain the process; raises NoSuchProcessError."""
    running = facts.processes.programs
    if isinstance(running, Unknown):
        raise NoSuchProcessError(f"running programs are not known: {running.reason}")
    for program in running:
        if program.pid == pid:
            return _explain(facts, program)
    pids = ", ".join(str(program.pid) for program in running) or "none"
    raise NoSuchProcessError(f"process {pid} has no libcufile loaded (processes that have: {pids})")


def _explain(facts: HostFacts, program: Program) -> ExplainedProcess:
    # In a container, the same mount point is another mount.
    places = {} if program.container is not False else dict.fromkeys(file.mount for file in program.files)
    mounts = [mount for mount in map(facts.storage.mount_of, places) if isinstance(mount, Mount)]
    own = explain_program(facts, mounts, program)
    paths = {mount.mount_point: path_of(facts, mount) for mount in mounts}
    of_mounts = [cause for path in paths.values() for cause in (*path.causes, *path.suspects)]
    way = route(Observed(program.counters))
    causes = [*_own(facts, program, way), *own.causes, *of_mounts]
    files = []
    for file in program.files:
        path = paths.get(file.mount)
        files.append((file.path, "not judged" if path is None else if_known(path.path, "not proven")))
    return ExplainedProcess(program, way, distinct(causes), tuple(files), own.unseen)


def _own(facts: HostFacts, program: Program, way: Route) -> Iterator[Cause]:
    label = f"/proc/{program.pid}"
    if program.nvidia_fs is False:
        what = "the process has no /dev/nvidia-fs* open, so its I/O can't take nvidia-fs"
        fix = "load nvidia-fs, give a container its devices (docs/containers.md), and start it again"
        yield Cause("process.no-nvidia-fs", what, fix, (f"{label}/fd: no /dev/nvidia-fs*",), reference.COMPATIBILITY)
    yield from _libraries(facts, program)
    if way.unaligned:
        what = f"{way.unaligned} of its operations had an offset, a size or memory that wasn't aligned to 4 KiB"
        fix = "align them to 4 KiB in the program; see also properties.allow_compat_mode"
        yield Cause("process.unaligned", what, fix, (f"{label}: statistics of libcufile",), reference.COMPATIBILITY)
    if way.path == NOT_COUNTED:
        why, fix = REASONS[way.reason]
        evidence = (f"{label}: {way.reason}",)
        yield Cause("process.not-counted", f"which path it takes isn't counted: {why}", fix, evidence)


def _libraries(facts: HostFacts, program: Program) -> Iterator[Cause]:
    """A copy of its own; the release that a host was validated with says nothing about it."""
    of_host = facts.cufile.library
    for path, version in program.libraries.items():
        if isinstance(version, Unknown) or isinstance(of_host, Unknown) or of_host is None:
            continue
        if not (version + ".").startswith(of_host + "."):
            what = f"it runs a libcufile of its own: {version}, and the host's is {of_host}"
            fix = "install the host's release in that environment or image, or remove the copy there"
            yield Cause("process.own-libcufile", what, fix, (f"/proc/{program.pid}/maps: {path}",))


def process_document(explained: ExplainedProcess) -> Dict[str, Any]:
    """As JSON values; see docs/explain.md."""
    program, way = explained.program, explained.route
    return {
        "version": 1,
        **_about(program),
        "path": way.path,
        "reason": way.reason,
        "operations": dict(way.operations),
        "read_bytes": way.read,
        "written_bytes": way.written,
        "bounced_bytes": way.bounced,
        "files": [{"path": path, "mount_path": name} for path, name in explained.files],
        "causes": as_dict(explained.causes),
        "unseen": list(explained.unseen),
    }
