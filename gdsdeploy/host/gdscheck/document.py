"""A recording as a JSON object, or as text for people.

Rows as typed values.

The meaning of the library's reasons, and warnings about the rest of a report.

Which release of libcufile a report comes from, when its header doesn't name the release.

Up to 1.11 the header names it only while nvidia-fs is loaded, and in no release while the configuration forces compat
mode.  The rows of each release differ, so present and absent rows are bounds.  Seen in the output of 1.4.0, 1.9.1,
1.11.1, 1.13.1, 1.14.1, 1.15.1, 1.16.1, 1.17.1, 1.18.1, 1.19.1 and 1.20.0; a change between two of these may have come
in any release between.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from .. import data
from ..io.wording import joined
from ..libcufile import errors as cufile_errors
from . import reader
from .reader import (
    COMPAT,
    DIRECT,
    ERRORS,
    OLD_VALUES,
    P2PDMA_ROW,
    RDMA_ROW,
    REFUSED,
    UNKNOWN,
    Gpu,
    Recording,
    Report,
    Row,
)

#: States of a storage row, beside DIRECT, COMPAT and UNKNOWN.
UNSUPPORTED, DISABLED = "unsupported", "disabled"
_LISTS = ("slab_size_kb", "slab_count", "rdma_dynamic_routing_order", "rdma_dev_addr_list")
#: Booleans that are printed as 0 and 1.
_NUMBERED = ("properties.rdma_dynamic_routing",)
_ARCH = re.compile(r"(?:(?P<product>.*), Arch: )?(?P<arch>\w+)\((?P<kernel>[^)]*)\)$")
_COUNTS = re.compile(r"Up: (\d{1,18}) Down: (\d{1,18})$")


def typed_setting(name: str, value: str) -> Any:
    """A value of the effective configuration: bool, int, list of either, None for ``none``, else str.

    A mount table is a map of mount point (and source) to addresses.
    """
    if name.endswith(".mount_table"):
        rows = (row.partition(": ") for row in value.split("; ") if row)
        return {mount: addresses.split() for mount, _, addresses in rows}
    if name.endswith(_LISTS):
        return [_scalar(word) for word in value.split()]
    if name in _NUMBERED and value in ("0", "1"):
        return value == "1"
    return _scalar(value)


def _scalar(value: str) -> Any:
    if value in ("true", "false"):
        return value == "true"
    if re.match(r"-?\d{1,20}$", value):
        return int(value)
    return None if value in ("none", "") else value


def storage(report: Report) -> Dict[str, Dict[str, Any]]:
    """Label → ``{"supported", "paths", "state", "value"}``, the same for all releases.

    ``supported``: whether a direct path is offered (None: not shown).  ``paths``: those that I/O can take.
    Releases up to 1.15 print no paths: they follow from the row (nvidia-fs, unless its label says otherwise) and from
    whether the effective configuration allows compat mode.
    """
    return {label: _storage_row(label, row, report) for label, row in report.storage.items()}


def _storage_row(label: str, row: Row, report: Report) -> Dict[str, Any]:
    paths = list(row.paths) or _old_paths(label, row, report)
    if row.supported is None:
        state = UNKNOWN
    elif row.supported:
        state = DIRECT
    elif row.value == reader.DISABLED:
        state = DISABLED
    else:
        state = COMPAT if "compat" in paths else UNSUPPORTED
    return {"supported": row.supported, "paths": paths, "state": state, "value": row.value}


def _old_paths(label: str, row: Row, report: Report) -> List[str]:
    direct: List[str] = []
    if row.value == reader.SUPPORTED:
        if label == P2PDMA_ROW:
            direct = ["p2pdma"]
        elif label in (RDMA_ROW, "WekaFS"):
            direct = _rdma_paths(report.rdma)
        else:
            direct = ["nvfs"]
    is_file = label not in (P2PDMA_ROW, RDMA_ROW)
    allowed = is_file and report.config.get("properties.use_compat_mode") == "true"
    return direct + (["compat"] if allowed else [])


def _rdma_paths(rows: Mapping[str, str]) -> List[str]:
    if rows.get("DmaBuf support") == "Enabled":
        return ["dmabuf"]
    return ["nvidia_peermem"] if rows.get("Mellanox PeerDirect") == "Enabled" else []


def rdma(report: Report) -> Dict[str, Any]:
    """The block below "Userspace RDMA"; None: not printed."""
    rows = report.rdma
    userspace = report.storage.get(RDMA_ROW)
    old, new = _counts(rows.get("rdma_device_status", "")), _counts(rows.get("rdma_dev_addr_list_status", ""))
    up, down = new or old or (None, None)
    return {
        "supported": userspace.supported if userspace else None,
        "peerdirect": _word(rows, "Mellanox PeerDirect", "Enabled"),
        "dmabuf": _word(rows, "DmaBuf support", "Enabled"),
        "library": _word(rows, "rdma library", "Loaded"),
        "devices": _word(rows, "rdma devices", "Configured"),
        "up": up,
        "down": down,
        "multipath": _word(rows, "rdma_multipath", "Enabled"),
        "health_monitor": rows.get("rdma_health_monitor"),
        "dev_addr_list_status": {"up": new[0], "down": new[1]} if new else None,
        "rows": dict(rows),
    }


def _word(rows: Mapping[str, str], name: str, good: str) -> Optional[bool]:
    value = rows.get(name)
    return None if value is None else value.split(" (")[0] == good


def _counts(value: str) -> Optional[Tuple[int, int]]:
    counts = _COUNTS.match(value)
    return (int(counts[1]), int(counts[2])) if counts else None


def typed_gpu(row: Gpu, report: Report) -> Dict[str, Any]:
    """One GPU; ``supports_gds`` is None if an incomplete report claims it."""
    return {
        "index": row.index,
        "name": row.name,
        "supports_gds": None if row.gds and not report.complete else row.gds,
        "bar": row.bar,
        "bar_mib": row.bar_mib,
        "iommu": row.iommu.lower() or None,
        "reason": row.reason or None,
    }


def platform(report: Report) -> Dict[str, Any]:
    """The last block; None: not printed.  ``driver``: ``open``, ``proprietary`` or ``unknown``."""
    rows = report.platform
    iommu, status = rows.get("IOMMU"), rows.get("Nvidia Driver Info Status")
    cuda = rows.get("Cuda Driver Version Installed", "")
    # Where the firmware names the product, the name and a comma come before the architecture.
    whole = rows.get("Platform", "")
    arch = _ARCH.match(whole if ", Arch: " in whole else rows.get("Arch", ""))
    return {
        "iommu": iommu.lower() if iommu else None,
        "iommu_enabled": None if iommu is None else iommu != "disabled",
        "driver_status": status,
        "driver": _flavour(status),
        "cuda_driver_version": int(cuda) if re.match(r"\d{1,9}$", cuda) else None,
        **{name: arch[name] if arch else None for name in ("arch", "kernel", "product")},
    }


def _flavour(status: Optional[str]) -> Optional[str]:
    if status is None:
        return None
    if status.startswith("Supported("):
        return "open"
    return "proprietary" if status.startswith("Supported only on") else "unknown"


#: Lines that only point at the reason: BACK at an earlier line, never shown; ON at a later line, shown only if no line
#: has the reason.
BACK, ON = "back", "on"


class _Error(NamedTuple):
    """The meaning of a line of the library; {0}… in ``means`` are groups of ``pattern``."""

    pattern: str
    #: a cuFile code or a negative errno
    code: Optional[int]
    means: str
    #: BACK or ON for a line that only points at the reason; empty for one that has it
    points: str = ""


class _Remark(NamedTuple):
    """The meaning of a line that contains ``words``."""

    words: str
    means: str


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
    for error in data.rows("gdscheck_errors", _Error):
        match = re.search(error.pattern, line)
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
    tables = [name for name in reader.SECTIONS.values() if name not in report.sections]
    if tables:
        lines.append("not seen to its end, or not in order: {}".format(", ".join(tables)))
    missing = [label for label in reader.ALWAYS if label not in report.storage]
    if report.storage and missing:
        lines.append("rows are missing: {}".format(", ".join(missing)))
    strays = [line for line in report.strays if reader.SUSPECT.search(line)]
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
        yield "the library sees no nvidia-fs, without which it examines no GPU"
    elif not any(gpu.gds for gpu in report.gpus):
        why = "; ".join(f"GPU {gpu.index}: {gpu.reason}" for gpu in report.gpus if gpu.reason)
        yield "no GPU supports GDS" + (": " + why if why else "")
    if any(row.supported for row in report.storage.values()):
        return
    denied = [label for label, row in report.storage.items() if row.value == reader.DISABLED]
    if denied:
        yield "the configuration denies {}".format(", ".join(denied))
    if not report.nvidia_fs and report.nvidia_fs_minimum:
        yield "the library sees no nvidia-fs"
    elif report.nvidia_fs and len(denied) < len(report.storage):
        yield f"nvidia-fs {report.nvidia_fs} is loaded, but no storage driver is registered with it"
    if config.get("properties.use_pci_p2pdma") == "true":
        yield "P2PDMA is configured, but the kernel, driver or GPU doesn't support it"


def warnings(report: Report) -> List[str]:
    """What else needs attention, though gdscheck doesn't mention it or ends well."""
    unknown = [label for label in report.storage if label not in reader.LABELS]
    rows = ["rows that no release up to 1.20 prints: {}".format(", ".join(unknown))] if unknown else []
    known = data.rows("gdscheck_remarks", _Remark)
    remarks = [remark.means for remark in known if any(remark.words in line for line in report.remarks)]
    return [*_warnings_of_rows(report), *rows, *remarks]


