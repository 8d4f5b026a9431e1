"""Why one running process bounces: what it has counted, its library, its configuration, its files.  Pure.

``gdsdeploy explain HOST PID`` prints it.  The counters are all since the process opened cuFile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Tuple

from ..facts import HostFacts, Unknown, as_dict
from ..facts.processes import Program
from ..facts.storage import Mount
from ..facts.unknown import if_known
from ..io.wording import joined
from ..libcufile.counters import COMPAT, NOT_COUNTED, REASONS, Observed, Route, route, route_words
from . import processes, reference
from .cause import Cause, distinct
from .path import path_of
from .text import wrapped


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
    mounts = [] if program.container is not False else _mounts(facts, program)
    own = processes.explain_program(facts, mounts, program)
    paths = {mount.mount_point: path_of(facts, mount) for mount in mounts}
    of_mounts = [cause for path in paths.values() for cause in (*path.causes, *path.suspects)]
    way = route(Observed(program.counters))
    causes = [*_own(facts, program, way), *own.causes, *of_mounts]
    files = []
    for file in program.files:
        path = paths.get(file.mount)
        files.append((file.path, "not judged" if path is None else if_known(path.path, "not proven")))
    return ExplainedProcess(program, way, distinct(causes), tuple(files), own.unseen)


def _mounts(facts: HostFacts, program: Program) -> List[Mount]:
    each = {file.mount: facts.storage.mount_of(file.mount) for file in program.files}
    return [mount for mount in each.values() if isinstance(mount, Mount)]


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


def as_document(explained: ExplainedProcess) -> Dict[str, Any]:
    """As JSON values; see docs/explain.md."""
    program, way = explained.program, explained.route
    return {
        "version": 1,
        "pid": program.pid,
        "program": program.name,
        "unit": program.unit,
        "path": way.path,
        "reason": way.reason,
        "operations": dict(way.operations),
        "read_bytes": way.read,
        "written_bytes": way.written,
        "bounced_bytes": way.bounced,
        "configuration": processes.configuration(program),
        "libcufile": {path: if_known(version, None) for path, version in program.libraries.items()},
        "files": [{"path": path, "mount_path": name} for path, name in explained.files],
        "causes": as_dict(explained.causes),
        "unseen": list(explained.unseen),
    }


def render(explained: ExplainedProcess) -> str:
    """Lines of text."""
    program, way = explained.program, explained.route
    lines = wrapped(f"{program.label}: {route_words(way.path, way.reason, way.operations)}", "")
    if way.operations:
        about = "" if way.exact else "about "
        moved = f"since it opened cuFile: {way.read} bytes read, {way.written} written"
        lines += wrapped(f"{moved}, {about}{way.bounced} of them through CPU memory", "  ")
    lines += wrapped("libcufile: " + ", ".join(processes.versions(program)), "  ")
    lines += wrapped("configuration: " + processes.configuration(program), "  ")
    for path, name in explained.files:
        lines += wrapped(f"file: {path} (its mount allows: {name})", "  ")
    if not explained.causes and way.operations.get(COMPAT):
        lines += wrapped("nothing that was examined explains why it goes through CPU memory", "  ")
    for number, cause in enumerate(explained.causes, 1):
        lines += wrapped(f"{cause.what} [{cause.id}]", f"{number:>3}. ")
        for label, texts in (("seen", cause.evidence), ("do", (cause.fix,)), ("read", (cause.reference,))):
            lines += [line for text in texts if text for line in wrapped(text, f"     {label:<5}")]
    return joined(lines + [line for reason in explained.unseen for line in wrapped(f"not known: {reason}", "  ")])
