"""Public tickets: what was pasted, and what the host would have shown, against the cause as it turned out.

One file a ticket, with lines that the programs print; ``cause`` lists the ids that name the true cause, and ``fix`` a
word of the right fix.  Points, as the review of the tickets gave them: 3 the true cause first, with the right fix;
2 the true cause, not first or without that fix; 1 something else about the text; 0 nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import yaml

from gdsdeploy.host.logs.judge import answer_to
from gdsdeploy.host.model import causes, compat
from tests.tickets import peers
from tests.unit.host import hosts
from tests.unit.host.explain.faults import FAULTS, explained

TICKETS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(Path(__file__).parent.glob("*.yml"))}
#: Those with a cause in reach; the cause of the others was never found, or is outside of what a host shows.
SCORED = {number: ticket for number, ticket in TICKETS.items() if ticket.get("scored", True)}
LEAST_PASTED, LEAST_HOST = 2.3, 2.7
#: (id, fix) in the order of an answer.
Answers = Sequence[tuple[str, str]]


def points(answer: Answers, expected: Sequence[str], fix: str) -> int:
    if not answer:
        return 0
    if answer[0][0] in expected and fix.lower() in answer[0][1].lower():
        return 3
    return 2 if any(ident in expected for ident, _ in answer) else 1


def pasted(ticket: dict[str, Any]) -> Answers:
    answer = answer_to([("ticket", ticket["pasted"].encode())])
    return [(cause.id, cause.fix) for cause in answer.causes] or [("unknown", "") for _ in answer.unknown[:1]]


def of_host(ticket: dict[str, Any]) -> Answers:
    """What gdsdeploy says on a host with this fault: explain, mode, the compatibility rules, or a log of the host."""
    host = ticket["host"]
    if "faults" in host:
        faults = [FAULTS[name] for name in host["faults"]]
        document = hosts.named(faults[-1].host)
        for fault in faults:
            document = fault.change(document)
        path = explained(document)
        return [(cause.id, cause.fix) for cause in (*path.causes, *path.suspects, *path.notes)]
    if "peer" in host:
        return [(cause.id, cause.fix) for cause in peers.causes(host["peer"])]
    if "versions" in host:
        rules = {rule.id: rule for rule in compat.rules_with(())}
        verdicts = [one for one in compat.judge(host["versions"], rules.values()) if not one.allowed or one.warning]
        # A warning leaves the choice to the reader.
        first = [one for one in verdicts if not one.allowed]
        first += [one for one in verdicts if one.warning]
        return [(one.rule, rules[one.rule].fixed if not one.allowed else "") for one in first]
    return pasted(ticket)


def host_points(ticket: dict[str, Any]) -> int:
    host = ticket["host"]
    expected = [host["rule"]] if "rule" in host else [host.get("cause", ticket["cause"][0])]
    return points(of_host(ticket), expected, str(host.get("fix", ticket["fix"])))


@pytest.mark.parametrize("number", TICKETS)
def test_a_ticket_names_what_exists(number: str) -> None:
    ticket = TICKETS[number]
    assert ticket["truth"]
    assert ticket["pasted"].strip()
    assert ticket["known"] in ("known", "inferred", "unknown")
    for ident in ticket["cause"]:
        assert causes.has(ident) or ident.removeprefix("compat.") in {rule.id for rule in compat.rules_with(())}


@pytest.mark.parametrize("number", SCORED)
def test_pasted_text_names_the_true_cause(number: str) -> None:
    ticket = SCORED[number]
    assert points(pasted(ticket), ticket["cause"], str(ticket["fix"])) >= 2, pasted(ticket)


@pytest.mark.parametrize("number", SCORED)
def test_the_host_names_the_true_cause(number: str) -> None:
    assert host_points(SCORED[number]) >= 2, of_host(SCORED[number])


def test_means() -> None:
    certain = [ticket for ticket in SCORED.values() if ticket["known"] == "known"]
    assert mean(points(pasted(ticket), ticket["cause"], str(ticket["fix"])) for ticket in certain) >= LEAST_PASTED
    assert mean(map(host_points, certain)) >= LEAST_HOST


def test_an_answer_that_names_another_cause_gets_one_point() -> None:
    assert points([("nvme.no-hooks", "")], ["gpu.class"], "") == 1
    assert points([("nvme.no-hooks", ""), ("gpu.class", "")], ["gpu.class"], "") == 2
    assert points([("gpu.class", "buy another")], ["gpu.class"], "lend") == 2
    assert points([("gpu.class", "buy another")], ["gpu.class"], "another") == 3
    assert points([], ["gpu.class"], "") == 0
