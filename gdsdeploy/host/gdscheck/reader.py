"""Read the output of ``gdscheck -p``, or the same rows from a libcufile log, of releases 1.4 to 1.20.

Neither the exit status nor "Platform verification succeeded" proves anything: both come with every storage row
unsupported, with the proprietary driver, with an nvidia-fs below the minimum (seen in real output).  So the verdict
follows from the rows, and only if the report is whole: each heading once and in order, each row once, the end reached,
and no line that looks like a fragment.

The lines of a report, as libcufile 1.4.0 to 1.20.0 write them, whether gdscheck prints or a log holds them.

What one run of gdscheck said, and what follows from it.

Text as people paste it: bytes of any encoding, colours of a terminal, marks of Markdown.

Read a file: the output of one or several runs of gdscheck, or a libcufile log.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, replace
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

#: Headings in their order, and the table that each begins; what comes before the first is the header.
SECTIONS = {
    "ENVIRONMENT:": "environment",
    "DRIVER CONFIGURATION:": "storage",
    "CUFILE CONFIGURATION:": "config",
    "GPU INFO:": "gpus",
    "PLATFORM INFO:": "platform",
}
HEADINGS = tuple(SECTIONS)
END = "Platform verification succeeded"
FAILED = "Platform verification error"
#: Storage rows that every recorded release prints; where one is missing, another may hold its value.
ALWAYS = ("NVMe", "NVMeOF", "SCSI", "ScaleFlux CSD", "NVMesh", "IBM Spectrum Scale", "NFS", "BeeGFS", "WekaFS")
RDMA_ROW = "Userspace RDMA"
P2PDMA_ROW = "NVMe P2PDMA"
#: Rows of some releases: label → first and last release (major.minor) that prints it.  Where the header names the
#: release, a row that it should print and that is not there is a hole.
SINCE: Dict[str, Tuple[Tuple[int, int], Tuple[int, int]]] = {
    P2PDMA_ROW: ((1, 13), (1, 15)),
    "ScaTeFS": ((1, 14), (1, 99)),
    "VIRTIOFS": ((1, 16), (1, 99)),
    "PanFS": ((1, 19), (1, 99)),
}
#: Rows that a release leaves out of which no output was recorded: label → such releases (1.7.1 has no row for BeeGFS).
UNSURE: Dict[str, Tuple[Tuple[int, int], Tuple[int, int]]] = {"BeeGFS": ((1, 5), (1, 8))}
#: One of these names Lustre; which one is printed depends on its flavour.
LUSTRE = ("DDN EXAScaler", "FSx Lustre", "Lustre")
LABELS = frozenset((*ALWAYS, *SINCE, *LUSTRE, RDMA_ROW))
#: The first release whose storage rows are lists of paths.
LISTS = (1, 16)

#: The library gave up, or the program did not even start; the line before or after says why.
ERROR_LINES = re.compile(
    r"Platform verification (error|failed)|cuFile initialization failed|cuFile configuration load error|failed to load"
    r"|error reading config|parsing error|json type mismatch|cuda devices probe failed|No cuda devices|Init Failed"
    r"|not supported on current platform|platform is not supported|driver (?:is )?not loaded|version mismatch"
    r"|missing cuda symbols|found invalid|^Invalid argument$|^invalid |^(posix|should be) .*(error|multiple)"
    r"|error while loading shared libraries|dlopen error|CUDA Driver API error|version read error|Cuda version not Supp"
    r"|^terminate called|what\(\): |Segmentation fault|^Aborted|core dumped|out of UInt range"
    r"|gdscheck\S*: (command )?not found|gdscheck\S*: (No such file or directory|Permission denied)"
    r"|driver or file access error"
)
#: Without CUDA or a GPU releases from 1.16 on serve host memory only: their reports end with the configuration.
SYSMEM = re.compile(r"use this library only for sysmem")
#: The same in a log, where it is a warning; up to 1.15 it is an error.
SYSMEM_LOGGED = re.compile(r"use this library only for sysmem|missing cuda symbols while dynamic loading")
#: The last row of the configuration since 1.16, and what a log says when the library is open.
LAST_SETTING = "block.nvmeof.use_pci_p2pdma"
OPENED = "CUFile initialization complete"
#: Lines that come between rows and mean nothing for them.
STRAYS = re.compile(
    r"Using legacy GPU bounce buffer configuration|Error Loading numa symbols|warn: error opening log file"
    r"|Total GPUS supported|Total GPUs: \d|WARN: GDS is not guaranteed|Found ACS enabled for switch"
    r"|No GPU found in the system|IOMMU enabled on the system for DGX platform"
    r"|version check ok|driver open invoked|Inconsistent configured array sizes"
    # One for each key, where cufile.json lacks the section that it belongs to.
    r"|^cannot find json field: "
)
#: What betrays a line as a damaged row.
SUSPECT = re.compile(
    r"upport|compat|nvfs|p2pdma|dmabuf|peermem| : |==|^--|INFO:|CONFIGURATION|ENVIRONMENT|erification|GPU ind"
)
#: Words of a storage row since 1.16; all but ``compat`` are direct.
PATHS = ("p2pdma", "nvfs", "dmabuf", "nvidia_peermem", "c2c", "compat")
SUPPORTED, UNSUPPORTED, DISABLED = "Supported", "Unsupported", "Unsupported (Disabled)"
OLD_VALUES = {SUPPORTED: True, UNSUPPORTED: False, DISABLED: False}

HEADER = re.compile(
    r"(?:GDS release version\s*:\s*(?P<release>[0-9.]+)"
    r"|(?:nvidia_fs version\s*:\s*(?P<nvfs>[0-9.]+)\s*)?"
    r"(?:libcufile version\s*:\s*(?P<libcufile>[0-9.]+)|nvidia_fs minimum version\s*:\s*(?P<minimum>[0-9.]+))"
    r"|Platform\s*:\s*(?P<platform>\S+))$"
)
VARIABLE = re.compile(r"([A-Z][A-Z0-9_]+)\s*:\s?(.*)$")
ROW = re.compile(r"([A-Za-z][A-Za-z0-9 ]*?)\s*:\s+(.+)$")
RDMA = re.compile(r"--(\S.*?)\s*:\s+(.+)$")
#: A key of the configuration.  Its section is one of cufile.json: programs, too, begin lines with ``module.name:``.
SETTING = re.compile(
    r"((?:block|denylist|execution|fs|logging|miscellaneous|profile|properties|sparse)"
    r"(?:\.(?!(?:py|[ch]|cc|cpp|hpp|rs|go)\b)[a-z0-9_]+)+)\s*:\s?(.*)$"
)
#: A row of ``fs.….mount_table``: mount point and source, then addresses.
MOUNT = re.compile(r"(/\S*(?: \S+)*?)\s+dev_id \d+\s*:\s*(.*)$")
GPU = re.compile(
    r"GPU index (?P<index>\d+) (?P<name>.+?) bar:(?P<bar>\d+) bar size \(MiB\):(?P<mib>\d+)"
    r"(?: (?P<mode>supports GDS|compat mode))?, IOMMU State: (?P<iommu>Disabled|Pass-through or Enabled)$"
)
NO_GPU = re.compile(
    r"GPU (?:index )?(?P<index>\d+) (?P<name>.+?)"
    r"(?:: (?P<why>Model Not Supported)| NO GDS SUPPORT - Reason: (?P<reason>.+)"
    r"|:? (?P<old>does not have supported .*))$"
)
FACT = re.compile(r"([A-Z][A-Za-z ]+?)\s*:\s*(.+)$")
LOGGED_FACT = re.compile(r"(IOMMU|Nvidia Driver Info Status|Cuda Driver Version Installed|Arch|Platform)\s*:\s*(.+)$")
LOG_LINE = re.compile(
    r"\s*\d\d-\d\d-\d{4} [0-9:]+ \[pid=(?P<pid>\d+) tid=\d+\] (?P<level>[A-Z]+)\s+\S+:\d+ (?P<text>.*)$"
)
#: How a recording ends that keeps the exit status.
STATUS = re.compile(r"(?:rc|exit|exit[ _-]?(?:status|code))\s*[=:]?\s*(-?\d{1,5})$", re.IGNORECASE)
RULER = re.compile(r"=+$")


def offers(value: str) -> Optional[Tuple[bool, Tuple[str, ...]]]:
    """(is a direct path claimed, paths) of a storage row's value; None if it is none."""
    if value in OLD_VALUES:
        return OLD_VALUES[value], ()
    paths = tuple(name.strip() for name in value.split(","))
    return (any(name != "compat" for name in paths), paths) if all(name in PATHS for name in paths) else None


