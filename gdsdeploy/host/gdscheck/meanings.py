"""The meaning of the library's reasons, and warnings about the rest of a report."""

from __future__ import annotations

import contextlib
import re
from functools import lru_cache
from typing import Dict, Iterator, List, NamedTuple, Optional, Pattern, Tuple

from .. import data
from ..libcufile import errors as cufile_errors
from . import grammar
from .report import COMPAT, DIRECT, ERRORS, REFUSED, UNKNOWN, Report

#: Lines that only point at the reason: BACK at an earlier line, never shown; ON at a later line, shown only if no line
#: has the reason.
BACK, ON = "back", "on"


class _Error(NamedTuple):
    """The meaning of a line of the library; {0}… in ``means`` are groups of ``pattern``."""

    pattern: Pattern[str]
    #: a cuFile code or a negative errno
    code: Optional[int]
    means: str
    #: BACK or ON for a line that only points at the reason; empty for one that has it
    points: str


class _Remark(NamedTuple):
    """The meaning of a line that contains ``words``."""

    words: str
    means: str


@lru_cache(maxsize=1)
def _errors() -> Tuple[_Error, ...]:
    """The first match of a line counts."""
    return data.rows("gdscheck_errors", _error)


def _error(pattern: str, code: Optional[int], means: str, points: str = "") -> _Error:
    return _Error(re.compile(pattern), code, means, points)


@lru_cache(maxsize=1)
def _remarks() -> Tuple[_Remark, ...]:
    return data.rows("gdscheck_remarks", _Remark)


_RETURNED = re.compile(r"cuFileDriverOpen returned (-?\d{1,6})")
#: The result of a call in the library's words for its code; the reason is in a line before it.
_RESULT = re.compile(r"cuFile\w+ error *: *(.+)$")


class Meaning(NamedTuple):
    """Of a line in which the library says why it stopped; ``means`` may be empty."""

    code: Optional[int]
    means: str
    #: as in _Error
    points: str = ""


def meaning(line: str) -> Meaning:
    """The meaning of a line in which the library says why it stopped."""
    returned = _RETURNED.match(line)
    if returned:
        with contextlib.suppress(cufile_errors.UnknownCodeError):
            code = cufile_errors.lookup(returned[1])[0]
            return Meaning(int(returned[1]), f"{code.name}: {code.meaning}")
    result = _RESULT.match(line)
    entry = cufile_errors.by_words(result[1]) if result else None
    if entry is not None:
        return Meaning(entry.code, f"{entry.name}: {entry.meaning}", BACK)
    for error in _errors():
        match = error.pattern.search(line)
        if match:
            return Meaning(error.code, error.means.format(*(group or "" for group in match.groups())), error.points)
    return Meaning(None, "")


def reasons(report: Report) -> List[str]:
    """Why the verdict is what it is, most telling first."""
    if report.contradictions:
        return list(report.contradictions)
    if report.verdict == REFUSED:
        return _given_up(report)
    if report.verdict == ERRORS:
        # Of a call that fails, the last line has the result and those before it the reason.
        return ["the library did not give up; calls, files or the platform had errors", *_given_up(report)]
    if report.verdict == UNKNOWN:
        return _not_whole(report)
    if report.verdict == COMPAT:
        return list(_compat(report))
    direct = [label for label, row in report.storage.items() if row.supported]
    return ["a direct path is offered for {}".format(", ".join(direct))] if report.verdict == DIRECT else []


def _given_up(report: Report) -> List[str]:
    telling = [(line, meaning(line)) for line in report.errors]
    telling = [(line, sense) for line, sense in telling if sense.means and sense.points != BACK]
    telling = [(line, sense) for line, sense in telling if sense.points != ON] or telling
    by_meaning: Dict[str, str] = {}
    for line, sense in telling:
        by_meaning.setdefault(sense.means, f"{sense.means}: {line}")
    return list(by_meaning.values()) or list(report.errors[:3])


def _not_whole(report: Report) -> List[str]:
    if not (report.storage or report.sections or report.config or report.release):
        return ["this is neither output of gdscheck nor a libcufile log of level INFO or more"]
    lines = []
    tables = [name for name in grammar.SECTIONS.values() if name not in report.sections]
    if tables:
        lines.append("not seen to its end, or not in order: {}".format(", ".join(tables)))
    missing = [label for label in grammar.ALWAYS if label not in report.storage]
    if report.storage and missing:
        lines.append("rows are missing: {}".format(", ".join(missing)))
    strays = [line for line in report.strays if grammar.SUSPECT.search(line)]
    if strays:
        lines.append("not understood: {}".format("; ".join(strays[:2])))
    return lines or ["rows are missing, repeated, or from different releases: the text is cut or mixed"]


