"""A plan as text and as one JSON object: the fleet first, then the changes with their reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge import diff
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.errors import GdsError
from gdsdeploy.host.apply.packages import DECIDING
from gdsdeploy.host.io.wording import aligned, joined
from gdsdeploy.host.model.compat import Verdict
from gdsdeploy.host.subjects import foreign
from gdsdeploy.lock import compat
from gdsdeploy.model.hostnames import grouped, words
from gdsdeploy.report import model

SYMBOLS = {"nothing to do": "✓", "changes": "~", "unknown": "?", "refused": "!", "not asked": "!"}

#: Rows of the table without --verbose, its heading included.
ROWS = 13
_DIGEST, _NUMBER = re.compile(r"sha256:\w+…?"), re.compile(r"(?<![A-Za-z])\d+")

Plans = Mapping[str, HostPlan | GdsError]


def state(plan: HostPlan | GdsError) -> str:
    """One of the keys of SYMBOLS."""
    if isinstance(plan, GdsError):
        return "not asked"
    if plan.refusal:
        return "refused"
    return "changes" if plan.changes else "unknown" if plan.unknown else "nothing to do"


def text(plans: Plans, *, whole: bool = False) -> str:
    """The outcome in one line, the summary table, then what would change and why: once for hosts that are alike.

    Hosts are alike where only digests, their own names and processes differ.  whole: all lines, and all names.
    """
    groups = grouped((name, (_rank(plan), tuple(_lines(plan, name, masked=True)))) for name, plan in plans.items())
    blocks = [
        [f"{SYMBOLS[state(plans[hosts[0]])]} {model.on(hosts, whole=whole)}:", *_of_all(plans, hosts)]
        for (_, lines), hosts in sorted(groups.items(), key=lambda group: group[0][0])
        if lines
    ]
    details = joined(model.shown(blocks, whole=whole))
    parts = [sentence(plans), joined(_table(plans, whole)), details, joined(origins(_supplies(plans)))]
    return "\n\n".join(filter(None, parts))


def _rank(plan: HostPlan | GdsError) -> int:
    """What hinders comes first."""
    return -[*SYMBOLS].index(state(plan))


def _of_all(plans: Plans, hosts: Sequence[str]) -> Sequence[str]:
    """The first host's lines, without what is another on the others."""
    masked = _lines(plans[hosts[0]], hosts[0], masked=True)
    of_each = zip(*(_lines(plans[name], name) for name in hosts), strict=True)
    lines = [same[0] if len(set(same)) == 1 else line for same, line in zip(of_each, masked, strict=True)]
    return [model.for_all(line, hosts) for line in lines]


def line(name: str, plan: HostPlan | GdsError) -> str:
    """One host in one line."""
    what = state(plan)
    more = f": {len(plan.changes)}" if isinstance(plan, HostPlan) and what == "changes" else ""
    return f"{SYMBOLS[what]} {name}: {what}{more}"


def sentence(plans: Plans) -> str:
    """The outcome in one line."""
    states = [state(plan) for plan in plans.values()]
    parts = [f"{states.count(word)} {word}" for word in SYMBOLS if states.count(word) and word != "nothing to do"]
    return f"{states.count('nothing to do')} of {len(states)} hosts: nothing to do" + "".join(f", {p}" for p in parts)


def to_json(
    plans: Plans,
    seconds: Mapping[str, float],
    *,
    fleet: str,
    lock_digest: str,
    image: Mapping[str, object] | None = None,
    warnings: Iterable[tuple[str, Verdict]] = (),
) -> str:
    """The whole plan for machines; image: what is said about the image that it is for; warnings: about profiles."""
    hosts = {
        name: {"state": state(plan), "seconds": round(seconds.get(name, 0.0), 3), **_host_json(plan)}
        for name, plan in plans.items()
    }
    value = {
        "fleet": fleet,
        "lock": lock_digest,
        "hosts": hosts,
        "code_built_on": built_on(_supplies(plans)),
        "warnings": compat.to_json(warnings),
        **({} if image is None else {"image": image}),
    }
    return json.dumps(value, indent=2, ensure_ascii=False)


def _host_json(plan: HostPlan | GdsError) -> dict[str, object]:
    if isinstance(plan, GdsError):
        return {"error": {"kind": type(plan).__name__, "message": plan.message, "hint": plan.hint}}
    return {
        "disruption": plan.disruption,
        "actions": [diff.change_to_json(change) for change in plan.changes],
        "unknown": list(plan.unknown),
        "refusal": plan.refusal or None,
        "refusals": [asdict(refusal) for refusal in plan.refusals],
        "foreign": {"installs": [install.to_json() for install in plan.foreign], "unknown": list(plan.foreign_unknown)},
        "removals": {"known": not plan.removals_unknown, "why": list(plan.removals_unknown)},
        "modules": None if plan.supply is None else {"from": plan.supply.source, **asdict(plan.supply)},
    }