def version(words: str) -> Tuple[int, ...]:
    """``1.20.0.107`` as numbers; empty for anything else."""
    return tuple(int(part) for part in words.split(".")) if re.match(r"\d{1,6}(\.\d{1,6})*$", words) else ()


def rows_of(release: Tuple[int, ...], labels: Tuple[str, ...]) -> bool:
    """Whether these are all the rows that this release prints; an unknown release (empty) has at least ALWAYS."""
    series = release[:2]
    missing = [label for label in (*ALWAYS, RDMA_ROW) if label not in labels]
    may_miss = all(label in UNSURE and UNSURE[label][0] <= series <= UNSURE[label][1] for label in missing)
    has_newer = all(label in labels for label, (first, last) in SINCE.items() if first <= series <= last)
    return may_miss and has_newer and any(label in labels for label in LUSTRE)


#: Some storage has a direct path, some GPU can take it, and nothing in the report rules it out.
DIRECT = "direct"
#: The report is whole, and no I/O would take a direct path.
COMPAT = "compat"
#: The report claims a direct path that its own versions rule out.
BROKEN = "broken"
#: The library gave up, and said so.
REFUSED = "refused"
#: A log without a report, whose errors don't say that the library gave up: they are about calls, files or the platform.
ERRORS = "errors"
#: The text is cut, mixed, or none of gdscheck's: nothing follows from it.
UNKNOWN = "unknown"
VERDICTS = (DIRECT, COMPAT, BROKEN, REFUSED, ERRORS, UNKNOWN)


