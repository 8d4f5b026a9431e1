"""What the library's reasons mean, and what else in a report needs attention."""

from __future__ import annotations

import contextlib
import re
from functools import lru_cache
from typing import Callable, Dict, List, NamedTuple, Optional, Pattern, Tuple

from .. import data
from ..libcufile import errors as cufile_errors
from . import grammar
from .report import COMPAT, DIRECT, REFUSED, UNKNOWN, Report

#: Lines that only point at the reason: BACK at a line before, never told by themselves; ON at one that follows, told
#: only where no line has the reason.
BACK, ON = "back", "on"


class _Error(NamedTuple):
    """What a line of the library means; {0}… in ``means`` are groups of ``pattern``."""

    pattern: Pattern[str]
    #: a cuFile code or a negative errno
    code: Optional[int]
    means: str
    #: BACK or ON for a line that only points at the reason; empty for one that has it
    points: str


class _Remark(NamedTuple):
    """What it means when a line of the library contains ``words``."""

    words: str
    means: str


@lru_cache(maxsize=1)
def _errors() -> Tuple[_Error, ...]:
    """The first that matches a line counts."""
    return data.rows("gdscheck_errors", _error)


def _error(pattern: str, code: Optional[int], means: str, points: str = "") -> _Error:
    return _Error(re.compile(pattern), code, means, points)


@lru_cache(maxsize=1)
def _remarks() -> Tuple[_Remark, ...]:
    return data.rows("gdscheck_remarks", _Remark)


_RETURNED = re.compile(r"cuFileDriverOpen returned (-?\d{1,6})")


class Meaning(NamedTuple):
    """Of a line in which the library says why it stopped.  ``means`` may be empty; ``points`` as in _Error."""

    code: Optional[int]
    means: str
    points: str = ""


def meaning(line: str) -> Meaning:
    """What a line means in which the library says why it stopped."""
    returned = _RETURNED.match(line)
    if returned:
        with contextlib.suppress(cufile_errors.UnknownCodeError):
            entry = cufile_errors.lookup(returned.group(1))[0]
            return Meaning(int(returned.group(1)), f"{entry.name}: {entry.meaning}")
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
    if report.verdict == UNKNOWN:
        return _not_whole(report)
    if report.verdict == COMPAT:
        return _compat(report)
    direct = [label for label, row in report.storage.items() if row.supported]
    return ["a direct path is offered for {}".format(", ".join(direct))] if report.verdict == DIRECT else []


def _given_up(report: Report) -> List[str]:
    told = [(line, meaning(line)) for line in report.errors]
    # Lines that only point to another are worth telling if there is no other.
    telling = [(line, found) for line, found in told if found.means and found.points != BACK]
    telling = [item for item in telling if item[1].points != ON] or telling
    seen: Dict[str, str] = {}
    for line, found in telling:
        seen.setdefault(found.means, f"{found.means}: {line}")
    return list(seen.values()) or list(report.errors[:3])


def _not_whole(report: Report) -> List[str]:
    if not (report.storage or report.sections or report.config or report.release):
        return ["this is no output of gdscheck, and no log of libcufile at level INFO or more"]
    found = []
    tables = [name for name in grammar.SECTIONS.values() if name not in report.sections]
    if tables:
        found.append("not seen to its end, or not in order: {}".format(", ".join(tables)))
    missing = [label for label in grammar.ALWAYS if label not in report.storage]
    if report.storage and missing:
        found.append("rows are missing: {}".format(", ".join(missing)))
    strays = [line for line in report.strays if grammar.SUSPECT.search(line)]
    if strays:
        found.append("not understood: {}".format("; ".join(strays[:2])))
    return found or ["rows are missing, twice there, or not of one release: the text is cut or mixed"]


