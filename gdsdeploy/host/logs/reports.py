"""What a report of gdscheck, whole or from a libcufile log, shows about causes."""

from __future__ import annotations

from typing import Dict, Iterator, List, NamedTuple, Sequence

from ..gdscheck import BROKEN, COMPAT, DIRECT, REFUSED, UNKNOWN, Report, grammar, meanings, runs
from .parts import CUFILE, GDSCHECK, Line, Part

#: Levels of a log's lines that may be rows.
_ROWS = ("INFO", "WARN", "NOTICE")


class Shown(NamedTuple):
    """A report in a file, and where it is."""

    report: Report
    #: of its file
    lines: Sequence[Line]

    def line(self, beginning: str) -> Line:
        """The line that begins so, or the first one."""
        return next((line for line in self.lines if line.text.startswith(beginning)), self.lines[0])


class Says(NamedTuple):
    """What a report says about a cause: the cause's id, how the line begins that shows it, and what it means."""

    cause: str
    line: str
    means: str


def reports(parts: Sequence[Part]) -> List[Shown]:
    """Every report in the parts, file by file, in order."""
    all_reports: List[Shown] = []
    printed: Dict[str, List[Line]] = {}
    logged: Dict[str, List[Line]] = {}
    for part in parts:
        table = {GDSCHECK: printed, CUFILE: logged}.get(part.kind)
        if table is not None:
            table.setdefault(part.file, []).extend(part.lines)
    for lines in printed.values():
        recording = runs.read("\n".join([*(line.text for line in lines), ""]).encode("utf-8", "replace"))
        all_reports += [Shown(report, lines) for report in recording.runs]
    for lines in logged.values():
        # An error that a process repeats says nothing new about its report.
        first = {(line.pid, line.key): line for line in reversed(lines) if line.level == "ERROR"}
        messages = [
            (line.pid, line.level, line.text)
            for line in lines
            if line.level in _ROWS or (line.level == "ERROR" and first[line.pid, line.key] is line)
        ]
        telling = (report for report in runs.log_runs(messages) if report.storage or report.verdict == REFUSED)
        all_reports += [Shown(report, lines) for report in telling]
    return all_reports


def causes_of(report: Report) -> Iterator[Says]:
    """Everything in a report that rules a direct path out."""
    if report.config.get("properties.force_compat_mode") == "true":
        yield Says("cufile.force-compat", "properties.force_compat_mode", "compat mode is forced")
        return
    for contradiction in report.contradictions:
        proprietary = "Nvidia Driver Info Status" if "proprietary" in contradiction else ""
        cause = "nvidia-fs.proprietary-driver" if proprietary else "nvidia-fs.below-minimum"
        yield Says(cause, proprietary or "nvidia_fs version", contradiction)
    whole = "storage" in report.sections
    through = [label for label in report.storage if label not in (grammar.P2PDMA_ROW, grammar.RDMA_ROW)]
    p2pdma = any(value == "true" for key, value in report.config.items() if key.endswith("use_pci_p2pdma"))
    if report.nvidia_fs_minimum and not report.nvidia_fs and whole and not p2pdma:
        yield Says("nvidia-fs.not-loaded", "libcufile version", "the report names no loaded nvidia-fs")
    elif report.nvidia_fs and whole and "NVMe" in report.storage and not _offered(report, through):
        yield Says("nvme.no-hooks", "NVMe ", "nvidia-fs is loaded, and no storage driver is registered with it")
    for gpu in report.gpus:
        if not gpu.gds and "Model Not Supported" in gpu.reason:
            yield Says("gpu.class", f"GPU {gpu.index}", f"GPU {gpu.index} {gpu.name}: {gpu.reason}")
            break


def _offered(report: Report, labels: Sequence[str]) -> bool:
    return any((grammar.offers(report.storage[label].value) or (False,))[0] for label in labels)


def path_of(all_reports: Sequence[Report]) -> str:
    """What the reports say together: the worst of their verdicts; unknown where one can't be judged."""
    verdicts = {report.verdict for report in all_reports}
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
