"""The checks of gdsdeploy as a testinfra suite: one test per check and host.

    pytest tests/host --hosts=ssh://gpu1,ssh://gpu2 [--ssh-config FILE] [--fleet fleet.yml] [--junitxml FILE]

Each host is asked once, before the tests, because only its answer says which mounts there are to test.  What it is
expected to be is what provision left on it in /etc/gdsdeploy/expectation.json or, with --fleet, what that fleet and its
lock say now; the name in --hosts is then the name in the fleet, and the fleet file's waivers hold.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import testinfra
from testinfra.host import Host

from gdsdeploy.converge import expectation as expect
from gdsdeploy.converge.machine import Machine
from gdsdeploy.errors import GdsError, NameUnknown
from gdsdeploy.fleetfile import selection
from gdsdeploy.fleetfile.load import TRUSTED, load_fleet
from gdsdeploy.host.model import finding
from gdsdeploy.host.model.finding import Finding
from gdsdeploy.lock import lockfile
from gdsdeploy.testing import hosts
from gdsdeploy.testing.hosts import NoFindingsError, fail

USAGE = "say which hosts: pytest tests/host --hosts=ssh://HOST[,ssh://HOST…] [--ssh-config FILE] [--fleet fleet.yml]"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("gdsdeploy").addoption("--fleet", metavar="FILE", help="Expect what this fleet and its lock say.")


def pytest_configure(config: pytest.Config) -> None:
    # testinfra would run the suite on this machine; one that nobody pointed at a host must not pass.
    if not config.getoption("hosts"):
        raise pytest.UsageError(USAGE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each finding of each host; a host that cannot be asked is one test, which fails with the reason."""
    if "finding" not in metafunc.fixturenames:
        return
    option = metafunc.config.option
    hosts = testinfra.get_hosts(
        option.hosts.split(","),
        connection=option.connection,
        ssh_config=option.ssh_config,
        ssh_identity_file=option.ssh_identity_file,
        ansible_inventory=option.ansible_inventory,
        force_ansible=option.force_ansible,
    )
    values: list[Finding | NoFindingsError] = []
    ids: list[str] = []
    for host in hosts:
        findings = _findings(host, option.fleet)
        values += findings
        ids += [f"{host.backend.get_pytest_id()}-{getattr(finding, 'check', 'reachable')}" for finding in findings]
    metafunc.parametrize("finding", values, ids=ids)


def _findings(host: Host, fleet: str | None) -> list[Finding | NoFindingsError]:
    try:
        expectation = _expectation(Path(fleet), host.backend.hostname) if fleet else None
        rows = hosts.carried_findings(host, expectation)
        host_waivers = selection.waivers_of(load_fleet(Path(fleet)), host.backend.hostname) if fleet else []
        return [*finding.apply(rows, host_waivers, finding.today())] or [
            NoFindingsError("no check applies to this host")
        ]
    except NoFindingsError as reason:
        return [reason]


def _expectation(fleet_file: Path, name: str) -> str:
    try:
        fleet, lock = lockfile.fleet_and_lock(fleet_file, TRUSTED)
        if name not in fleet.hosts:
            raise NameUnknown(f"{fleet_file} has no host {name!r}; it has {', '.join(fleet.hosts)}")
        return expect.expectation(Machine(fleet, lock, name)).to_json()
    except GdsError as error:
        fail(error)
