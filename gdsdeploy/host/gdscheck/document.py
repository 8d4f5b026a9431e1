"""A recording as a JSON object, or as text for people."""

from __future__ import annotations

from typing import Any, Dict, List

from ..libcufile import errors as cufile_errors
from . import typed
from .meanings import meaning, reasons, warnings
from .release import release_of
from .report import REFUSED, Report
from .runs import Recording


def document(recording: Recording, name: str) -> Dict[str, Any]:
    """The JSON object of one file called ``name``: its last run, and in ``earlier`` what came of those before."""
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
        "gpus": [typed.gpu(item, report) for item in report.gpus],
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
    found = warnings(recording.report)
    if len(recording.runs) > 1:
        found.insert(0, f"the file holds {len(recording.runs)} runs; this is the last of them")
    if recording.cut:
        found.insert(0, "the file is too large: only its beginning was read")
    return found


def text(recording: Recording, name: str) -> str:
    """The same in a few lines."""
    report = recording.report
    release, source = release_of(report)
    lines = [f"{name}: {report.verdict}"]
    lines += [f"  {item}" for item in reasons(report)]
    lines.append(
        "  libcufile {}{}, nvidia-fs {}{}".format(
            release or "of unknown release",
            " (by its rows)" if source == "rows" else "",
            report.nvidia_fs or _unnamed(report),
            "" if report.exit_status is None else f", exit status {report.exit_status}",
        )
    )
    if report.verdict != REFUSED:
        lines += _rows(report)
    lines += [f"  warning: {item}" for item in _warnings(recording)]
    return "\n".join(lines)


def _unnamed(report: Report) -> str:
    forced = report.config.get("properties.force_compat_mode") == "true"
    return "not loaded" if report.complete and not forced else "not named"


def _rows(report: Report) -> List[str]:
    by_state: Dict[str, List[str]] = {}
    for label, row in typed.storage(report).items():
        direct = [path for path in row["paths"] if path != "compat"]
        words = "{} ({})".format(label, ", ".join(direct)) if direct and row["supported"] else label
        by_state.setdefault(row["state"], []).append(words)
    if report.contradictions:
        by_state = {"claimed" if state == typed.DIRECT else state: labels for state, labels in by_state.items()}
    lines = ["  {}: {}".format(state, ", ".join(labels)) for state, labels in by_state.items()]
    for item in report.gpus:
        shown = typed.gpu(item, report)
        state = {True: "supports GDS", False: "does not support GDS", None: "not shown"}[shown["supports_gds"]]
        size = "" if item.bar_mib is None else f", BAR1 {item.bar_mib} MiB"
        why = ": " + item.reason if item.reason else ""
        lines.append(f"  GPU {item.index} {item.name}: {state}{size}{why}")
    return lines