def built_on(supplies: Mapping[str, Supply]) -> dict[str, list[str]]:
    """Machine → the others that run kernel code which was built on it."""
    return grouped((name, supply.origin) for name, supply in supplies.items() if supply.origin not in ("", name))


def origins(supplies: Mapping[str, Supply]) -> list[str]:
    """The same, a sentence for each machine that builds for others."""
    return [f"These hosts run kernel code built on {name}: {words(of)}" for name, of in built_on(supplies).items()]


def _supplies(plans: Plans) -> dict[str, Supply]:
    return {name: plan.supply for name, plan in plans.items() if isinstance(plan, HostPlan) and plan.supply is not None}


def supply_words(supply: Supply) -> str:
    """Where a host's modules come from, in one line."""
    verbs = {
        "build": "builds its modules",
        "packaged": "has its modules from packages",
        "host": f"receives its modules from {supply.builder}",
        "cache": "takes its modules from the cache",
        "kept": "keeps its modules",
        "none": "has no machine to receive its modules from",
    }
    return f"{verbs[supply.source]}: {supply.lack or supply.why}"


def _foreign(plan: HostPlan) -> Iterator[str]:
    """What others have installed and no refusal names yet."""
    for install in (install for install in plan.foreign if not install.breaks):
        yield f"  {foreign.ANSWER_WORDS[install.answer]}: {foreign.sentence(install)}"
        yield f"      {foreign.way_out(install, '')}"
    yield from (f"  ? it is unknown what others have installed: {reason}" for reason in plan.foreign_unknown)


def _table(plans: Plans, whole: bool) -> list[str]:
    def row(plan: HostPlan | GdsError) -> tuple[str, str, str]:
        what = f"{SYMBOLS[state(plan)]} {state(plan)}"
        return (what, str(len(plan.changes)), plan.disruption) if isinstance(plan, HostPlan) else (what, "-", "-")

    groups = grouped((name, (_rank(plan), *row(plan))) for name, plan in plans.items())
    rows = [
        [model.cell(hosts, whole=whole), *cells]
        for (_, *cells), hosts in sorted(groups.items(), key=lambda group: group[0][0])
    ]
    return model.cut(aligned([("host", "plan", "changes", "disruption"), *rows]), ROWS, whole=whole, indent="")


def _lines(plan: HostPlan | GdsError, name: str, *, masked: bool = False) -> Iterator[str]:
    """What would change on one host; nothing where that is nothing.

    masked: without what differs between hosts that are alike: their names, digests of their own files, processes.
    """
    if isinstance(plan, GdsError):
        message = model.general(plan.message, name) if masked else plan.message
        yield from (f"  {line}" for line in message.splitlines())
        if plan.hint:
            yield f"      hint: {model.general(plan.hint, name) if masked else plan.hint}"
    elif not plan.satisfied:
        yield from (model.general(line, name) if masked else line for line in _words(plan, masked))


def _words(plan: HostPlan, masked: bool) -> Iterator[str]:
    for refusal in plan.refusals:
        yield f"  provision would refuse it: {refusal.message}"
        if refusal.hint:
            yield f"      hint: {refusal.hint}"
    yield from _foreign(plan)
    if plan.supply is not None:
        yield f"  {supply_words(plan.supply)}"
    for group in diff.grouped(plan.changes):
        suffix = "" if group[0].disruption == "none" else f"  [{group[0].disruption}]"
        leave = ", which its profile leaves to you" if group[0].kind == "reboot" and not plan.may_reboot else ""
        states = f"found {diff.before_words(group[0])}; wanted {diff.after_words(group[0])}"
        states = _DIGEST.sub("sha256:…", states) if masked else states
        yield f"  - {diff.sentence(group)}{leave}: {states}{suffix}"
        for user in (user for change in group for user in change.users):
            yield f"      in use: {_NUMBER.sub('…', user) if masked else user}"
    yield from (f"  ? unknown: {reason}" for reason in plan.unknown)
    for reason in (text for text in plan.removals_unknown if text not in plan.unknown):
        yield f"  ? it is unknown which packages would leave: {reason}"
    if plan.removals_unknown and any(change.resource in DECIDING for change in plan.changes):
        command = f"gdsdeploy provision FLEET --limit {plan.host} --tags gds_preflight,gds_repo"
        yield f"      provision refuses the host before it installs anything; to have the plan name them: {command}"
