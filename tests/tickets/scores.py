"""Public tickets: what was pasted, and what the host would have shown, against the cause as it turned out.

One file a ticket, with lines that the programs print; ``cause`` lists the ids that name the true cause, and ``fix`` a
word of the right fix.  ``untrue`` lists the ids that the truth excludes, ``doubtful`` those that are wrong and that an
answer may name as possible, because the text doesn't exclude them.  ``open: true`` marks a ticket that isn't answered
rightly yet.  ``config`` is a release: the paste is a cufile.json, which ``cufile check`` judges for it.

Points, as the review of the tickets gave them: 3 the true cause first, with the right fix; 2 the true cause, not first
or without that fix; 1 something else about the text; 0 nothing.

``python -m tests.tickets.scores [NUMBER …]`` prints a line a ticket and the means.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import yaml

from gdsdeploy.cufile.check import check, judged_release
from gdsdeploy.host.logs.judge import POSSIBLE, SHOWN, answer_to
from gdsdeploy.host.model import compat
from tests.tickets import peers
from tests.unit.host import hosts
from tests.unit.host.explain.faults import FAULTS, explained

TICKETS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(Path(__file__).parent.glob("*.yml"))}
#: Those with a cause in reach; the cause of the others was never found, or is outside of what a host shows.
SCORED = {number: ticket for number, ticket in TICKETS.items() if ticket.get("scored", True)}


class Named(NamedTuple):
    """A cause that an answer names."""

    id: str
    fix: str
    certainty: str = SHOWN


#: In the order of an answer.
Answers = Sequence[Named]


def points(answer: Answers, expected: Sequence[str], fix: str) -> int:
    if not answer:
        return 0
    if _is_one_of(answer[0].id, expected) and fix.lower() in _by_hand(answer[0].fix, fix):
        return 3
    return 2 if any(_is_one_of(named.id, expected) for named in answer) else 1


def _by_hand(text: str, fix: str) -> str:
    """What somebody without a fleet file is told to do, which has to come before what gdsdeploy would do."""
    return text.lower() if "gdsdeploy" in fix else re.split(r"provision the host|gdsdeploy provision", text.lower())[0]


def _is_one_of(ident: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(ident, pattern) for pattern in patterns)


def pasted(ticket: dict[str, Any]) -> Answers:
    if "config" in ticket:
        findings = check(ticket["pasted"].encode(), judged_release(ticket["config"])[0]).findings
        return [Named(finding.id, finding.hint) for finding in findings]
    answer = answer_to([("ticket", ticket["pasted"].encode())])
    named = [Named(cause.id, cause.fix, cause.certainty) for cause in answer.causes]
    return named or [Named("unknown", "") for _ in answer.unknown[:1]]


def pasted_points(ticket: dict[str, Any]) -> int:
    return points(pasted(ticket), ticket["cause"], str(ticket["fix"]))


def untrue(ticket: dict[str, Any]) -> list[str]:
    """What the answer to the pasted text says against the truth."""
    return [
        f"{named.id} ({named.certainty})"
        for named in pasted(ticket)
        if _is_one_of(named.id, ticket.get("untrue", ()))
        or (named.certainty != POSSIBLE and _is_one_of(named.id, ticket.get("doubtful", ())))
    ]


def of_host(ticket: dict[str, Any]) -> Answers:
    """What gdsdeploy says on a host with this fault: explain, mode, the compatibility rules, or a log of the host."""
    host = ticket.get("host", {})
    if "faults" in host:
        faults = [FAULTS[name] for name in host["faults"]]
        document = hosts.named(faults[-1].host)
        for fault in faults:
            document = fault.change(document)
        path = explained(document)
        return [Named(cause.id, cause.fix) for cause in (*path.causes, *path.suspects, *path.notes)]
    if "peer" in host:
        return [Named(cause.id, cause.fix) for cause in peers.causes(host["peer"])]
    if "versions" in host:
        rules = {rule.id: rule for rule in compat.rules_with(())}
        verdicts = [one for one in compat.judge(host["versions"], rules.values()) if not one.allowed or one.warning]
        # A warning leaves the choice to the reader.
        first = [one for one in verdicts if not one.allowed]
        first += [one for one in verdicts if one.warning]
        return [Named(one.rule, rules[one.rule].fixed if not one.allowed else "") for one in first]
    return pasted(ticket)


def host_points(ticket: dict[str, Any]) -> int:
    host = ticket.get("host", {})
    expected = [host["rule"]] if "rule" in host else [host["cause"]] if "cause" in host else ticket["cause"]
    return points(of_host(ticket), expected, str(host.get("fix", ticket["fix"])))


def main(numbers: Sequence[str]) -> None:
    """Print each ticket: number, points as pasted text and on the host, first cause, and what is untrue."""
    rows = {number: SCORED[number] for number in numbers or SCORED}
    for number, ticket in rows.items():
        first = next(iter(pasted(ticket)), Named("nothing", ""))
        notes = [*(f"FALSE {one}" for one in untrue(ticket)), *(["open"] if ticket.get("open") else [])]
        columns = (
            number,
            pasted_points(ticket),
            host_points(ticket),
            f"{first.id} ({first.certainty})",
            "; ".join(notes),
        )
        sys.stdout.write("{}  P {}  H {}  {}  {}".format(*columns).rstrip() + "\n")
    groups = {"all": list(rows.values()), "known": [one for one in rows.values() if one["known"] == "known"]}
    for name, tickets in groups.items():
        false = sum(bool(untrue(one)) for one in tickets)
        p, h = (mean(map(score, tickets)) for score in (pasted_points, host_points))
        sys.stdout.write(f"{name}: {len(tickets)} tickets, P {p:.2f}, H {h:.2f}, false {false}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