def _compat(report: Report) -> List[str]:
    found = []
    config = report.config
    if config.get("properties.force_compat_mode") == "true":
        # Nothing else was looked at.
        return ["the configuration forces compat mode (properties.force_compat_mode)"]
    if report.sysmem:
        return ["CUDA or a GPU is not there: the library serves host memory only"]
    if not report.nvidia_fs and not report.nvidia_fs_minimum:
        # Up to 1.11, which print no header then, the GPU's row says the same of every model (seen with an H200).
        found.append("nvidia-fs is not loaded, or not there in this container; no GPU is looked at without it")
    elif not any(gpu.gds for gpu in report.gpus):
        why = "; ".join(f"GPU {gpu.index}: {gpu.reason}" for gpu in report.gpus if gpu.reason)
        found.append("no GPU supports GDS" + (": " + why if why else ""))
    if any(row.supported for row in report.storage.values()):
        return found
    denied = [label for label, row in report.storage.items() if row.value == grammar.DISABLED]
    if denied:
        found.append("the configuration denies {}".format(", ".join(denied)))
    if not report.nvidia_fs:
        if report.nvidia_fs_minimum:
            found.append("nvidia-fs is not loaded, or not there in this container")
    elif len(denied) < len(report.storage):
        found.append(f"nvidia-fs {report.nvidia_fs} is loaded, but no storage driver is registered with it")
    if config.get("properties.use_pci_p2pdma") == "true":
        found.append("P2PDMA is asked for, but kernel, driver or GPU does not offer it")
    return found


def warnings(report: Report) -> List[str]:
    """What else needs attention, though gdscheck says nothing of it or ends well."""
    checks: Tuple[Callable[[Report], Optional[str]], ...] = (_status, _driver, _iommu, _bar, _rdma, _variables, _forced)
    found = [words for words in (check(report) for check in checks) if words]
    unknown = [label for label in report.storage if label not in grammar.LABELS]
    if unknown:
        found.append("rows that no release up to 1.20 prints: {}".format(", ".join(unknown)))
    remarks = [remark.means for remark in _remarks() if any(remark.words in line for line in report.remarks)]
    return [*found, *remarks]


def _status(report: Report) -> Optional[str]:
    if report.complete and report.exit_status not in (None, 0):
        return f"it ended with status {report.exit_status} after a whole report"
    if report.verdict == REFUSED and report.exit_status == 0:
        return "it ended with status 0 although the library gave up"
    return None


def _driver(report: Report) -> Optional[str]:
    said = report.platform.get("Nvidia Driver Info Status", "")
    if said.startswith("Supported only on"):
        return f"the driver is the proprietary one: {said}"
    if said.startswith("Unsupported"):
        return f"the driver was not recognised: {said}"
    return None


def _iommu(report: Report) -> Optional[str]:
    on = report.platform.get("IOMMU", "disabled") != "disabled" or any(
        gpu.iommu.startswith("Pass") for gpu in report.gpus
    )
    return (
        "the IOMMU is on: NVIDIA supports GDS with it switched off, and on some systems in passthrough" if on else None
    )


def _bar(report: Report) -> Optional[str]:
    small = [
        f"{gpu.index} ({gpu.bar_mib} MiB)" for gpu in report.gpus if gpu.bar_mib is not None and gpu.bar_mib <= 256
    ]
    return "BAR1 is small, or its size could not be read, on GPU {}".format(", ".join(small)) if small else None


def _rdma(report: Report) -> Optional[str]:
    for name in ("rdma_device_status", "rdma_dev_addr_list_status"):
        found = re.match(r"Up: \d+ Down: (\d{1,18})", report.rdma.get(name, ""))
        if found and int(found.group(1)):
            return f"{int(found.group(1))} configured RDMA addresses are down"
    return None


def _variables(report: Report) -> Optional[str]:
    harmless = ("CUFILE_LOGGING_LEVEL", "CUFILE_LOGFILE_PATH")
    names = sorted(name for name in report.environment if name not in harmless)
    return "variables overrule the configuration: {}".format(", ".join(names)) if names else None


def _forced(report: Report) -> Optional[str]:
    forced = report.config.get("properties.force_compat_mode") == "true" and report.verdict == DIRECT
    return "rows offer a direct path, but the configuration forces compat mode" if forced else None
