"""The table of ``watch``, from the rows of its JSON objects: on the host of one, on the controller of many.  Pure."""

from __future__ import annotations

import posixpath
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ..io.wording import aligned, first_few
from ..libcufile.counters import NOT_COUNTED

COLUMNS = ("bounced/s", "read/s", "write/s", "path", "pid", "program", "of", "libcufile", "GPU", "files")
#: Characters of a program's owner and of its files.
OWNER, FILES = 28, 44
UNKNOWN, NONE = "?", "-"


def lines(processes: Sequence[Tuple[str, Mapping[str, Any]]], most: int = 0) -> List[str]:
    """A line for each process, and the reasons for those that aren't counted.

    processes: (host, row) in the order of the table; hosts have a column unless all names are empty.
    most: rows that are shown; 0: all.
    """
    shown = processes[:most] if most else processes
    if not shown:
        return ["no process has libcufile loaded"]
    named = any(host for host, _ in shown)
    rows = [["host"] * named + list(COLUMNS)] + [[host] * named + _cells(row) for host, row in shown]
    text = aligned(rows)
    if len(processes) > len(shown):
        text.append(f"and {len(processes) - len(shown)} more")
    return text + reasons(row for _, row in processes)


def reasons(rows: Any) -> List[str]:
    """For each reason why a process isn't counted: what it means, and what to do."""
    texts: Dict[str, Tuple[str, str]] = {}
    for row in rows:
        if row["path"] == NOT_COUNTED:
            texts.setdefault(row["reason"], (row["why"], row["fix"]))
    text: List[str] = []
    for reason, (why, fix) in sorted(texts.items()):
        text += [f"not counted ({reason}): {why}", f"    what to do: {fix}"]
    return text


def total(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line about all processes."""
    bounced = sum(row["bounce_rate"] or 0 for row in rows)
    counted = [row for row in rows if row["path"] != NOT_COUNTED]
    words = f"{len(rows)} with libcufile, {len(counted)} counted"
    return f"{words}; {amount(bounced)}/s through the memory of the host"


def order(row: Mapping[str, Any]) -> Tuple[float, float, int]:
    """Sorts rows: those that bounce most come first."""
    return -float(row["bounce_rate"] or 0), -float(row["bounced_bytes"]), int(row["pid"])


def _cells(row: Mapping[str, Any]) -> List[str]:
    about = "" if row["bounced_exact"] else "~"
    moved = row["since"] == "look"
    path = row["words"] + ("" if moved or row["path"] in (NOT_COUNTED, "idle") else ", before")
    return [
        _rate(row, "bounce_rate", about),
        _rate(row, "read_rate"),
        _rate(row, "write_rate"),
        path,
        str(row["pid"]),
        row["program"] or NONE,
        _short(_owner(row["owner"]), OWNER),
        _libraries(row["libcufile"]),
        first_few([uuid[:12] for uuid in row["gpus"]], 1) or NONE,
        _short(_files(row["files"]), FILES),
    ]


def _rate(row: Mapping[str, Any], name: str, about: str = "") -> str:
    rate = row[name]
    if row["path"] == NOT_COUNTED or rate is None:
        return UNKNOWN
    return about + amount(rate) if rate else NONE


def amount(number: float) -> str:
    """Bytes: ``512 B``, ``1.5 MiB``, ``12 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.1f} {unit}" if unit != "B" and number < 10 else f"{number:.0f} {unit}"
        number /= 1024
    raise AssertionError


def _owner(owner: Mapping[str, Any]) -> str:
    if owner["kind"] in ("", "unit"):
        return owner["name"] or NONE
    return f"{owner['kind']} {owner['name']}"


def _libraries(libraries: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({one["version"] or UNKNOWN for one in libraries})) or NONE


def _files(files: Sequence[Mapping[str, Any]]) -> str:
    mounts: Dict[str, List[str]] = {}
    for file in files:
        mounts.setdefault(f"{file['mount']} ({file['filesystem']})", []).append(posixpath.basename(file["path"]))
    return "; ".join(f"{mount}: {first_few(names, 1)}" for mount, names in mounts.items()) or NONE


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
