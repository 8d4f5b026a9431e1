"""What a look found, as the JSON object of ``watch --json``, and the table of such objects; docs/watch.md has the keys.

The table is one host's on that host, and many hosts' on the controller.
"""

from __future__ import annotations

import json
import posixpath
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..facts.unknown import Unknown, if_known
from ..io.wording import aligned, first_few, line
from ..libcufile.counters import BOUNCED, MAPPED, MIXED, NOT_COUNTED, POSIX, REASONS, Counters, releases, route_words
from ..subjects import clients
from ..subjects.clients import Fallback
from ..subjects.processes import Program
from ..subjects.programs import configuration
from .look import JOB, Entry, Look, named, owner, pods

VERSION = 1
#: Characters of a text, and of all processes as JSON; a controller takes an answer of 8 MiB.
LONG, LARGEST = 256, 4 << 20
#: Paths of which system calls, or page faults, have the bytes.
BY_CALLS = (POSIX, BOUNCED, MAPPED, MIXED)
#: Open files, libraries and GPUs of one process.
FEW = 8


def document(look: Look, job: Optional[str] = None) -> Dict[str, Any]:
    """All of a look, or of a Slurm job; each process is an object, those that bounce most first.

    Local users choose many of the names, so the last ones are left out where the whole would be too large.
    """
    rows: List[Dict[str, Any]] = []
    size, incomplete = 0, look.incomplete
    names = pods()
    programs = [entry for entry in look.programs if job is None or job in _jobs(entry.program)]
    for entry in programs:
        rows.append(row(entry, names))
        size += len(json.dumps(rows[-1]))
        if size > LARGEST:
            incomplete = f"{len(programs) - len(rows)} more would be too long an answer"
            break
    return {
        "version": VERSION,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(look.at)),
        "incomplete": incomplete and _text(incomplete),
        "processes": rows,
    }


def _jobs(program: Program) -> Tuple[str, ...]:
    """The number of its Slurm job, and what that is called as a task of an array or a part of another job."""
    kind, number = owner(program.unit)
    return (number, *program.jobs) if kind == JOB else ()


def row(entry: Entry, names: Dict[str, str]) -> Dict[str, Any]:
    """One process and the way of its I/O.  names: UID of a pod → its name."""
    program, result = entry
    why = clients.fallback(program) if result.path in BY_CALLS else Fallback()
    of = named(owner(program.unit), names)
    counted = program.counters.gpus if isinstance(program.counters, Counters) else ()
    moving = [gpu.uuid for gpu in counted if gpu.read.n or gpu.write.n]
    return explained(
        {
            "pid": program.pid,
            "start": program.start,
            "program": _text(program.name),
            "owner": {"kind": of.kind, "name": _text(of.name)},
            "cgroup": _text(program.unit),
            "container": if_known(lambda: program.container, None),
            "libcufile": [
                {"file": _text(path), "version": _releases(program) if isinstance(version, Unknown) else _text(version)}
                for path, version in sorted(program.libraries.items())[:FEW]
            ],
            "configuration": _text(configuration(program)),
            "statistics_level": if_known(lambda: program.level, None),
            "nvidia_fs_open": if_known(lambda: program.nvidia_fs, None),
            "gpus": moving[:FEW],
            "files": [
                {"path": _text(path), "mount": _text(mount), "filesystem": _text(kind), "direct": direct}
                for path, (mount, kind, direct) in list(_files_of(program).items())[:FEW]
            ],
            "path": result.path,
            "operations": dict(result.operations),
            "since": "look" if result.recent else "start",
            "read_bytes": result.read,
            "written_bytes": result.written,
            "bounced_bytes": result.bounced,
            "bounced_exact": result.exact,
            "errors": result.errors,
            "unaligned": result.unaligned,
            "seconds": round(result.seconds, 3),
            "read_rate": _whole(result.rate(result.read)),
            "write_rate": _whole(result.rate(result.written)),
            "bounce_rate": _whole(result.rate(result.bounced)),
            "reason": result.reason,
            "beside": result.beside,
            "beside_bytes": result.beside_bytes,
            "fallback": {name: _text(text) for name, text in why._asdict().items()},
        }
    )


def _files_of(program: Program) -> Dict[str, Tuple[str, str, bool]]:
    """Path → (mount point, filesystem, whether it's open for direct I/O), registered ones first."""
    files = {file.path: (file.mount, file.filesystem, file.direct) for file in program.files}
    for file in program.io.files if program.io else ():
        files.setdefault(file.path, (file.mount, file.filesystem, file.direct))
    return files or {path: (mount, kind, False) for path, mount, kind in program.mapped}


