"""Read what ``gdscheck -p`` prints, or the same rows from a libcufile log, of releases 1.4 to 1.20.

Neither the exit status nor "Platform verification succeeded" proves anything: both come with every storage row
unsupported, with the proprietary driver, with an nvidia-fs below the minimum (seen in real output).  So the verdict
follows from the rows, and only if the report is whole: each heading once and in order, no row twice, its end reached,
and no line that looks like a piece of another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Tuple

DIRECT, COMPAT, REFUSED, UNKNOWN = "direct", "compat", "refused", "unknown"

#: Headings in their order; what comes before the first is the header.
HEADINGS = ("ENVIRONMENT:", "DRIVER CONFIGURATION:", "CUFILE CONFIGURATION:", "GPU INFO:", "PLATFORM INFO:")
END = "Platform verification succeeded"
#: Storage rows that every release from 1.4 to 1.20 prints; where one is missing, another may hold its value.
ALWAYS = ("NVMe", "NVMeOF", "SCSI", "ScaleFlux CSD", "NVMesh", "IBM Spectrum Scale", "NFS", "BeeGFS", "WekaFS")
#: The library gave up; the line before or after says why.
ERRORS = re.compile(
    r"Platform verification (error|failed)|cuFile initialization failed|cuFile configuration load error|failed to load"
    r"|error reading config|parsing error|json type mismatch|cuda devices probe failed|No cuda devices|Init Failed"
    r"|not supported on current platform|platform is not supported|driver is not loaded|version mismatch"
    r"|missing cuda symbols|found invalid|^Invalid argument$|^invalid |^(posix|should be) .*(error|multiple)"
)
#: Lines that come between rows and mean nothing for them.
STRAYS = re.compile(
    r"Using legacy GPU bounce buffer configuration|Error Loading numa symbols|warn: error opening log file"
    r"|Total GPUS supported|WARN: GDS is not guaranteed|Found ACS enabled for switch|No GPU found in the system"
)
#: What betrays a line as a damaged row.
SUSPECT = re.compile(
    r"upport|compat|nvfs|p2pdma|dmabuf|peermem| : |==|^--|INFO:|CONFIGURATION|ENVIRONMENT|erification|GPU ind"
)
#: Words of a storage row since 1.16; all but ``compat`` are direct.
PATHS = ("p2pdma", "nvfs", "dmabuf", "nvidia_peermem", "c2c", "compat")
_OLD_VALUES = {"Supported": True, "Unsupported": False, "Unsupported (Disabled)": False}

_HEADER = re.compile(
    r"(?:GDS release version:\s*(?P<release>[0-9.]+)"
    r"|(?:nvidia_fs version:\s*(?P<nvfs>[0-9.]+)\s*)?"
    r"(?:libcufile version:\s*(?P<libcufile>[0-9.]+)|nvidia_fs minimum version:\s*(?P<minimum>[0-9.]+))"
    r"|Platform:\s*(?P<platform>\S+))$"
)
_VARIABLE = re.compile(r"([A-Z][A-Z0-9_]+) : (.*)$")
_ROW = re.compile(r"([A-Za-z][A-Za-z0-9 ]*?)\s*: (.+)$")
_RDMA = re.compile(r"--(\S.*?)\s*: (.+)$")
_SETTING = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+)\s?: (.*)$")
_GPU = re.compile(
    r"GPU index (?P<index>\d+) (?P<name>.+?) bar:(?P<bar>\d+) bar size \(MiB\):(?P<mib>\d+) "
    r"(?P<mode>supports GDS|compat mode), IOMMU State: (?P<iommu>Disabled|Pass-through or Enabled)$"
)
_NO_GPU = re.compile(
    r"GPU (?:index )?(?P<index>\d+) (?P<name>.+?)"
    r"(?:: (?P<why>Model Not Supported)| NO GDS SUPPORT - Reason: (?P<reason>.+)"
    r"|:? (?P<old>does not have supported .*))$"
)
_FACT = re.compile(r"([A-Z][A-Za-z ]+?):\s*(.+)$")
_LOG = re.compile(r"\s*\d\d-\d\d-\d{4} [0-9:]+ \[pid=\d+ tid=\d+\] (?P<level>[A-Z]+)\s+\S+:\d+ (?P<text>.*)$")


@dataclass(frozen=True)
class Row:
    """A storage row as printed.  ``supported``: whether a direct path is claimed; None: the report does not say."""

    value: str
    supported: Optional[bool]
    #: since 1.16, all that is offered, e.g. ``nvfs``, ``compat``
    paths: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """A GPU row; ``bar_mib`` is the size of BAR1 in MiB; ``reason`` says why it has no direct path."""

    index: int
    name: str
    gds: bool
    bar_mib: Optional[int] = None
    iommu: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """What one run said."""

    release: str
    #: of the loaded module, major.minor; empty while none is loaded
    nvidia_fs: str
    nvidia_fs_minimum: str
    environment: Mapping[str, str]
    storage: Mapping[str, Row]
    rdma: Mapping[str, str]
    config: Mapping[str, str]
    gpus: Tuple[Gpu, ...]
    platform: Mapping[str, str]
    #: lines in which the library says why it stopped
    errors: Tuple[str, ...]
    #: lines that are no row and no known remark
    strays: Tuple[str, ...]
    #: the report can be believed to be one whole run
    complete: bool
    exit_status: Optional[int]
    #: ``direct``: some storage has a direct path and some GPU supports GDS; ``compat``: none has; ``refused``: the
    #: library gave up; ``unknown``: the text is cut, mixed or not understood
    verdict: str


class _Reader:
    def __init__(self) -> None:
        self.header: Dict[str, str] = {}
        self.tables: Dict[str, Dict[str, str]] = {
            name: {} for name in ("environment", "driver", "rdma", "config", "platform")
        }
        self.gpus: Dict[int, Gpu] = {}
        self.errors: List[str] = []
        self.strays: List[str] = []
        self.headings: List[str] = []
        self.ends = 0
        self.damaged = False

    def line(self, text: str) -> None:
        if not text or re.match(r"=+$", text):
            return
        if text in HEADINGS:
            self.headings.append(text)
        elif text == END:
            self.ends += 1
        elif ERRORS.search(text):
            self.errors.append(text)
        elif not self._row(text) and not STRAYS.search(text):
            self.strays.append(text)
            self.damaged = self.damaged or SUSPECT.search(text) is not None

    def _row(self, text: str) -> bool:
        section = self.headings[-1] if self.headings else ""
        if section == "":
            return self._header(text)
        if section == "ENVIRONMENT:":
            return self._put("environment", _VARIABLE.match(text))
        if section == "DRIVER CONFIGURATION:":
            return self._put("rdma", _RDMA.match(text)) or self._storage(text)
        if section == "CUFILE CONFIGURATION:":
            return self._put("config", _SETTING.match(text))
        if section == "GPU INFO:":
            return self._gpu(text)
        return self._put("platform", _FACT.match(text))

    def _put(self, table: str, found: Optional[re.Match[str]]) -> bool:
        if found is None:
            return False
        key, value = found.group(1), found.group(2).strip()
        self.damaged = self.damaged or key in self.tables[table]
        self.tables[table][key] = value
        return True

    def _storage(self, text: str) -> bool:
        found = _ROW.match(text)
        return found is not None and _offers(found.group(2).strip()) is not None and self._put("driver", found)

    def _header(self, text: str) -> bool:
        found = _HEADER.match(text)
        for key, value in (found.groupdict() if found else {}).items():
            if value:
                self.damaged = self.damaged or key in self.header
                self.header[key] = value
        return found is not None

    def _gpu(self, text: str) -> bool:
        good, bad = _GPU.match(text), _NO_GPU.match(text)
        if good:
            index = int(good.group("index"))
            self.damaged = self.damaged or index in self.gpus
            gds = good.group("mode") == "supports GDS"
            self.gpus[index] = Gpu(index, good.group("name"), gds, int(good.group("mib")), good.group("iommu"))
        elif bad:
            index, reason = int(bad.group("index")), bad.group("why") or bad.group("reason") or bad.group("old")
            before = self.gpus.get(index)
            # Since 1.16 the reason has a line of its own beside the GPU's row; the same line twice comes of two runs.
            self.damaged = self.damaged or (before is not None and (before.gds or reason.strip() in before.reason))
            size, iommu, first = (before.bar_mib, before.iommu, before.reason) if before else (None, "", "")
            self.gpus[index] = Gpu(
                index, bad.group("name"), False, size, iommu, "; ".join(filter(None, (first, reason.strip())))
            )
        return bool(good or bad)


def _offers(value: str) -> Optional[Tuple[bool, Tuple[str, ...]]]:
    """(is a direct path claimed, paths) of a storage row's value; None if it is none."""
    if value in _OLD_VALUES:
        return _OLD_VALUES[value], ()
    paths = tuple(item.strip() for item in value.split(","))
    return (any(item != "compat" for item in paths), paths) if all(item in PATHS for item in paths) else None


