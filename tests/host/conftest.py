"""The checks of gdsdeploy as a testinfra suite: one test per check and host.

    pytest tests/host --hosts=ssh://gpu1,ssh://gpu2 [--ssh-config FILE] [--fleet fleet.yml] [--junitxml FILE]

Each host is asked once, before the tests, because only its answer says which mounts there are to test.  What it is
expected to be is what provision left on it in /etc/gdsdeploy/expectation.json or, with --fleet, what that fleet and its
lock say now; the name in --hosts is then the name in the fleet, and the fleet file's waivers hold.

With --gds-report no host is asked: ``gdsdeploy validate --pytest`` has asked all of them at the same time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.model.finding import Finding

USAGE = "say which hosts: pytest tests/host --hosts=ssh://HOST[,ssh://HOST…] [--ssh-config FILE] [--fleet fleet.yml]"
#: The host's name in the tests' ids, with its findings or the reason why there are none.
Answers = Iterator[tuple[str, Sequence[Finding] | str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gdsdeploy")
    group.addoption("--fleet", metavar="FILE", help="Expect what this fleet and its lock say.")
    group.addoption("--gds-report", metavar="FILE", help="Take the findings from what validate --json wrote.")


def pytest_configure(config: pytest.Config) -> None:
    # testinfra would run the suite on this machine; one that nobody pointed at a host must not pass.
    if not config.getoption("hosts"):
        raise pytest.UsageError(USAGE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each finding of each host; a host that cannot be asked is one test, which fails with the reason."""
    if "finding" not in metafunc.fixturenames:
        return
    option = metafunc.config.option
    values: list[Finding | str] = []
    ids: list[str] = []
    for name, answer in _reported(Path(option.gds_report)) if option.gds_report else _asked(option):
        rows = [answer] if isinstance(answer, str) else answer or ["no check applies to this host"]
        values += rows
        ids += [f"{name}-{getattr(row, 'check', 'reachable')}" for row in rows]
    metafunc.parametrize("finding", values, ids=ids)


def _reported(file: Path) -> Answers:
    for name, host in json.loads(file.read_text(encoding="utf-8"))["hosts"].items():
        error = host["error"]
        reason = error and "\n".join(filter(None, (error["message"], error["hint"])))
        yield f"ssh://{name}", reason or [Finding(**row) for row in host["findings"]]


def _asked(option: Any) -> Answers:
    # These take seconds to import.
    import testinfra

    from gdsdeploy.testing.hosts import Gds

    # No file: hosts are compared with what provision left on them.
    gds = Gds(Path(option.fleet or ""))
    hosts = testinfra.get_hosts(
        option.hosts.split(","),
        connection=option.connection,
        ssh_config=option.ssh_config,
        ssh_identity_file=option.ssh_identity_file,
        ansible_inventory=option.ansible_inventory,
        force_ansible=option.force_ansible,
    )
    for host in hosts:
        if option.fleet:
            gds.require(host.backend.hostname)
        answer = gds(host)
        yield host.backend.get_pytest_id(), answer.trouble or answer.findings
