"""A recording as a JSON object, or as text for people."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List

from ..io.wording import joined
from ..libcufile import errors as cufile_errors
from . import typed
from .meanings import meaning, reasons, warnings
from .release import ROWS, release_of
from .report import REFUSED, Report
from .runs import Recording


def document(recording: Recording, name: str) -> Dict[str, Any]:
    """The JSON object of one file called ``name``: its last run, and in ``earlier`` a summary of the others."""
    report = recording.report
    release, source = release_of(report)
    return {
        "file": name,
        "kind": recording.kind,
        "verdict": report.verdict,
        "reasons": reasons(report),
        "release": release,
        "release_from": source,
        "nvidia_fs_version": report.nvidia_fs or None,
        "nvidia_fs_minimum_version": report.nvidia_fs_minimum or None,
        "exit_status": report.exit_status,
        "complete": report.complete,
        "storage": typed.storage(report),
        "rdma": typed.rdma(report),
        "config": {key: typed.setting(key, value) for key, value in report.config.items()},
        "gpus": [typed.gpu(gpu, report) for gpu in report.gpus],
        "platform": typed.platform(report),
        "environment": dict(report.environment),
        "errors": [_error(line) for line in report.errors],
        "later_errors": [_error(line) for line in report.later],
        "warnings": _warnings(recording),
        "strays": list(report.strays),
        "runs": len(recording.runs),
        "earlier": [
            {"verdict": run.verdict, "release": release_of(run)[0], "exit_status": run.exit_status}
            for run in recording.runs[:-1]
        ],
    }


def _error(line: str) -> Dict[str, Any]:
    code, means, _ = meaning(line)
    name = cufile_errors.lookup(str(code))[0].name if code is not None else None
    return {"line": line, "means": means or None, "code": code, "name": name}


def _warnings(recording: Recording) -> List[str]:
    cut = ["the file is too large: only its beginning was read"] if recording.cut else []
    count = len(recording.runs)
    runs = [f"the file holds {count} runs; this is the last of them"] if count > 1 else []
    return [*cut, *runs, *warnings(recording.report)]


def text(recording: Recording, name: str) -> str:
    """The report in a few lines."""
    report = recording.report
    release, source = release_of(report)
    library = (release or "of unknown release") + (" (by its rows)" if source == ROWS else "")
    status = "" if report.exit_status is None else f", exit status {report.exit_status}"
    lines = [f"{name}: {report.verdict}", *(f"  {reason}" for reason in reasons(report))]
    lines.append(f"  libcufile {library}, nvidia-fs {report.nvidia_fs or _unnamed(report)}{status}")
    if report.verdict != REFUSED:
        lines += _rows(report)
    lines += _later(report)
    return joined([*lines, *(f"  warning: {warning}" for warning in _warnings(recording))])


def _later(report: Report) -> Iterator[str]:
    """Errors after the report, about I/O: each kind of line once, with the number of such lines."""
    kinds: Dict[str, List[str]] = {}
    for line in report.later:
        kinds.setdefault(re.sub(r"0x[0-9a-f]+|\d+", "0", line), []).append(line)
    for lines in kinds.values():
        means = meaning(lines[-1]).means
        count = f" ({len(lines)} such lines)" if len(lines) > 1 else ""
        yield f"  later error: {lines[-1]}{count}" + (f" = {means}" if means else "")


def _unnamed(report: Report) -> str:
    forced = report.config.get("properties.force_compat_mode") == "true"
    return "not loaded" if report.complete and not forced else "not named"


def _rows(report: Report) -> Iterator[str]:
    by_state: Dict[str, List[str]] = {}
    for label, row in typed.storage(report).items():
        direct = [path for path in row["paths"] if path != "compat"]
        words = "{} ({})".format(label, ", ".join(direct)) if direct and row["supported"] else label
        by_state.setdefault(row["state"], []).append(words)
    for state, labels in by_state.items():
        yield "  {}: {}".format(
            "claimed" if report.contradictions and state == typed.DIRECT else state, ", ".join(labels)
        )
    for gpu in report.gpus:
        supports = typed.gpu(gpu, report)["supports_gds"]
        state = {True: "supports GDS", False: "does not support GDS", None: "not shown"}[supports]
        size = "" if gpu.bar_mib is None else f", BAR1 {gpu.bar_mib} MiB"
        why = ": " + gpu.reason if gpu.reason else ""
        yield f"  GPU {gpu.index} {gpu.name}: {state}{size}{why}"
