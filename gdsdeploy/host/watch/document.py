"""What a look found, as the JSON object of ``watch --json``; docs/watch.md describes its keys."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, List, Optional

from ..explain.processes import configuration
from ..facts.processes import OpenFile, Program
from ..facts.unknown import if_known, when_known
from ..io.wording import line
from ..libcufile.counters import NOT_COUNTED, REASONS, Counters, releases, route_words
from .look import JOB, Entry, Look, Owner, named, owner, pods

VERSION = 1
#: Characters of a text, and of all processes as JSON; a controller takes an answer of 8 MiB.
LONG, LARGEST = 256, 4 << 20
#: Open files, libraries and GPUs of one process.
FEW = 8


def document(look: Look, job: Optional[str] = None) -> Dict[str, Any]:
    """All of a look, or of a Slurm job; each process is an object, those that bounce most first.

    Local users choose many of the names, so the last ones are left out where the whole would be too large.
    """
    rows: List[Dict[str, Any]] = []
    size, incomplete = 0, look.incomplete
    names = pods()
    programs = [entry for entry in look.programs if job is None or owner(entry.program.unit) == Owner(JOB, job)]
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


def row(entry: Entry, names: Dict[str, str]) -> Dict[str, Any]:
    """One process and the way of its I/O.  names: UID of a pod → its name."""
    program, result = entry
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
            "container": if_known(program.container, None),
            "libcufile": [
                {"file": _text(path), "version": if_known(when_known(version, _text), _releases(program))}
                for path, version in sorted(program.libraries.items())[:FEW]
            ],
            "configuration": _text(configuration(program)),
            "statistics_level": if_known(program.level, None),
            "nvidia_fs_open": if_known(program.nvidia_fs, None),
            "gpus": moving[:FEW],
            "files": [_file(file) for file in program.files[:FEW]],
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
        }
    )


def explained(values: Dict[str, Any]) -> Dict[str, Any]:
    """A row with ``words`` for its path, and ``why`` it isn't counted and what is to ``fix``; empty where it is."""
    why, fix = REASONS[values["reason"]] if values["path"] == NOT_COUNTED else ("", "")
    path = route_words(values["path"], values["reason"], values["operations"])
    return {**values, "words": path, "why": why, "fix": fix}


def _releases(program: Program) -> Optional[str]:
    """Those that have the layout of its counters, where these can only be of one library."""
    of = program.counters
    return releases(of.version, of.size) if len(program.libraries) == 1 and isinstance(of, Counters) else None


def _file(file: OpenFile) -> Dict[str, Any]:
    words = {name: _text(str(value)) for name, value in file._asdict().items()}
    return {**words, "direct": file.direct}


def _text(text: str) -> str:
    """In one line that a terminal may show, and not longer than a controller takes."""
    return line(text)[:LONG]


def _whole(rate: Any) -> Any:
    return None if rate is None else round(rate)