def _warnings_of_rows(report: Report) -> Iterator[str]:
    if report.complete and report.exit_status not in (None, 0):
        yield f"it ended with status {report.exit_status} after a whole report"
    elif report.verdict == REFUSED and report.exit_status == 0:
        yield "it ended with status 0, although the library gave up"
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


Version = Tuple[int, int]

OLDEST, NEWEST = (1, 4), (1, 20)
#: Where the release comes from.
FROM_HEADER, FROM_ROWS = "header", "rows"

#: Section → name → (first release that can print it, last that may omit it), of rows that were added.
_ADDED: Dict[str, Dict[str, Tuple[Version, Version]]] = {
    "storage": {
        label: (first, (first[0], first[1] - 1)) for label, (first, _) in reader.SINCE.items() if label != P2PDMA_ROW
    },
    "rdma": {
        "rdma_multipath": ((1, 18), (1, 17)),
        "rdma_dev_addr_list_status": ((1, 18), (1, 17)),
    },
    "config": {
        "execution.max_io_threads": ((1, 5), (1, 8)),
        "properties.use_pci_p2pdma": ((1, 12), (1, 12)),
        "properties.per_buffer_cache_size_kb": ((1, 14), (1, 13)),
        "block.nvme.use_pci_p2pdma": ((1, 16), (1, 15)),
        "miscellaneous.enable_static_routing": ((1, 17), (1, 16)),
        "properties.rdma_multipath_enabled": ((1, 18), (1, 17)),
        "sparse.p2p_compat_enable": ((1, 19), (1, 18)),
        "miscellaneous.enable_static_config": ((1, 20), (1, 19)),
    },
    "platform": {"Nvidia Driver Info Status": ((1, 5), (1, 8))},
}
#: The same for rows that were removed: (last release that can print it, first that may omit it).
_REMOVED: Dict[str, Dict[str, Tuple[Version, Version]]] = {
    "storage": {P2PDMA_ROW: (reader.SINCE[P2PDMA_ROW][1], OLDEST)},
    "rdma": {"rdma_device_status": ((1, 17), (1, 18))},
    "config": {"profile.nvtx": ((1, 15), (1, 16))},
    "platform": {},
}