class Row(NamedTuple):
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
    #: number of the BAR
    bar: Optional[int] = None


class Report(NamedTuple):
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
    #: lines in which the library says why it stopped; of a log, every line of level ERROR before the report ended
    errors: Tuple[str, ...]
    #: lines that are no row and no known remark
    strays: Tuple[str, ...]
    #: the report can be believed to be one whole run
    complete: bool
    exit_status: Optional[int]
    verdict: str
    #: known remarks that came between the rows
    remarks: Tuple[str, ...] = ()
    #: why a claimed direct path cannot be
    contradictions: Tuple[str, ...] = ()
    #: of a log: lines of level ERROR after the report, about I/O
    later: Tuple[str, ...] = ()
    #: sections that were seen to their end, by the name of their table
    sections: Tuple[str, ...] = ()
    #: made from a libcufile log
    log: bool = False
    #: no CUDA or no GPU was there, and the library serves host memory only
    sysmem: bool = False


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
#: ``> `` of a quoted mail or comment.
_QUOTED = re.compile(r"(?m)^(?:[ \t]*> ?){1,20}")
#: Bold words: ``**NVMe : Supported**``; pointers in C have no such pairs.
_BOLD = re.compile(r"(?<![*\w])\*\*(?=[^\s*])([^*\n]*[^\s*])\*\*(?![*\w])")
_ENTITIES = (("&gt;", ">"), ("&lt;", "<"), ("&quot;", '"'), ("&amp;", "&"))


