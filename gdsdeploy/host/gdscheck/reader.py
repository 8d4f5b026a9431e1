"""Read the output of ``gdscheck -p``, or the same rows from a libcufile log, of releases 1.4 to 1.20.

Neither the exit status nor "Platform verification succeeded" proves anything: both come with every storage row
unsupported, with the proprietary driver, with an nvidia-fs below the minimum (seen in real output).  So the verdict
follows from the rows, and only if the report is whole: each heading once and in order, each row once, the end reached,
and no line that looks like a fragment.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, Iterable, Iterator, List, Mapping, Optional, Tuple

from . import grammar
from .report import BROKEN, COMPAT, DIRECT, ERRORS, REFUSED, UNKNOWN, Gpu, Report, Row

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
            self._record(self.errors, text)
        elif grammar.STRAYS.search(text) and not grammar.NO_GPU.match(text):
            self.sysmem = self.sysmem or grammar.SYSMEM.search(text) is not None
            self._record(self.remarks, text)
        elif not whole or not self._row(text):
            self._stray(text)

    def logged(self, level: str, text: str) -> None:
        """Read one message of a log, most of which are other remarks; none is a fragment of a row."""
        text = text.strip()
        done = self.ends > 0 or self.opened
        if level == "ERROR":
            self._record(self.later if done else self.errors, text)
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
                self._record(self.remarks, text)
            elif grammar.STRAYS.search(text) and not grammar.NO_GPU.match(text):
                self._record(self.remarks, text)
            elif len(text) <= LINE_LIMIT and not grammar.RULER.match(text):
                self._row(text)

    @property
    def ended(self) -> bool:
        """Whether the report is complete; without CUDA or a GPU it ends after the configuration."""
        if tuple(self.headings) == grammar.HEADINGS:
            return self.ends == 1
        only_config = self.sysmem and tuple(self.headings) == grammar.HEADINGS[:3] and not self.ends
        return only_config and (self.opened if self.log else self.last_setting == grammar.LAST_SETTING)

    def _stray(self, text: str) -> None:
        self._record(self.strays, text)
        # Lines after the end of a whole report (timings of -f, the next prompt) aren't part of it.
        if not self.ends and grammar.SUSPECT.search(text):
            self.damaged = True

    def _record(self, lines: List[str], text: str) -> None:
        if self.log and len(lines) == RECORDED_LINES:
            # The first ones say what began it, the last ones how it ended.
            del lines[RECORDED_LINES // 2]
        if len(lines) < RECORDED_LINES:
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
        # A log has many other messages in the last section.
        return self._put(section, (grammar.LOGGED_FACT if self.log else grammar.FACT).match(text))

    def _put(self, table: str, row: Optional[re.Match[str]]) -> bool:
        if row is None:
            return False
        key, value = row[1], row[2].strip()
        self.damaged = self.damaged or key in self.tables[table]
        self.tables[table][key] = value
        return True

    def _setting(self, text: str) -> bool:
        setting, mount = grammar.SETTING.match(text), grammar.MOUNT.match(text)
        if setting:
            self.last_setting = setting[1]
        elif mount and self.last_setting.endswith(".mount_table"):
            rows = self.tables["config"]
            row = f"{mount[1]}: {mount[2].strip()}"
            rows[self.last_setting] = "; ".join(filter(None, (rows[self.last_setting], row)))
            return True
        return self._put("config", setting)

    def _storage(self, text: str) -> bool:
        row = grammar.ROW.match(text)
        return row is not None and grammar.offers(row[2].strip()) is not None and self._put("storage", row)

    def _header(self, text: str) -> bool:
        header = grammar.HEADER.match(text)
        for key, value in (header.groupdict() if header else {}).items():
            if value:
                self.damaged = self.damaged or key in self.header
                self.header[key] = value
        return header is not None

    def _gpu(self, text: str) -> bool:
        good, bad = grammar.GPU.match(text), grammar.NO_GPU.match(text)
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
        sound = not self.damaged and _consistent(grammar.version(release), nvidia_fs, rows)
        complete = sound and self.ended and not self.fatal
        # Rows that claim nothing are reliable once their section has ended.
        rows_ended = sound and tuple(self.headings[:3]) == grammar.HEADINGS[:3]
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
        if self.damaged or headings != grammar.HEADINGS[: len(headings)]:
            return ()
        names = [grammar.SECTIONS[heading] for heading in (headings if self.ended else headings[:-1])]
        return tuple(name for name in names if name != "storage" or sound)


def parse(text: str, exit_status: Optional[int] = None) -> Report:
    """Read the output (stdout and stderr together) of one ``gdscheck -p``; never raises."""
    return parse_lines(text.split("\n"), exit_status)


def parse_lines(lines: Iterable[str], exit_status: Optional[int] = None, last_is_whole: bool = True) -> Report:
    """Read one run; ``last_is_whole``: the last line isn't cut."""
    reader, pending = Reader(), ""
    for line in lines:
        reader.line(pending)
        pending = line
    reader.line(pending, last_is_whole)
    return reader.report(exit_status)