def release_of(report: Report) -> Tuple[Optional[str], Optional[str]]:
    """(release, where from): ``("1.9.1.3", "header")``, or bounds as ``("1.5-1.12", "rows")``; None: unknown."""
    if report.release:
        return report.release, FROM_HEADER
    low, high = _bounds(report)
    if (low, high) == (OLDEST, NEWEST) or low > high:
        return None, None
    first, last = ("{}.{}".format(*version) for version in (low, high))
    return (first if first == last else f"{first}-{last}"), FROM_ROWS


def _bounds(report: Report) -> Tuple[Version, Version]:
    lows, highs = [OLDEST], [NEWEST]
    tables: Dict[str, Mapping[str, object]] = {
        "storage": report.storage,
        "rdma": report.rdma,
        "config": report.config,
        "platform": report.platform,
    }
    for table, rows in tables.items():
        ended = ("storage" if table == "rdma" else table) in report.sections
        for name, (first, before) in _ADDED[table].items():
            if name in rows:
                lows.append(first)
            elif ended:
                highs.append(before)
        for name, (last, after) in _REMOVED[table].items():
            if name in rows:
                highs.append(last)
            elif ended:
                lows.append(after)
    values = {row.value for label, row in report.storage.items() if label != RDMA_ROW}
    if "storage" in report.sections and any(value not in OLD_VALUES for value in values):
        lows.append((1, 16))
    elif "storage" in report.sections and "Supported" in values:
        # With compat mode disallowed, newer releases say Unsupported as well.
        highs.append((1, 15))
    if not report.nvidia_fs_minimum and report.config.get("properties.force_compat_mode") == "false":
        # From 1.13 the header also comes without nvidia-fs, except with forced compat mode.
        highs.append((1, 12))
    # Words of a refusal that changed: a bad configuration is an invalid property since 1.19.
    if not report.log and "Invalid argument" in report.errors:
        highs.append((1, 18))
    if not report.log and "invalid property" in report.errors:
        lows.append((1, 19))
    if any("driver is not loaded. Set allow_compat_mode" in line for line in report.errors):
        lows.append((1, 5))
    return max(lows), min(highs)


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
        "storage": storage(report),
        "rdma": rdma(report),
        "config": {key: typed_setting(key, value) for key, value in report.config.items()},
        "gpus": [typed_gpu(gpu, report) for gpu in report.gpus],
        "platform": platform(report),
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
    library = (release or "of unknown release") + (" (by its rows)" if source == FROM_ROWS else "")
    status = "" if report.exit_status is None else f", exit status {report.exit_status}"
    lines = [f"{name}: {report.verdict}", *(f"  {reason}" for reason in reasons(report))]
    forced = report.config.get("properties.force_compat_mode") == "true"
    unnamed = "not loaded" if report.complete and not forced else "not named"
    lines.append(f"  libcufile {library}, nvidia-fs {report.nvidia_fs or unnamed}{status}")
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


def _rows(report: Report) -> Iterator[str]:
    by_state: Dict[str, List[str]] = {}
    for label, row in storage(report).items():
        direct = [path for path in row["paths"] if path != "compat"]
        words = "{} ({})".format(label, ", ".join(direct)) if direct and row["supported"] else label
        by_state.setdefault(row["state"], []).append(words)
    for state, labels in by_state.items():
        yield "  {}: {}".format("claimed" if report.contradictions and state == DIRECT else state, ", ".join(labels))
    for gpu in report.gpus:
        supports = typed_gpu(gpu, report)["supports_gds"]
        state = {True: "supports GDS", False: "does not support GDS", None: "not shown"}[supports]
        size = "" if gpu.bar_mib is None else f", BAR1 {gpu.bar_mib} MiB"
        why = ": " + gpu.reason if gpu.reason else ""
        yield f"  GPU {gpu.index} {gpu.name}: {state}{size}{why}"
