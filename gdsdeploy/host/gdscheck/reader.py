"""Read what ``gdscheck -p`` prints, or the same rows from a libcufile log, of releases 1.4 to 1.20.

Neither the exit status nor "Platform verification succeeded" proves anything: both come with every storage row
unsupported, with the proprietary driver, with an nvidia-fs below the minimum (seen in real output).  So the verdict
follows from the rows, and only if the report is whole: each heading once and in order, no row twice, none missing, its
end reached, and no line that looks like a piece of another.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from . import grammar
from .report import BROKEN, COMPAT, DIRECT, REFUSED, UNKNOWN, Gpu, Report, Row

#: Characters of a line that are looked at; no row is half as long, but a file of binary junk may be one line.
LINE_LIMIT = 2000
#: Lines that are kept of each kind that is no row.
KEPT = 200
#: Releases up to 1.8 print so of models that they do not know.
NO_WORD = "its row does not say that it supports GDS"
#: The newest nvidia-fs that the proprietary driver takes, as gdscheck says it.
_PROPRIETARY = re.compile(r"Supported only on \(nvidia-fs version <= ([0-9.]+)\)")


class Reader:
    """Takes a run line by line."""

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
        """One line without its end; ``whole``: it was seen to its end."""
        text = text.strip()
        if not text or grammar.RULER.match(text):
            return
        if len(text) > LINE_LIMIT:
            self._stray(text[:LINE_LIMIT])
        elif text in grammar.SECTIONS:
            self.headings.append(text)
        elif text == grammar.END:
            self.ends += 1
        elif grammar.ERRORS.search(text):
            survived = grammar.SYSMEM.search(text) is not None
            self.sysmem, self.fatal = self.sysmem or survived, self.fatal or not survived
            self._keep(self.errors, text)
        elif grammar.STRAYS.search(text) and not grammar.NO_GPU.match(text):
            self.sysmem = self.sysmem or grammar.SYSMEM.search(text) is not None
            self._keep(self.remarks, text)
        elif not whole or not self._row(text):
            self._stray(text)

    def logged(self, level: str, text: str) -> None:
        """One message of a log.  It is full of other remarks, and none of them is half of a row."""
        text = text.strip()
        done = self.ends > 0 or self.opened
        if level == "ERROR":
            self._keep(self.later if done else self.errors, text)
            survived = grammar.SYSMEM.search(text) is not None
            self.sysmem = self.sysmem or survived
            self.fatal = self.fatal or (not done and not survived and grammar.ERRORS.search(text) is not None)
        elif level in ("INFO", "WARN", "NOTICE") and not done:
            if text in grammar.SECTIONS:
                self.headings.append(text)
            elif text == grammar.END:
                self.ends += 1
            elif text == grammar.OPENED:
                self.opened = True
            elif grammar.SYSMEM_LOGGED.search(text):
                self.sysmem = True
                self._keep(self.remarks, text)
            elif grammar.STRAYS.search(text) and not grammar.NO_GPU.match(text):
                self._keep(self.remarks, text)
            elif len(text) <= LINE_LIMIT and not grammar.RULER.match(text):
                self._row(text)

    @property
    def ended(self) -> bool:
        """Whether the report has come to its end, in one of the two ways that it has."""
        if tuple(self.headings) == grammar.HEADINGS:
            return self.ends == 1
        only_config = self.sysmem and tuple(self.headings) == grammar.HEADINGS[:3] and not self.ends
        return only_config and (self.opened if self.log else self.last_setting == grammar.LAST_SETTING)

    def _stray(self, text: str) -> None:
        self._keep(self.strays, text)
        # What follows the end of a whole report (timings of -f, the next prompt) is not part of it.
        if not self.ends and grammar.SUSPECT.search(text):
            self.damaged = True

    @staticmethod
    def _keep(lines: List[str], text: str) -> None:
        if len(lines) < KEPT:
            lines.append(text)

    def _row(self, text: str) -> bool:
        section = grammar.SECTIONS[self.headings[-1]] if self.headings else ""
        if self.ends:
            return False
        if section == "":
            return self._header(text)
        if section == "environment":
            return self._put(section, grammar.VARIABLE.match(text))
        if section == "storage":
            return self._put("rdma", grammar.RDMA.match(text)) or self._storage(text)
        if section == "config":
            return self._setting(text)
        if section == "gpus":
            return self._gpu(text)
        return (not self.log or _platform_fact(text)) and self._put(section, grammar.FACT.match(text))

    def _put(self, table: str, found: Optional[re.Match[str]]) -> bool:
        if found is None:
            return False
        key, value = found.group(1), found.group(2).strip()
        self.damaged = self.damaged or key in self.tables[table]
        self.tables[table][key] = value
        return True

    def _setting(self, text: str) -> bool:
        found = grammar.SETTING.match(text)
        mount = grammar.MOUNT.match(text)
        if found:
            self.last_setting = found.group(1)
        elif mount and self.last_setting.endswith(".mount_table"):
            rows = self.tables["config"]
            row = f"{mount.group(1)}: {mount.group(2).strip()}"
            rows[self.last_setting] = "; ".join(filter(None, (rows[self.last_setting], row)))
            return True
        return self._put("config", found)

    def _storage(self, text: str) -> bool:
        found = grammar.ROW.match(text)
        return found is not None and grammar.offers(found.group(2).strip()) is not None and self._put("storage", found)

    def _header(self, text: str) -> bool:
        found = grammar.HEADER.match(text)
        for key, value in (found.groupdict() if found else {}).items():
            if value:
                self.damaged = self.damaged or key in self.header
                self.header[key] = value
        return found is not None

    def _gpu(self, text: str) -> bool:
        good, bad = grammar.GPU.match(text), grammar.NO_GPU.match(text)
        if good:
            index = int(good.group("index"))
            self.damaged = self.damaged or index in self.gpus
            self.gpus[index] = Gpu(
                index,
                good.group("name"),
                good.group("mode") == "supports GDS",
                int(good.group("mib")),
                good.group("iommu"),
                "" if good.group("mode") else NO_WORD,
                bar=int(good.group("bar")),
            )
        elif bad:
            index, reason = int(bad.group("index")), bad.group("why") or bad.group("reason") or bad.group("old")
            before = self.gpus.get(index)
            # Since 1.16 the reason has a line of its own beside the GPU's row; the same line twice comes of two runs.
            self.damaged = self.damaged or (before is not None and (before.gds or reason.strip() in before.reason))
            size, iommu, first = (before.bar_mib, before.iommu, before.reason) if before else (None, "", "")
            reasons = "; ".join(filter(None, (first, reason.strip())))
            self.gpus[index] = Gpu(
                index, bad.group("name"), False, size, iommu, reasons, before.bar if before else None
            )
        return bool(good or bad)

    def report(self, exit_status: Optional[int]) -> Report:
        """What the lines so far amount to."""
        return _report(self, exit_status)


def _platform_fact(text: str) -> bool:
    """Whether a log's message in the last section is a row of it: many others are there."""
    return (
        re.match(r"(IOMMU|Nvidia Driver Info Status|Cuda Driver Version Installed|Arch|Platform)\s*:", text) is not None
    )