def parse_log(text: str) -> Report:
    """Read the same rows from a libcufile log of level INFO or more: the first report in it; never raises."""
    reader = Reader(log=True)
    for line in text.split("\n"):
        message = grammar.LOG.match(line[:LINE_LIMIT])
        if message:
            reader.logged(message["level"], message["text"])
        if reader.ends or reader.opened:
            break
    return reader.report(None)


def _consistent(release: Tuple[int, ...], nvidia_fs: str, rows: Mapping[str, str]) -> bool:
    """Whether the rows are complete, and in one release's words: single ones up to 1.15, lists of paths since."""
    if not grammar.rows_of(release, tuple(rows)):
        return False
    lists = any(value not in grammar.OLD_VALUES for label, value in rows.items() if label != grammar.RDMA_ROW)
    # With compat mode disallowed every value of a newer release can be Unsupported.
    one_style = not release or release[:2] >= grammar.LISTS or not lists
    # The header names the release and a loaded nvidia-fs, except in runs without nvidia-fs and with forced compat mode:
    # a direct path without a name is half a report.
    claims = any((grammar.offers(value) or (False,))[0] for value in rows.values())
    return one_style and (bool(release) or not claims) and (bool(nvidia_fs) or not _through_nvidia_fs(rows))


def _storage_row(label: str, value: str, complete: bool, rows_ended: bool) -> Row:
    direct, paths = grammar.offers(value) or (False, ())
    if direct:
        return Row(value, True if complete and label in grammar.LABELS else None, paths)
    return Row(value, False if rows_ended else None, paths)


def _through_nvidia_fs(rows: Mapping[str, str]) -> List[str]:
    """Labels of rows that claim a path through nvidia-fs (WekaFS uses userspace RDMA)."""
    return [
        label
        for label, value in rows.items()
        if label not in (grammar.P2PDMA_ROW, grammar.RDMA_ROW)
        and ("nvfs" in value.split(", ") or (value == grammar.SUPPORTED and label != "WekaFS"))
    ]


def _contradictions(nvidia_fs: str, minimum: str, driver: str) -> Iterator[str]:
    """Why the report's own versions rule out the claimed path through nvidia-fs."""
    if minimum and grammar.version(nvidia_fs) < grammar.version(minimum):
        yield f"the loaded nvidia-fs {nvidia_fs} is older than the minimum {minimum}"
    proprietary = _PROPRIETARY.match(driver)
    if proprietary and grammar.version(nvidia_fs)[:2] > grammar.version(proprietary[1])[:2]:
        limit = f"the driver is the proprietary one, which takes nvidia-fs up to {proprietary[1]} only"
        yield f"{limit}; {nvidia_fs} is loaded"