def parse(text: str, exit_status: Optional[int] = None) -> Report:
    """Read the output (stdout and stderr together) of ``gdscheck -p``; never raises."""
    reader = _Reader()
    for line in text.splitlines():
        reader.line(line.strip())
    return _report(reader, exit_status)


def parse_log(text: str) -> Report:
    """Read the same rows from a libcufile log of level INFO or more: of the first report in it."""
    reader = _Reader()
    for line in text.splitlines():
        found = _LOG.match(line)
        message = found.group("text").strip() if found else ""
        if found and found.group("level") == "ERROR":
            reader.errors.append(message)
        elif found and found.group("level") == "INFO":
            reader.line(message)
        # A log is written line by line and full of other remarks: none of them is half of a row.
        reader.damaged = False
        if reader.ends:
            break
    return _report(reader, None)


def _report(reader: _Reader, exit_status: Optional[int]) -> Report:
    rows = all(label in reader.tables["driver"] for label in ALWAYS)
    sound = rows and not reader.damaged
    complete = sound and tuple(reader.headings) == HEADINGS and reader.ends == 1 and not reader.errors
    # Rows that claim nothing can be believed once their section has ended.
    ended = sound and tuple(reader.headings[:3]) == HEADINGS[:3]
    storage = {label: _storage_row(value, complete, ended) for label, value in reader.tables["driver"].items()}
    gpus = tuple(reader.gpus[index] for index in sorted(reader.gpus))
    return Report(
        release=reader.header.get("release", ""),
        nvidia_fs=reader.header.get("nvfs", ""),
        nvidia_fs_minimum=reader.header.get("minimum") or reader.header.get("libcufile", ""),
        environment=reader.tables["environment"],
        storage=storage,
        rdma=reader.tables["rdma"],
        config=reader.tables["config"],
        gpus=gpus,
        platform=reader.tables["platform"],
        errors=tuple(reader.errors),
        strays=tuple(reader.strays),
        complete=complete,
        exit_status=exit_status,
        verdict=_verdict(reader, complete, storage, gpus, exit_status),
    )


def _storage_row(value: str, complete: bool, ended: bool) -> Row:
    direct, paths = _offers(value) or (False, ())
    if direct:
        return Row(value, True if complete else None, paths)
    return Row(value, False if ended else None, paths)


def _verdict(
    reader: _Reader, complete: bool, storage: Mapping[str, Row], gpus: Tuple[Gpu, ...], exit_status: Optional[int]
) -> str:
    if reader.errors:
        return REFUSED
    # A failing status after a whole report contradicts it.
    if not complete or not storage or exit_status not in (None, 0):
        return UNKNOWN
    direct = any(row.supported for row in storage.values()) and any(gpu.gds for gpu in gpus)
    return DIRECT if direct else COMPAT