def explained(values: Dict[str, Any]) -> Dict[str, Any]:
    """A row with ``words`` for its path, ``why`` it bounces or isn't counted, and what is to ``fix``."""
    if values["path"] == NOT_COUNTED:
        why, fix = REASONS[values["reason"]]
    elif values["beside"] or values["path"] == MAPPED:
        why, fix = clients.words(values["path"], Fallback(**values["fallback"]), bool(values["libcufile"]))
    else:
        why, fix = "", ""
    path = route_words(values["path"], values["reason"], values["operations"], values["beside"])
    return {**values, "words": path, "why": why, "fix": fix}


def _releases(program: Program) -> Optional[str]:
    """Those that have the layout of its counters, where these can only be of one library."""
    of = program.counters
    return releases(of.version, of.size) if len(program.libraries) == 1 and isinstance(of, Counters) else None


def _text(text: str) -> str:
    """In one line that a terminal may show, and not longer than a controller takes."""
    return line(text)[:LONG]


def _whole(rate: Any) -> Any:
    return None if rate is None else round(rate)


COLUMNS = ("bounced/s", "read/s", "write/s", "path", "pid", "program", "of", "libcufile", "GPU", "files")
#: Characters of a program's owner and of its files.
OWNER, FILES = 28, 44
UNKNOWN, NONE = "?", "-"


def lines(processes: Sequence[Tuple[str, Mapping[str, Any]]], most: int = 0) -> List[str]:
    """A line for each process, and the reasons for those that bounce without cuFile or aren't counted.

    processes: (host, row) in the order of the table; hosts have a column unless all names are empty.
    most: rows that are shown; 0: all.
    """
    shown = processes[:most] if most else processes
    if not shown:
        return ["no process has a GPU open or libcufile loaded"]
    named = any(host for host, _ in shown)
    rows = [["host"] * named + list(COLUMNS)] + [[host] * named + _cells(row) for host, row in shown]
    text = aligned(rows)
    if len(processes) > len(shown):
        text.append(f"and {len(processes) - len(shown)} more")
    return text + reasons(row for _, row in processes)


def reasons(rows: Any) -> List[str]:
    """For each reason why processes bounce without cuFile, or aren't counted: what it means, and what to do."""
    texts: Dict[Tuple[str, str, str], List[int]] = {}
    for row in rows:
        if row["why"]:
            name = row["words"] if row["path"] == NOT_COUNTED else row["path"]
            texts.setdefault((name, row["why"], row["fix"]), []).append(row["pid"])
    text: List[str] = []
    for (name, why, fix), pids in sorted(texts.items()):
        of = "" if name.startswith("not") else f" ({first_few([str(pid) for pid in pids], FEW)})"
        text += [f"{name}{of}: {why}", f"    what to do: {fix}"]
    return text


def total(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line about all processes."""
    bounced = sum(row["bounce_rate"] or 0 for row in rows)
    counted = [row for row in rows if row["path"] != NOT_COUNTED]
    words = f"{len(rows)} with a GPU or libcufile, {len(counted)} counted"
    return f"{words}; {amount(bounced)}/s through the memory of the host"


def order(row: Mapping[str, Any]) -> Tuple[float, float, int]:
    """Sorts rows: those that bounce most come first."""
    return -float(row["bounce_rate"] or 0), -float(row["bounced_bytes"]), int(row["pid"])


def _cells(row: Mapping[str, Any]) -> List[str]:
    about = "" if row["bounced_exact"] else "~"
    moved = row["since"] == "look"
    path = row["words"] + ("" if moved or row["path"] in (NOT_COUNTED, MAPPED, "idle") else ", before")
    return [
        _rate(row, "bounce_rate", about),
        _rate(row, "read_rate"),
        _rate(row, "write_rate"),
        path,
        str(row["pid"]),
        row["program"] or NONE,
        _short(_whose(row["owner"]), OWNER),
        ", ".join(sorted({one["version"] or UNKNOWN for one in row["libcufile"]})) or NONE,
        first_few([uuid[:12] for uuid in row["gpus"]], 1) or NONE,
        _short(_files(row["files"]), FILES),
    ]


def _rate(row: Mapping[str, Any], name: str, about: str = "") -> str:
    rate = row[name]
    if row["path"] in (NOT_COUNTED, MAPPED) or rate is None:
        return UNKNOWN
    return about + amount(rate) if rate else NONE


def amount(number: float) -> str:
    """Bytes: ``512 B``, ``1.5 MiB``, ``12 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.1f} {unit}" if unit != "B" and number < 10 else f"{number:.0f} {unit}"
        number /= 1024
    raise AssertionError


def _whose(owner: Mapping[str, Any]) -> str:
    if owner["kind"] in ("", "unit"):
        return owner["name"] or NONE
    return f"{owner['kind']} {owner['name']}"


def _files(files: Sequence[Mapping[str, Any]]) -> str:
    mounts: Dict[str, List[str]] = {}
    for file in files:
        mounts.setdefault(f"{file['mount']} ({file['filesystem']})", []).append(posixpath.basename(file["path"]))
    return "; ".join(f"{mount}: {first_few(names, 1)}" for mount, names in mounts.items()) or NONE


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
