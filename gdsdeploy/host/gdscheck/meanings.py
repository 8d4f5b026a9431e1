"""What the library's reasons mean, and what else in a report needs attention."""

from __future__ import annotations

import contextlib
import re
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from .. import cufile_errors
from . import grammar
from .report import COMPAT, DIRECT, REFUSED, UNKNOWN, Report

#: Lines that only point at the reason: BACK at a line before, never told by themselves; ON at one that follows, told
#: only where no line has the reason.
BACK, ON = "back", "on"


class _Error(NamedTuple):
    """Words of the library, a pattern; a cuFile code or negative errno; and what they mean, {0}… being their groups."""

    words: str
    code: Optional[int]
    means: str
    #: BACK or ON for a line that only points at the reason; empty for one that has it
    points: str = ""


#: The first that fits counts.
_ERRORS: Tuple[_Error, ...] = (
    _Error(
        r"nvidia-fs(?:\.ko)? driver (?:is )?not loaded",
        5001,
        "nvidia-fs is not loaded, and the configuration disallows compat mode",
    ),
    _Error(
        r"(?:nvidia[-_]fs|cufile) driver version mismatch",
        5004,
        "the loaded nvidia-fs is of another major version than libcufile takes",
    ),
    _Error(r"driver version read error", 5005, "the version of the loaded nvidia-fs could not be read"),
    _Error(r"No cuda devices", 5007, "CUDA sees no GPU"),
    _Error(r"cuda devices probe failed", 5007, "no GPU could be looked at"),
    _Error(
        r"not supported on current platform|platform is not supported",
        5007,
        "this machine has no GPU that cuFile takes",
    ),
    _Error(
        r"Platform verification failed", None, "the check of GPUs and platform failed; the reason stands before", BACK
    ),
    _Error(r"[Ii]nit Failed, error (\w+)", 5011, "CUDA could not be initialised ({0})"),
    _Error(r"CUDA Driver API error", 5011, "a call of CUDA failed; the reason stands before", BACK),
    _Error(r"missing cuda symbols", 5033, "libcuda.so.1 is not there, or too old"),
    _Error(r"dlopen error (\S+?):", 5033, "{0} cannot be loaded"),
    _Error(r"Cuda version not Supported", 5033, "libcuda is older than this libcufile needs"),
    _Error(r"error while loading shared libraries: ([^:]+):", None, "the program cannot start: {0} is not installed"),
    _Error(
        r"gdscheck\S*: (?:command )?not found|gdscheck\S*: No such file", None, "there is no gdscheck at this place"
    ),
    _Error(r"json type mismatch.* json field (\S+)", 5002, "the value of {0} has a wrong type"),
    _Error(r"error reading config (\S+)", 5002, "the value of {0} is refused; the line before may say why"),
    _Error(r"parsing error, invalid json config (\S+)", 5002, "{0} is not JSON"),
    _Error(r"failed to load (?:user )?config:? (\S+)", 5002, "libcufile refuses {0}, and every cuFile call fails"),
    _Error(r"cuFile configuration load error", 5002, "the configuration is refused"),
    _Error(r"found invalid", 5002, "the configuration names something that is not there"),
    _Error(
        r"should be multiple|out of range|not page aligned|^invalid .*(?:specified|size|min|max)",
        5002,
        "a value is not taken",
    ),
    _Error(r"invalid property", 5002, "the configuration is refused (releases from 1.19)"),
    _Error(r"^Invalid argument$", -22, "the configuration is refused (releases up to 1.18)"),
    _Error(
        r"LargestUInt|terminate called|what\(\)", 5002, "a number in the configuration is too large; the program aborts"
    ),
    _Error(r"Segmentation fault|^Aborted|core dumped", None, "the program crashed"),
    _Error(r"udev property not found: (\S+)", 5027, "the udev database lacks {0}, as in containers without /run/udev"),
    _Error(
        r"(?:error getting|unable to get) volume attributes",
        5027,
        "the file's filesystem or device could not be found out",
    ),
    _Error(r"cuFileHandleRegister error", 5027, "a file could not be registered; the reason stands before", BACK),
    _Error(r"Platform verification error", None, "gdscheck gives up; the reason follows", ON),
    _Error(r"cuFile initialization failed", None, "the library gives up; the reason stands before", BACK),
)
_RETURNED = re.compile(r"cuFileDriverOpen returned (-?\d{1,6})")
_COMPILED = tuple((re.compile(item.words), item) for item in _ERRORS)


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
    for pattern, item in _COMPILED:
        found = pattern.search(line)
        if found:
            return Meaning(item.code, item.means.format(*(group or "" for group in found.groups())), item.points)
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
    for words, text in (
        (
            "Error Loading numa symbols",
            "libnuma is not installed: GPUs and disks of one NUMA node are not kept together",
        ),
        ("error opening log file", "the library cannot write its log"),
        ("Found ACS enabled", "ACS is on for a PCIe switch: peer-to-peer traffic goes through the root complex"),
        ("GDS is not guaranteed", "the library does not guarantee GDS with this IOMMU setting"),
    ):
        if any(words in line for line in report.remarks):
            found.append(text)
    return found


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
