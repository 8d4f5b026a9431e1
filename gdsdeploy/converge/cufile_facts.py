"""What the hosts are to which a profile's cufile.json is fitted: evidence from each, in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gdsdeploy.converge.expectation import expectation
from gdsdeploy.cufile.render import FitTarget
from gdsdeploy.errors import GdsError, HostUnfit
from gdsdeploy.host.facts import facts_from
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.endpoint import TIMEOUT, Answer
from gdsdeploy.ssh.transport import ask

_EVIDENCE = ("evidence", "--json", "--expectation", "-")


def names_to_fit(fleet: Fleet, names: Sequence[str]) -> list[str]:
    """Those of the machines ``names`` whose file is fitted to them; builders have none."""
    return [name for name in names if name in fleet.hosts and fleet.profiles[fleet.hosts[name].profile].fit]


def facts_of(
    fleet: Fleet, lock: Lock, fleet_path: Path, names: Sequence[str], *, timeout: float = TIMEOUT
) -> dict[str, FitTarget | GdsError]:
    """What each of ``names`` is now, or why its file cannot be fitted to it.  Raises what ask and expectation raise."""
    if not names:
        return {}

    def usable(answer: Answer) -> FitTarget:
        host = FitTarget(answer.host, reply_schema.judge_reply(answer, "evidence", reply_schema.Evidence, facts_from))
        with reply_schema.unexpected_errors(answer.host):
            # Raises where the file cannot be fitted to it.
            expectation(fleet, lock, host.name, host)
        return host

    stdin = {name: expectation(fleet, lock, name).to_json().encode() for name in names}
    outcomes = ask(fleet, fleet_path, names, _EVIDENCE, usable, timeout=timeout, stdin=stdin)
    return {answer.host: outcome for answer, outcome in outcomes}


def facts_from_file(name: str, file: Path) -> FitTarget:
    """The host ``name`` as saved evidence shows it; raises HostUnfit when the file has none."""
    try:
        return FitTarget(name, reply_schema.saved_facts_of_host(file, name))
    except GdsError as error:
        raise HostUnfit(error.message, hint=error.hint) from None
