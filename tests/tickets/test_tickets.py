"""Public tickets get the right cause first, and no answer says what the truth excludes."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest

from gdsdeploy.host import data
from gdsdeploy.host.logs.judge import LIKELY, POSSIBLE
from gdsdeploy.host.model import compat
from gdsdeploy.host.subjects.kernel import meanings
from tests.tickets.scores import (
    SCORED,
    TICKETS,
    Named,
    host_points,
    of_host,
    pasted,
    pasted_points,
    points,
    untrue,
)

LEAST_PASTED, LEAST_HOST = 2.8, 2.8
#: Those that are answered as well as they can be; the least that the others have to reach isn't checked.
ANSWERED = {number: ticket for number, ticket in SCORED.items() if not ticket.get("open")}


@pytest.mark.parametrize("number", TICKETS)
def test_a_ticket_names_what_exists(number: str) -> None:
    ticket = TICKETS[number]
    assert ticket["truth"]
    assert ticket["pasted"].strip()
    assert ticket["known"] in ("known", "inferred", "unknown")
    if ticket.get("open") or "config" in ticket:
        return
    known = [row["id"] for row in json.loads((Path(data.__file__).parent / "causes.json").read_text())]
    known += ["compat." + rule.id for rule in compat.rules_with(())] + ["kernel." + row.id for row in meanings()]
    for pattern in (*ticket["cause"], *ticket.get("untrue", ()), *ticket.get("doubtful", ())):
        assert points([Named(ident, "") for ident in known], [pattern], "-") == 2, pattern


@pytest.mark.parametrize("number", ANSWERED)
def test_pasted_text_names_the_true_cause(number: str) -> None:
    assert pasted_points(SCORED[number]) >= 2, pasted(SCORED[number])


@pytest.mark.parametrize("number", [number for number, ticket in TICKETS.items() if not ticket.get("open")])
def test_no_answer_names_a_cause_that_the_truth_excludes(number: str) -> None:
    assert untrue(TICKETS[number]) == []


@pytest.mark.parametrize("number", ANSWERED)
def test_the_host_names_the_true_cause(number: str) -> None:
    assert host_points(SCORED[number]) >= 2, of_host(SCORED[number])


def test_means() -> None:
    certain = [ticket for ticket in SCORED.values() if ticket["known"] == "known"]
    assert mean(map(pasted_points, certain)) >= LEAST_PASTED
    assert mean(map(host_points, certain)) >= LEAST_HOST


def test_an_answer_that_names_another_cause_gets_one_point() -> None:
    assert points([Named("nvme.no-hooks", "")], ["gpu.class"], "") == 1
    assert points([Named("nvme.no-hooks", ""), Named("gpu.class", "")], ["gpu.class"], "") == 2
    assert points([Named("gpu.class", "buy another")], ["gpu.class"], "lend") == 2
    assert points([Named("gpu.class", "buy another")], ["gpu.class"], "another") == 3
    assert points([Named("gpu.class", "")], ["gpu.*"], "") == 3
    assert points([Named("gpu.class", "gdsdeploy provision; then reboot")], ["gpu.class"], "reboot") == 2
    assert points([], ["gpu.class"], "") == 0


def test_what_the_truth_excludes_is_untrue_however_sure_an_answer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = {"pasted": "", "untrue": ["gpu.*"], "doubtful": ["platform.acs"]}
    answer = [Named("gpu.class", "", POSSIBLE), Named("platform.acs", "", POSSIBLE), Named("nvme.no-hooks", "")]
    monkeypatch.setattr("tests.tickets.scores.pasted", lambda _: answer)
    assert untrue(ticket) == ["gpu.class (possible)"]
    answer[1] = Named("platform.acs", "", LIKELY)
    assert untrue(ticket) == ["gpu.class (possible)", "platform.acs (likely)"]
