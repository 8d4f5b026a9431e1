"""What a report of gdscheck, whole or from a libcufile log, shows about causes."""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from ..gdscheck import BROKEN, COMPAT, DIRECT, REFUSED, UNKNOWN, Report, grammar, meanings, runs
from .parts import CUFILE, GDSCHECK, Line, Part

NVIDIA_FS_MISSING, NO_HOOKS, GPU_CLASS = "nvidia-fs.not-loaded", "nvme.no-hooks", "gpu.class"


class Shown(NamedTuple):
    """A report in a file, and the first of its lines."""

    report: Report
    line: Line


def reports(parts: Sequence[Part]) -> List[Shown]:
    """Every report in the parts, file by file, in order."""
    found: List[Shown] = []
    printed: Dict[str, List[Line]] = {}
    logged: Dict[str, List[Line]] = {}
    for part in parts:
        table = {GDSCHECK: printed, CUFILE: logged}.get(part.kind)
        if table is not None:
            table.setdefault(part.file, []).extend(part.lines)
    for lines in printed.values():
        recording = runs.read("\n".join([*(line.text for line in lines), ""]).encode("utf-8", "replace"))
        found += [Shown(report, lines[0]) for report in recording.runs]
    for lines in logged.values():
        # An error that a process repeats says nothing new about its report.
        first = {(line.pid, line.key): line for line in reversed(lines) if line.level == "ERROR"}
        messages = [
            (line.pid, line.level, line.text)
            for line in lines
            if line.level != "ERROR" or first[line.pid, line.key] is line
        ]
        found += [Shown(report, lines[0]) for report in runs.log_runs(messages) if report.storage or report.release]
    return found


def causes_of(report: Report) -> Iterator[Tuple[str, str]]:
    """(id of a cause, what the report says) of everything in it that rules a direct path out."""
    config = report.config
    if config.get("properties.force_compat_mode") == "true":
        yield "cufile.force-compat", "properties.force_compat_mode : true"
        return
    for contradiction in report.contradictions:
        yield (
            ("nvidia-fs.proprietary-driver" if "proprietary" in contradiction else "nvidia-fs.below-minimum"),
            contradiction,
        )
    whole = "storage" in report.sections
    through = [label for label in report.storage if label not in (grammar.P2PDMA_ROW, grammar.RDMA_ROW)]
    if report.nvidia_fs_minimum and not report.nvidia_fs and whole:
        yield NVIDIA_FS_MISSING, "the report names no loaded nvidia-fs"
    elif report.nvidia_fs and whole and "NVMe" in report.storage and not _offered(report, through):
        yield NO_HOOKS, f"NVMe : {report.storage['NVMe'].value}"
    for gpu in report.gpus:
        if not gpu.gds and gpu.reason and "Model Not Supported" in gpu.reason:
            yield GPU_CLASS, f"GPU {gpu.index} {gpu.name}: {gpu.reason}"
            break


def _offered(report: Report, labels: Sequence[str]) -> bool:
    return any((grammar.offers(report.storage[label].value) or (False,))[0] for label in labels)


def path_of(found: Sequence[Report]) -> str:
    """What the reports say together: the worst of their verdicts; unknown where one can't be judged."""
    verdicts = {report.verdict for report in found}
    if not verdicts or UNKNOWN in verdicts:
        return UNKNOWN
    for verdict in (REFUSED, BROKEN):
        if verdict in verdicts:
            return BROKEN
    return COMPAT if COMPAT in verdicts else DIRECT if verdicts == {DIRECT} else UNKNOWN


def remarks(report: Report) -> List[str]:
    """The report's verdict in words, and its warnings."""
    return [f"gdscheck's rows say {report.verdict}: {reason}" for reason in meanings.reasons(report)] + [
        *meanings.warnings(report)
    ]
