"""A plan as text and as one JSON object: the fleet first, then every change with its reason."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge import change_words
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.errors import GdsError

SYMBOLS = {"nothing to do": "✓", "changes": "~", "unknown": "?", "refused": "!", "not asked": "!"}

Plans = Mapping[str, HostPlan | GdsError]


def state(found: HostPlan | GdsError) -> str:
    """One of the keys of SYMBOLS."""
    if isinstance(found, GdsError):
        return "not asked"
    if found.refusal:
        return "refused"
    return "changes" if found.changes else "unknown" if found.unknown else "nothing to do"


def text(plans: Plans) -> str:
    """The summary table, then per host what would change and why, then the outcome in one line."""
    blocks = ["\n".join(_table(plans)), *("\n".join(_host(name, found)) for name, found in plans.items())]
    blocks.append("\n".join(origins(_supplies(plans))))
    blocks.append(sentence(plans))
    return "\n\n".join(block for block in blocks if block)


def line(name: str, found: HostPlan | GdsError) -> str:
    """One host in one line."""
    what = state(found)
    more = f": {len(found.changes)}" if isinstance(found, HostPlan) and what == "changes" else ""
    return f"{SYMBOLS[what]} {name}: {what}{more}"


def sentence(plans: Plans) -> str:
    """The outcome in one line."""
    states = [state(found) for found in plans.values()]
    parts = [f"{states.count(word)} {word}" for word in SYMBOLS if states.count(word) and word != "nothing to do"]
    return f"{states.count('nothing to do')} of {len(states)} hosts: nothing to do" + "".join(f", {p}" for p in parts)


def to_json(plans: Plans, seconds: Mapping[str, float], *, fleet: str, lock_digest: str) -> str:
    """The whole plan for machines."""
    hosts = {}
    for name, found in plans.items():
        item: dict[str, object] = {"state": state(found), "seconds": round(seconds.get(name, 0.0), 3)}
        if isinstance(found, GdsError):
            item |= {"error": {"kind": type(found).__name__, "message": found.message, "hint": found.hint}}
        else:
            item |= {
                "disruption": found.disruption,
                "actions": [change_words.to_json(change) for change in found.changes],
                "unknown": list(found.unknown),
                "refusal": found.refusal or None,
                "modules": None if found.supply is None else {"from": found.supply.source, **asdict(found.supply)},
            }
        hosts[name] = item
    value = {"fleet": fleet, "lock": lock_digest, "hosts": hosts, "code_built_on": built_on(_supplies(plans))}
    return json.dumps(value, indent=2, ensure_ascii=False)


def built_on(supplies: Mapping[str, Supply]) -> dict[str, list[str]]:
    """Machine → the others that run kernel code which was built on it."""
    found: dict[str, list[str]] = {}
    for name, supply in supplies.items():
        if supply.origin not in ("", name):
            found.setdefault(supply.origin, []).append(name)
    return found


def origins(supplies: Mapping[str, Supply]) -> list[str]:
    """The same, a sentence for each machine that builds for others."""
    return [f"These hosts run kernel code built on {name}: {', '.join(of)}" for name, of in built_on(supplies).items()]


def _supplies(plans: Plans) -> dict[str, Supply]:
    known = {name: found.supply for name, found in plans.items() if isinstance(found, HostPlan)}
    return {name: supply for name, supply in known.items() if supply is not None}


def supplied(supply: Supply) -> str:
    """Where a host's modules come from, in one line."""
    verbs = {
        "build": "builds its modules",
        "host": f"receives its modules from {supply.builder}",
        "cache": "takes its modules from the cache",
        "kept": "keeps its modules",
        "none": "has nobody to receive its modules from",
    }
    return f"{verbs[supply.source]}: {supply.lack or supply.why}"


def _table(plans: Plans) -> Iterator[str]:
    rows: list[Sequence[str]] = [("host", "plan", "changes", "disruption")]
    for name, found in plans.items():
        what = state(found)
        known = isinstance(found, HostPlan)
        number = str(len(found.changes)) if isinstance(found, HostPlan) else "-"
        rows.append((name, f"{SYMBOLS[what]} {what}", number, found.disruption if known else "-"))  # type: ignore[union-attr]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _host(name: str, found: HostPlan | GdsError) -> Iterator[str]:
    if isinstance(found, GdsError):
        yield f"! {name}: {found.message}"
        if found.hint:
            yield f"    hint: {found.hint}"
        return
    if found.satisfied:
        return
    yield f"{SYMBOLS[state(found)]} {name}:"
    if found.refusal:
        yield f"  provision would refuse it: {found.refusal}"
    if found.supply is not None:
        yield f"  {supplied(found.supply)}"
    for group in change_words.grouped(found.changes):
        suffix = "" if group[0].disruption == "none" else f"  [{group[0].disruption}]"
        left = ", which its profile leaves to you" if group[0].kind == "reboot" and not found.may_reboot else ""
        yield f"  - {change_words.sentence(group)}{left}{suffix}"
        yield f"      found {change_words.found(group[0])}; wanted {change_words.wanted(group[0])}"
    for reason in found.unknown:
        yield f"  ? unknown: {reason}"