def encoding(data: bytes) -> str:
    """UTF-16 by its mark, or by a zero in nearly every second byte, as in text without its first bytes; else UTF-8."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    first, second = data[:4096:2], data[1:4096:2]
    few, most = 0.1 * len(second), 0.8 * len(second)
    if second.count(0) > most and first.count(0) <= few:
        return "utf-16-le"
    return "utf-16-be" if first.count(0) > most and second.count(0) <= few else "utf-8-sig"


def plain(data: bytes) -> str:
    """The text with line ends as ``\\n``, and without colours, zeros, quotation marks of Markdown and bold lines."""
    text = data.decode(encoding(data), "replace").replace("\0", "")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if ">" in text:
        text = _QUOTED.sub("", text)
    if "**" in text:
        text = _BOLD.sub(r"\1", text)
    for entity, character in _ENTITIES:
        text = text.replace(entity, character)
    return text


#: Most characters read of one line; no row is half as long, but a binary file may be one line.
LINE_LIMIT = 2000
#: Most lines recorded of each kind other than rows.
RECORDED_LINES = 200
#: Releases up to 1.8 print such rows for models that they don't know.
NO_WORD = "its row does not say that it supports GDS"
#: gdscheck names the newest nvidia-fs that the proprietary driver accepts.
_PROPRIETARY = re.compile(r"Supported only on \(nvidia-fs version <= ([0-9.]+)\)")


class Reader:
    """Reads one run line by line.  ``log``: the lines are messages of a libcufile log."""

    def __init__(self, log: bool = False) -> None:
        self.log = log
        self.header: Dict[str, str] = {}
        self.tables: Dict[str, Dict[str, str]] = {
            name: {} for name in ("environment", "storage", "rdma", "config", "platform")
        }
        self.gpus: Dict[int, Gpu] = {}
        self.errors: List[str] = []
        self.fatal = False
        self.strays: List[str] = []
        self.remarks: List[str] = []
        self.later: List[str] = []
        self.headings: List[str] = []
        self.ends = 0
        self.damaged = False
        self.sysmem = False
        self.opened = False
        self.last_setting = ""

    def line(self, text: str, whole: bool = True) -> None:
        """Read one line without its line end; ``whole``: the line isn't cut."""
        text = text.strip()
        if not text or RULER.match(text):
            return
        if len(text) > LINE_LIMIT:
            self._stray(text[:LINE_LIMIT])
        elif text in SECTIONS:
            self.headings.append(text)
        elif text == END:
            self.ends += 1
        elif ERROR_LINES.search(text):
            survived = SYSMEM.search(text) is not None
            self.sysmem, self.fatal = self.sysmem or survived, self.fatal or not survived
            self._record(self.errors, text)
        elif STRAYS.search(text) and not NO_GPU.match(text):
            self.sysmem = self.sysmem or SYSMEM.search(text) is not None
            self._record(self.remarks, text)
        elif not whole or not self._row(text):
            self._stray(text)

    def logged(self, level: str, text: str) -> None:
        """Read one message of a log, most of which are other remarks; none is a fragment of a row."""
        text = text.strip()
        done = self.ends > 0 or self.opened
        if level == "ERROR":
            self._record(self.later if done else self.errors, text)
            survived = SYSMEM.search(text) is not None
            self.sysmem = self.sysmem or survived
            self.fatal = self.fatal or (not done and not survived and ERROR_LINES.search(text) is not None)
        elif level in ("INFO", "WARN", "NOTICE") and not done:
            if text in SECTIONS:
                self.headings.append(text)
            elif text == END:
                self.ends += 1
            elif text == OPENED:
                self.opened = True
            elif SYSMEM_LOGGED.search(text):
                self.sysmem = True
                self._record(self.remarks, text)
            elif STRAYS.search(text) and not NO_GPU.match(text):
                self._record(self.remarks, text)
            elif len(text) <= LINE_LIMIT and not RULER.match(text):
                self._row(text)

    @property
    def ended(self) -> bool:
        """Whether the report is complete; without CUDA or a GPU it ends after the configuration."""
        if tuple(self.headings) == HEADINGS:
            return self.ends == 1
        only_config = self.sysmem and tuple(self.headings) == HEADINGS[:3] and not self.ends
        return only_config and (self.opened if self.log else self.last_setting == LAST_SETTING)

    def _stray(self, text: str) -> None:
        self._record(self.strays, text)
        # Lines after the end of a whole report (timings of -f, the next prompt) aren't part of it.
        if not self.ends and SUSPECT.search(text):
            self.damaged = True

    def _record(self, lines: List[str], text: str) -> None:
        if self.log and len(lines) == RECORDED_LINES:
            # The first ones say what began it, the last ones how it ended.
            del lines[RECORDED_LINES // 2]
        if len(lines) < RECORDED_LINES:
            lines.append(text)

    def _row(self, text: str) -> bool:
        section = SECTIONS[self.headings[-1]] if self.headings else ""
        if self.ends:
            return False
        if section == "":
            return self._header(text)
        if section == "environment":
            return self._put(section, VARIABLE.match(text))
        if section == "storage":
            return self._put("rdma", RDMA.match(text)) or self._storage(text)
        if section == "config":
            return self._setting(text)
        if section == "gpus":
            return self._gpu(text)
        # A log has many other messages in the last section.
        return self._put(section, (LOGGED_FACT if self.log else FACT).match(text))

    def _put(self, table: str, row: Optional[re.Match[str]]) -> bool:
        if row is None:
            return False
        key, value = row[1], row[2].strip()
        self.damaged = self.damaged or key in self.tables[table]
        self.tables[table][key] = value
        return True

    def _setting(self, text: str) -> bool:
        setting, mount = SETTING.match(text), MOUNT.match(text)
        if setting:
            self.last_setting = setting[1]
        elif mount and self.last_setting.endswith(".mount_table"):
            rows = self.tables["config"]
            row = f"{mount[1]}: {mount[2].strip()}"
            rows[self.last_setting] = "; ".join(filter(None, (rows[self.last_setting], row)))
            return True
        return self._put("config", setting)

    def _storage(self, text: str) -> bool:
        row = ROW.match(text)
        return row is not None and offers(row[2].strip()) is not None and self._put("storage", row)

    def _header(self, text: str) -> bool:
        header = HEADER.match(text)
        for key, value in (header.groupdict() if header else {}).items():
            if value:
                self.damaged = self.damaged or key in self.header
                self.header[key] = value
        return header is not None

    def _gpu(self, text: str) -> bool:
        good, bad = GPU.match(text), NO_GPU.match(text)
        if good:
            index, mode = int(good["index"]), good["mode"]
            self.damaged = self.damaged or index in self.gpus
            values = (int(good["mib"]), good["iommu"], "" if mode else NO_WORD, int(good["bar"]))
            self.gpus[index] = Gpu(index, good["name"], mode == "supports GDS", *values)
        elif bad:
            index, reason = int(bad["index"]), (bad["why"] or bad["reason"] or bad["old"]).strip()
            before = self.gpus.get(index, Gpu(index, "", False))
            # Since 1.16 the reason has its own line beside the GPU's row; the same line twice comes from two runs.
            self.damaged = self.damaged or before.gds or (index in self.gpus and reason in before.reason)
            reason = "; ".join(filter(None, (before.reason, reason)))
            self.gpus[index] = replace(before, name=bad["name"], gds=False, reason=reason)
        return bool(good or bad)

    def report(self, exit_status: Optional[int]) -> Report:
        """The report of all lines so far."""
        rows, config, platform = (self.tables[name] for name in ("storage", "config", "platform"))
        release, nvidia_fs = self.header.get("release", ""), self.header.get("nvfs", "")
        minimum = self.header.get("minimum") or self.header.get("libcufile", "")
        sound = not self.damaged and _consistent(version(release), nvidia_fs, rows)
        complete = sound and self.ended and not self.fatal
        # Rows that claim nothing are reliable once their section has ended.
        rows_ended = sound and tuple(self.headings[:3]) == HEADINGS[:3]
        if self.headings[-1:] == ["CUFILE CONFIGURATION:"] and self.last_setting.endswith(".mount_table"):
            # The text ends within this table, or before it.
            del config[self.last_setting]
        storage = {label: _storage_row(label, value, complete, rows_ended) for label, value in rows.items()}
        gpus = tuple(self.gpus[index] for index in sorted(self.gpus))
        driver = platform.get("Nvidia Driver Info Status", "")
        claimed = complete and bool(_through_nvidia_fs(rows))
        contradictions = tuple(_contradictions(nvidia_fs, minimum, driver)) if claimed else ()
        direct = any(row.supported for row in storage.values()) and any(gpu.gds for gpu in gpus)
        if self.fatal:
            verdict = REFUSED
        elif self.log and self.errors and not self.ended:
            verdict = ERRORS
        elif not complete or not storage:
            verdict = UNKNOWN
        else:
            verdict = BROKEN if contradictions else DIRECT if direct else COMPAT
        return Report(
            release=release,
            nvidia_fs=nvidia_fs,
            nvidia_fs_minimum=minimum,
            environment=self.tables["environment"],
            storage=storage,
            rdma=self.tables["rdma"],
            config=config,
            gpus=gpus,
            platform=platform,
            errors=tuple(self.errors),
            strays=tuple(self.strays),
            complete=complete,
            exit_status=exit_status,
            verdict=verdict,
            remarks=tuple(self.remarks),
            contradictions=contradictions,
            later=tuple(self.later),
            sections=self._sections(sound),
            log=self.log,
            sysmem=self.sysmem,
        )

    def _sections(self, sound: bool) -> Tuple[str, ...]:
        headings = tuple(self.headings)
        if self.damaged or headings != HEADINGS[: len(headings)]:
            return ()
        names = [SECTIONS[heading] for heading in (headings if self.ended else headings[:-1])]
        return tuple(name for name in names if name != "storage" or sound)


def parse(lines: Iterable[str], exit_status: Optional[int] = None, last_is_whole: bool = True) -> Report:
    """Read the output (stdout and stderr together) of one ``gdscheck -p``; never raises.

    last_is_whole: the last line isn't cut.
    """
    reader, pending = Reader(), ""
    for line in lines:
        reader.line(pending)
        pending = line
    reader.line(pending, last_is_whole)
    return reader.report(exit_status)


def parse_log(text: str) -> Report:
    """Read the same rows from a libcufile log of level INFO or more: the first report in it; never raises."""
    return log_runs(_messages(text.split("\n")))[0]


#: (process, level, text) of a line of a log.
Message = Tuple[str, str, str]


def _messages(lines: Iterable[str]) -> Iterator[Message]:
    matches = (LOG_LINE.match(line[:LINE_LIMIT]) for line in lines)
    return ((match["pid"], match["level"], match["text"]) for match in matches if match)


def _consistent(release: Tuple[int, ...], nvidia_fs: str, rows: Mapping[str, str]) -> bool:
    """Whether the rows are complete, and in one release's words: single ones up to 1.15, lists of paths since."""
    if not rows_of(release, tuple(rows)):
        return False
    lists = any(value not in OLD_VALUES for label, value in rows.items() if label != RDMA_ROW)
    # With compat mode disallowed every value of a newer release can be Unsupported.
    one_style = not release or release[:2] >= LISTS or not lists
    # The header names the release and a loaded nvidia-fs, except in runs without nvidia-fs and with forced compat mode:
    # a direct path without a name is half a report.
    claims = any((offers(value) or (False,))[0] for value in rows.values())
    return one_style and (bool(release) or not claims) and (bool(nvidia_fs) or not _through_nvidia_fs(rows))


def _storage_row(label: str, value: str, complete: bool, rows_ended: bool) -> Row:
    direct, paths = offers(value) or (False, ())
    if direct:
        return Row(value, True if complete and label in LABELS else None, paths)
    return Row(value, False if rows_ended else None, paths)


def _through_nvidia_fs(rows: Mapping[str, str]) -> List[str]:
    """Labels of rows that claim a path through nvidia-fs (WekaFS uses userspace RDMA)."""
    return [
        label
        for label, value in rows.items()
        if label not in (P2PDMA_ROW, RDMA_ROW)
        and ("nvfs" in value.split(", ") or (value == SUPPORTED and label != "WekaFS"))
    ]


def _contradictions(nvidia_fs: str, minimum: str, driver: str) -> Iterator[str]:
    """Why the report's own versions rule out the claimed path through nvidia-fs."""
    if minimum and version(nvidia_fs) < version(minimum):
        yield f"the loaded nvidia-fs {nvidia_fs} is older than the minimum {minimum}"
    proprietary = _PROPRIETARY.match(driver)
    if proprietary and version(nvidia_fs)[:2] > version(proprietary[1])[:2]:
        limit = f"the driver is the proprietary one, which takes nvidia-fs up to {proprietary[1]} only"
        yield f"{limit}; {nvidia_fs} is loaded"


#: Most bytes read of a file, in less than 300 MiB of memory: hundreds of reports, or a log of 100,000 messages.
LIMIT = 8 * 1024 * 1024
GDSCHECK, LOG, NOTHING = "gdscheck", "cufile.log", "unknown"


class Recording(NamedTuple):
    """The content of a file.

    ``runs``: at least one, in their order; the last one counts.  ``kind``: ``gdscheck``, ``cufile.log`` or ``unknown``.
    ``cut``: the file is larger than LIMIT, and its end was not read.
    """

    runs: Tuple[Report, ...]
    kind: str
    cut: bool = False

    @property
    def report(self) -> Report:
        """The last run."""
        return self.runs[-1]


def read_recording(data: bytes, exit_status: Optional[int] = None) -> Recording:
    """Read the content of a file; ``exit_status``: the status of its last run, which the file may name too.

    A recording may end each run with a line like ``rc=255``.  Never raises.
    """
    lines = plain(data[:LIMIT]).split("\n")
    cut = len(data) > LIMIT
    # A log has messages in its own format, and no report outside of them.
    if next(_messages(lines), None) and not any(line.strip() in SECTIONS for line in lines):
        # The last line has no end: it may be cut.
        return Recording(log_runs(_messages(lines[:-1])), LOG, cut)
    runs = _output_runs(lines, exit_status)
    return Recording(runs, GDSCHECK if any(says_something(run) for run in runs) else NOTHING, cut)


def says_something(run: Report) -> bool:
    """Whether any row, heading or error of gdscheck is in it."""
    return bool(run.storage or run.errors or run.release or run.nvidia_fs_minimum or run.config or run.sections)


def log_runs(messages: Iterable[Message]) -> Tuple[Report, ...]:
    """The runs in a log's messages, in the order of their last messages; at least one.

    Several processes may write to a log, and each may open the library several times.  The errors of all processes
    that wrote no report are one run: which of them has the cause, only the lines together tell.
    """
    readers: Dict[str, Reader] = {}
    runs: Dict[Reader, None] = {}
    errors: List[Tuple[Reader, str]] = []
    for pid, level, message in messages:
        text = message.strip()
        reader = readers.get(pid)
        if reader is None or _begins(text, reader):
            reader = readers[pid] = Reader(log=True)
        # The one with the last message is the last.
        runs.pop(reader, None)
        runs[reader] = None
        reader.logged(level, text)
        if level == "ERROR":
            errors.append((reader, text))
    reports = [reader.report(None) for reader in _merged(list(runs), errors)]
    # A process that wrote no row and no error doesn't matter here.
    telling = [report for report in reports if says_something(report)]
    return tuple(telling or [*reports, Reader(log=True).report(None)][:1])


def _merged(runs: List[Reader], errors: List[Tuple[Reader, str]]) -> Iterator[Reader]:
    """The runs; one in place of all those that have errors and neither a report nor one that ends the library."""
    only_errors = [reader for reader in runs if reader.errors and not reader.headings and not reader.fatal]
    members = set(only_errors)
    for reader in runs:
        if reader not in members:
            yield reader
        elif reader is only_errors[-1]:
            whole = Reader(log=True)
            for other, text in errors:
                if other in members:
                    whole.logged("ERROR", text)
            yield whole


def _begins(text: str, reader: Reader) -> bool:
    """Whether this message begins another report."""
    header = HEADER.match(text)
    if header and header["release"]:
        return "release" in reader.header
    return text == HEADINGS[0] and text in reader.headings


def _output_runs(lines: List[str], exit_status: Optional[int]) -> Tuple[Report, ...]:
    pieces = _pieces(lines)
    if exit_status is not None:
        pieces[-1] = (pieces[-1][0], exit_status)
    *others, (last, status) = pieces
    whole_end = lines[-1] == ""
    runs = (*(parse(*other) for other in others), parse(last, status, whole_end))
    if others and not all(run.complete or run.verdict == REFUSED for run in runs):
        # Pieces that aren't whole may be one run's lines among another's.
        return (parse([line for piece, _ in pieces for line in piece], status, whole_end),)
    return runs


def _pieces(lines: List[str]) -> List[Tuple[List[str], Optional[int]]]:
    """Split at each line with an exit status, and where a report begins after the end of another."""
    pieces: List[Tuple[List[str], Optional[int]]] = [([], None)]
    ended = False
    for line in lines:
        text = line.strip()[:LINE_LIMIT]
        status = STATUS.match(text)
        piece, piece_status = pieces[-1]
        if status and piece_status is None and any(map(str.strip, piece)):
            pieces[-1] = (piece, int(status[1]))
            ended = True
            continue
        starts = (text != "" and piece_status is not None) or _starts(text, piece)
        if ended and starts:
            pieces.append(([line], None))
            ended = False
            continue
        piece.append(line)
        ended = ended or text == END or text.startswith(FAILED)
    if len(pieces) > 1 and not any(_is_row(line) for line in pieces[-1][0]) and pieces[-1][1] is None:
        # Text after the last status: the prompt, or a remark.
        rest, _ = pieces.pop()
        pieces[-1][0].extend(rest)
    return pieces


def _starts(text: str, piece: List[str]) -> bool:
    """Whether this line begins a report, if the previous one has ended."""
    header = HEADER.match(text)
    if header and (header["release"] or header["nvfs"]):
        return True
    if text == HEADINGS[0] or SYSMEM.search(text):
        return True
    return text != "" and ERROR_LINES.search(text) is not None and END in (line.strip() for line in piece)


def _is_row(line: str) -> bool:
    text = line.strip()[:LINE_LIMIT]
    return bool(HEADER.match(text) or text in SECTIONS or ERROR_LINES.search(text))
