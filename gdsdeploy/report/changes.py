"""What changed between two validation reports: hosts, verdicts, parts of the stack.  Pure.

Not counted as changes: when and how long a run took, which boot it saw, and what a check that passes found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from pydantic import BaseModel, ValidationError

from gdsdeploy.host.io import jsontext
from gdsdeploy.host.io.wording import count
from gdsdeploy.host.model.finding import NOT_APPLICABLE, PASS
from gdsdeploy.model.hostnames import grouped, words
from gdsdeploy.report.alike import on
from gdsdeploy.report.formats import VERSION

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
    rebooted: tuple[str, ...] = ()


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
        raise ValueError(f"it isn't a report: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("hosts"), dict) or "verdict" not in value:
        raise ValueError("it isn't a validation report; `gdsdeploy validate --json` prints one")
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
    locks = before["lock"], after["lock"]
    changes = [] if locks[0] == locks[1] else [Change("", LOCK, *locks)]
    rebooted: list[str] = []
    for name in dict.fromkeys([*after["hosts"], *before["hosts"]]):
        old, new = before["hosts"].get(name), after["hosts"].get(name)
        changes += _host(name, old, new)
        boots = {host["boot_id"] for host in (old, new) if host}
        if len(boots) == 2 and all(boots):
            rebooted.append(name)
    return Changes(before["when"], after["when"], tuple(changes), tuple(rebooted))


def to_json(changes: Changes) -> str:
    """One object: version, before, after, same, changes, rebooted."""
    value = {"version": VERSION, "same": not changes.changes, **asdict(changes)}
    return json.dumps(value, indent=2, ensure_ascii=False)


def to_text(changes: Changes) -> str:
    """A block for hosts with the same changes, the reasons below each change; then the outcome in one line."""
    lines: list[str] = []
    each = groupby(changes.changes, key=lambda change: change.host)
    groups = grouped((name, tuple(replace(one, host="") for one in of)) for name, of in each)
    for same, hosts in sorted(groups.items(), key=lambda group: group[1] != [""]):
        indent = "  " if hosts != [""] else ""
        lines += [f"{on(hosts)}:"] if indent else []
        for change in same:
            lines.append(f"{indent}{change.what}: {change.before} → {change.after}")
            lines += [f"{indent}  {line}" for line in change.why.splitlines()]
    if changes.rebooted:
        lines.append(f"rebooted in between: {words(changes.rebooted)}")
    number = count(len(changes.changes), "change") if changes.changes else "nothing changed"
    return "\n".join([*lines, f"{number} between {changes.before} and {changes.after}"])


def _host(name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[Change]:
    before, after = (host["verdict"] if host else ABSENT for host in (old, new))
    error = (new or {}).get("error") or {}
    if before != after or (error and error != ((old or {}).get("error") or {})):
        yield Change(name, HOST, before, after, str(error.get("message", "")))
    # What is unknown of a host without evidence has not changed; its verdict says that it is.
    if not old or not new or old["error"] or new["error"]:
        return
    for part in dict.fromkeys([*new["stack"], *old["stack"]]):
        values = [host["stack"].get(part, ABSENT) for host in (old, new)]
        if values[0] != values[1]:
            yield Change(name, f"stack.{part}", *values)
    yield from _checks(name, old, new)


def _checks(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    earlier, later = ({finding["check"]: finding for finding in host["findings"]} for host in (old, new))
    for check in dict.fromkeys([*later, *earlier]):
        before, after = earlier.get(check), later.get(check)
        verdicts = [finding["verdict"] if finding else ABSENT for finding in (before, after)]
        passes = after is None or after["verdict"] in (PASS, NOT_APPLICABLE)
        why = after["found"] if verdicts[1] == NOT_APPLICABLE and after else ""
        if set(verdicts) == {ABSENT, NOT_APPLICABLE}:
            # Earlier releases left such a check out.
            continue
        why = why if passes or after is None else f"found {after['found']}, expected {after['expected']}"
        if verdicts[0] != verdicts[1]:
            yield Change(name, check, verdicts[0], verdicts[1], why)
        elif before and after and not passes and before["found"] != after["found"]:
            yield Change(name, check, f"{verdicts[0]}, found {before['found']}", f"found {after['found']}")