def parse(text: str, exit_status: Optional[int] = None) -> Report:
    """Read the output (stdout and stderr together) of one ``gdscheck -p``; never raises."""
    return parse_lines(text.split("\n"), exit_status)


def parse_lines(lines: Iterable[str], exit_status: Optional[int] = None, last_is_whole: bool = True) -> Report:
    """Read one run; ``last_is_whole``: the last line was seen to its end."""
    reader, pending = Reader(), ""
    for line in lines:
        reader.line(pending)
        pending = line
    reader.line(pending, last_is_whole)
    return reader.report(exit_status)


def parse_log(text: str) -> Report:
    """Read the same rows from a libcufile log of level INFO or more: of the first report in it; never raises."""
    reader = Reader(log=True)
    for line in text.split("\n"):
        found = grammar.LOG.match(line[:LINE_LIMIT])
        if found:
            reader.logged(found.group("level"), found.group("text"))
        if reader.ends or reader.opened:
            break
    return reader.report(None)


def _report(reader: Reader, exit_status: Optional[int]) -> Report:
    rows = reader.tables["storage"]
    release = grammar.version(reader.header.get("release", ""))
    sound = not reader.damaged and grammar.rows_of(release, tuple(rows)) and _one_style(release, rows)
    # The header names the release and a loaded nvidia-fs, but for runs without nvidia-fs and for forced compat mode:
    # a direct path without a name is half a report.
    claims = any((grammar.offers(value) or (False,))[0] for value in rows.values())
    sound = (
        sound and (bool(release) or not claims) and (bool(reader.header.get("nvfs")) or not _through_nvidia_fs(rows))
    )
    complete = sound and reader.ended and not reader.fatal
    # Rows that claim nothing can be believed once their section has ended.
    ended = sound and tuple(reader.headings[:3]) == grammar.HEADINGS[:3]
    if reader.headings[-1:] == ["CUFILE CONFIGURATION:"] and reader.last_setting.endswith(".mount_table"):
        # The text ends within this table, or before it.
        del reader.tables["config"][reader.last_setting]
    storage = {label: _storage_row(label, value, complete, ended) for label, value in rows.items()}
    gpus = tuple(reader.gpus[index] for index in sorted(reader.gpus))
    contradictions = _contradictions(reader) if complete else ()
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
        verdict=_verdict(reader, complete, storage, gpus, contradictions),
        remarks=tuple(reader.remarks),
        contradictions=contradictions,
        later=tuple(reader.later),
        sections=_sections(reader, sound),
        log=reader.log,
        sysmem=reader.sysmem,
    )