def _compat(report: Report) -> Iterator[str]:
    config = report.config
    if config.get("properties.force_compat_mode") == "true":
        # The library then looks at nothing else.
        yield "the configuration forces compat mode (properties.force_compat_mode)"
        return
    if report.sysmem:
        yield "CUDA or a GPU is missing: the library serves host memory only"
        return
    if not report.nvidia_fs and not report.nvidia_fs_minimum:
        # Up to 1.11, which print no header then, the GPU's row says the same of every model (seen with an H200).
        yield "nvidia-fs is not loaded, or not visible in this container; without it the library examines no GPU"
    elif not any(gpu.gds for gpu in report.gpus):
        why = "; ".join(f"GPU {gpu.index}: {gpu.reason}" for gpu in report.gpus if gpu.reason)
        yield "no GPU supports GDS" + (": " + why if why else "")
    if any(row.supported for row in report.storage.values()):
        return
    denied = [label for label, row in report.storage.items() if row.value == grammar.DISABLED]
    if denied:
        yield "the configuration denies {}".format(", ".join(denied))
    if not report.nvidia_fs and report.nvidia_fs_minimum:
        yield "nvidia-fs is not loaded, or not visible in this container"
    elif report.nvidia_fs and len(denied) < len(report.storage):
        yield f"nvidia-fs {report.nvidia_fs} is loaded, but no storage driver is registered with it"
    if config.get("properties.use_pci_p2pdma") == "true":
        yield "P2PDMA is configured, but the kernel, driver or GPU doesn't support it"


def warnings(report: Report) -> List[str]:
    """What else needs attention, though gdscheck doesn't mention it or ends well."""
    unknown = [label for label in report.storage if label not in grammar.LABELS]
    rows = ["rows that no release up to 1.20 prints: {}".format(", ".join(unknown))] if unknown else []
    remarks = [remark.means for remark in _remarks() if any(remark.words in line for line in report.remarks)]
    return [*_run_warnings(report), *_platform_warnings(report), *_config_warnings(report), *rows, *remarks]


def _run_warnings(report: Report) -> Iterator[str]:
    if report.complete and report.exit_status not in (None, 0):
        yield f"it ended with status {report.exit_status} after a whole report"
    elif report.verdict == REFUSED and report.exit_status == 0:
        yield "it ended with status 0, although the library gave up"


def _platform_warnings(report: Report) -> Iterator[str]:
    status = report.platform.get("Nvidia Driver Info Status", "")
    if status.startswith("Supported only on"):
        yield f"the driver is the proprietary one: {status}"
    elif status.startswith("Unsupported"):
        yield f"the driver was not recognised: {status}"
    passing = any(gpu.iommu.startswith("Pass") for gpu in report.gpus)
    if passing or report.platform.get("IOMMU", "disabled") != "disabled":
        yield "the IOMMU is on: NVIDIA supports GDS with it off, and on some systems in passthrough mode"
    sizes = [(gpu.index, gpu.bar_mib) for gpu in report.gpus if gpu.bar_mib is not None and gpu.bar_mib <= 256]
    if sizes:
        small = ", ".join(f"{index} ({size} MiB)" for index, size in sizes)
        yield f"BAR1 is small, or its size could not be read, on GPU {small}"


def _config_warnings(report: Report) -> Iterator[str]:
    for name in ("rdma_device_status", "rdma_dev_addr_list_status"):
        counts = re.match(r"Up: \d+ Down: (\d{1,18})", report.rdma.get(name, ""))
        if counts and int(counts[1]):
            yield f"{int(counts[1])} configured RDMA addresses are down"
            break
    harmless = ("CUFILE_LOGGING_LEVEL", "CUFILE_LOGFILE_PATH")
    names = sorted(name for name in report.environment if name not in harmless)
    if names:
        yield "variables override the configuration: {}".format(", ".join(names))
    if report.config.get("properties.force_compat_mode") == "true" and report.verdict == DIRECT:
        yield "rows offer a direct path, but the configuration forces compat mode"
