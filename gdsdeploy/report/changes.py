"""What changed between two validation reports: hosts, verdicts, parts of the stack.  Pure.

Not counted as changes: when and how long a run took, which boot it saw, and what a check that passes found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from gdsdeploy.host.io import jsontext
from gdsdeploy.report.json import VERSION

#: Bytes of a report.
LIMIT = 64 * 1024 * 1024
#: What a host is that only one of the reports has.
ABSENT = "not there"
#: Where the verdict of a whole host, and the lock of a run, stand among its checks and parts.
HOST, LOCK = "host", "lock"


@dataclass(frozen=True)
class Change:
    """One difference: of ``host`` (empty: of the whole run), what differs, and how it was and is."""

    host: str
    #: ``host``, ``lock``, ``stack.<part>`` or the id of a check
    what: str
    before: str
    after: str
    #: why, where a check or a host does not pass now
    why: str = ""


@dataclass(frozen=True)
class Changes:
    """All differences between two reports."""

    #: RFC 3339, UTC: when each of them was made
    before: str
    after: str
    changes: tuple[Change, ...] = ()
    #: hosts that were rebooted in between
    rebooted: tuple[str, ...] = field(default=())


class _Finding(BaseModel):
    check: str
    verdict: str
    expected: str
    found: str


class _Host(BaseModel):
    verdict: str
    boot_id: str
    stack: dict[str, str]
    error: dict[str, Any] | None
    findings: list[_Finding]


class _Report(BaseModel):
    """What is compared of a report."""

    lock: str
    when: str
    hosts: dict[str, _Host]


def report_from(text: str) -> dict[str, Any]:
    """A report as ``validate --json`` printed it; raises ValueError that says what else it is."""
    try:
        value = jsontext.loads(text, limit=LIMIT)
    except ValueError as error:
        raise ValueError(f"it is no report: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("hosts"), dict) or "verdict" not in value:
        raise ValueError("it is no validation report; `gdsdeploy validate --json` prints one")
    if value.get("version") != VERSION:
        raise ValueError(f"it is a report of version {str(value.get('version'))[:20]}; this program reads {VERSION}")
    try:
        _Report.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"it is a damaged report: {'.'.join(map(str, first['loc']))[:200]}: {first['msg']}") from None
    return value


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """The differences in the order of the later report's hosts, then those that are gone."""
    names = [*after["hosts"], *(name for name in before["hosts"] if name not in after["hosts"])]
    found: list[Change] = []
    if before["lock"] != after["lock"]:
        found.append(Change("", LOCK, before["lock"], after["lock"]))
    rebooted: list[str] = []
    for name in names:
        old, new = before["hosts"].get(name), after["hosts"].get(name)
        found += _host(name, old, new)
        boots = [item["boot_id"] for item in (old, new) if item]
        if len(set(boots)) == 2 and all(boots):
            rebooted.append(name)
    return Changes(before["when"], after["when"], tuple(found), tuple(rebooted))


def to_json(changes: Changes) -> str:
    """One object: version, before, after, same, changes, rebooted."""
    value = {"version": VERSION, "same": not changes.changes, **asdict(changes)}
    return json.dumps(value, indent=2, ensure_ascii=False)


def to_text(changes: Changes) -> str:
    """A block for each host, the reasons below each change; then the outcome in one line."""
    lines: list[str] = []
    last = ""
    for item in changes.changes:
        if item.host != last:
            lines += [f"{item.host}:"]
            last = item.host
        indent = "  " if item.host else ""
        lines.append(f"{indent}{item.what}: {item.before} → {item.after}")
        lines += [f"{indent}  {line}" for line in item.why.splitlines()]
    if changes.rebooted:
        lines.append(f"rebooted in between: {', '.join(changes.rebooted)}")
    number = len(changes.changes)
    words = "nothing changed" if not number else f"{number} change{'' if number == 1 else 's'}"
    return "\n".join([*lines, f"{words} between {changes.before} and {changes.after}"])


def _host(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[Change]:
    before, after = (item["verdict"] if item else ABSENT for item in (old, new))
    error = (new or {}).get("error") or {}
    if before != after or (error and error != ((old or {}).get("error") or {})):
        yield Change(name, HOST, before, after, str(error.get("message", "")))
    # What is unknown of a host without evidence has not changed; its verdict says that it is.
    if not old or not new or old["error"] or new["error"]:
        return
    for part in dict.fromkeys([*new["stack"], *old["stack"]]):
        values = [item["stack"].get(part, ABSENT) for item in (old, new)]
        if values[0] != values[1]:
            yield Change(name, f"stack.{part}", values[0], values[1])
    yield from _checks(name, old, new)


def _checks(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    earlier, later = ({item["check"]: item for item in host["findings"]} for host in (old, new))
    for check in dict.fromkeys([*later, *earlier]):
        before, after = (items.get(check) for items in (earlier, later))
        verdicts = [item["verdict"] if item else ABSENT for item in (before, after)]
        passes = after is None or after["verdict"] == "pass"
        why = "" if passes or after is None else f"found {after['found']}, expected {after['expected']}"
        if verdicts[0] != verdicts[1]:
            yield Change(name, check, verdicts[0], verdicts[1], why)
        elif before and after and not passes and before["found"] != after["found"]:
            yield Change(name, check, f"{verdicts[0]}, found {before['found']}", f"found {after['found']}")
