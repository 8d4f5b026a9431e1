"""What the hosts are to which a profile's cufile.json is fitted: evidence from each, in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdsdeploy.converge.expectation import expectation
from gdsdeploy.cufile.fit import Host
from gdsdeploy.errors import GdsError, HostUnfit
from gdsdeploy.host.facts import facts_from
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.ssh import evidence_file, hostdata, transport
from gdsdeploy.ssh.endpoint import Answer
from gdsdeploy.zipapp import hostapp

#: Seconds for one host; its evidence is bounded by itself.
TIMEOUT = 300.0
_EVIDENCE = ("evidence", "--json", "--expectation", "-")


def fitted(fleet: Fleet, names: Sequence[str]) -> list[str]:
    """Those of the machines ``names`` whose file is fitted to them; builders have none."""
    return [name for name in names if name in fleet.hosts and fleet.profiles[fleet.hosts[name].profile].fit]


def ask(
    fleet: Fleet, lock: Lock, fleet_path: Path, names: Sequence[str], *, timeout: float = TIMEOUT
) -> dict[str, Host | GdsError]:
    """What each of ``names`` is now, or why its file cannot be fitted to it; without a name, nobody is asked.

    Raises what transport.endpoints and expect.expectation raise.
    """
    if not names:
        return {}
    found: dict[str, Host | GdsError] = {}
    for answer in transport.fan_out(
        transport.endpoints(fleet, fleet_path.resolve().parent, names),
        hostapp.build(),
        _EVIDENCE,
        stdin={name: expectation(fleet, lock, name).to_json().encode() for name in names},
        timeout=timeout,
    ):
        try:
            found[answer.host] = _usable(fleet, lock, answer)
        except GdsError as error:
            found[answer.host] = error
    return found


def _usable(fleet: Fleet, lock: Lock, answer: Answer) -> Host:
    """What the host is; raises why a file cannot be fitted to it."""

    def judge(evidence: dict[str, Any]) -> Host:
        host = Host(answer.host, facts_from(evidence))
        expectation(fleet, lock, host.name, host)
        return host

    return hostdata.judged(answer, "evidence", hostdata.Evidence, judge)


def read(name: str, file: Path) -> Host:
    """The host ``name`` as saved evidence shows it; raises HostUnfit when the file has none."""
    try:
        return Host(name, evidence_file.of_host(file, name))
    except GdsError as error:
        raise HostUnfit(error.message, hint=error.hint) from None