def _sections(reader: Reader, sound: bool) -> Tuple[str, ...]:
    seen = tuple(reader.headings)
    if reader.damaged or seen != grammar.HEADINGS[: len(seen)]:
        return ()
    done = seen if reader.ended else seen[:-1]
    return tuple(name for name in (grammar.SECTIONS[item] for item in done) if name != "storage" or sound)


def _one_style(release: Tuple[int, ...], rows: Mapping[str, str]) -> bool:
    """Whether the values are of one release's words: single ones up to 1.15, lists of paths since."""
    lists = [value not in grammar.OLD_VALUES for label, value in rows.items() if label != grammar.RDMA_ROW]
    if not release:
        return True
    # With compat mode disallowed every value of a newer release can be Unsupported.
    return release[:2] >= grammar.LISTS or not any(lists)


def _storage_row(label: str, value: str, complete: bool, ended: bool) -> Row:
    direct, paths = grammar.offers(value) or (False, ())
    if direct:
        return Row(value, True if complete and label in grammar.LABELS else None, paths)
    return Row(value, False if ended else None, paths)


def _through_nvidia_fs(rows: Mapping[str, str]) -> List[str]:
    """Labels of rows that claim a path through nvidia-fs (WekaFS goes through userspace RDMA)."""
    return [
        label
        for label, value in rows.items()
        if label not in (grammar.P2PDMA_ROW, grammar.RDMA_ROW)
        and ("nvfs" in value.split(", ") or (value == grammar.SUPPORTED and label != "WekaFS"))
    ]


def _contradictions(reader: Reader) -> Tuple[str, ...]:
    """Why a path through nvidia-fs that the rows claim cannot be, by the report's own versions."""
    if not _through_nvidia_fs(reader.tables["storage"]):
        return ()
    found: List[str] = []
    loaded = reader.header.get("nvfs", "")
    minimum = reader.header.get("minimum") or reader.header.get("libcufile", "")
    if minimum and grammar.version(loaded) < grammar.version(minimum):
        found.append(f"the loaded nvidia-fs {loaded} is older than the minimum {minimum}")
    proprietary = _PROPRIETARY.match(reader.tables["platform"].get("Nvidia Driver Info Status", ""))
    newest = grammar.version(proprietary.group(1)) if proprietary else ()
    if proprietary and grammar.version(loaded)[:2] > newest[:2]:
        found.append(
            f"the driver is the proprietary one, which takes nvidia-fs up to {proprietary.group(1)} only;"
            f" {loaded} is loaded"
        )
    return tuple(found)


def _verdict(
    reader: Reader,
    complete: bool,
    storage: Mapping[str, Row],
    gpus: Tuple[Gpu, ...],
    contradictions: Tuple[str, ...],
) -> str:
    if reader.fatal or (reader.log and reader.errors and not reader.ended):
        return REFUSED
    if not complete or not storage:
        return UNKNOWN
    if contradictions:
        return BROKEN
    direct = any(row.supported for row in storage.values()) and any(gpu.gds for gpu in gpus)
    return DIRECT if direct else COMPAT
