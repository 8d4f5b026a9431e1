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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from gdsdeploy.host.model.finding import Finding

USAGE = "say which hosts: pytest tests/host --hosts=ssh://HOST[,ssh://HOST…] [--ssh-config FILE] [--fleet fleet.yml]"
#: The host's name in the tests' ids, with its findings or the reason why there are none.
Answers = Iterator[tuple[str, Sequence[Finding] | str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gdsdeploy")
    group.addoption("--fleet", metavar="FILE", help="Expect what this fleet and its lock say.")
    group.addoption("--gds-report", metavar="FILE", help="Take the findings that validate --json wrote.")


def pytest_configure(config: pytest.Config) -> None:
    # testinfra would run the suite on this machine; one that nobody pointed at a host must not pass.
    if not config.getoption("hosts"):
        raise pytest.UsageError(USAGE)


@dataclass(frozen=True)
class Failure:
    """Why a test failed, in the form of pytest's own: without it, the summary at the end has no words."""

    message: str

    def __str__(self) -> str:
        return self.message

    @property
    def reprcrash(self) -> Failure:
        return self

    def toterminal(self, out: Any) -> None:
        out.line(self.message)


class Check(pytest.Item):
    """One finding, or why a host has none."""

    def __init__(self, *, outcome: Literal["passed", "failed", "skipped"], words: str, line: int, **node: Any) -> None:
        super().__init__(**node)
        self.outcome, self.words, self.line = outcome, words, line

    def runtest(self) -> None:
        """Show it where another plugin has its own protocol."""
        if self.outcome != "passed":
            (pytest.fail if self.outcome == "failed" else pytest.skip)(self.words)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line, self.name

    @property
    def call(self) -> pytest.TestReport:
        """The report of the test."""
        reasons = {"failed": Failure(self.words), "skipped": (str(self.path), self.line + 1, self.words)}
        return pytest.TestReport(self.nodeid, self.location, {}, self.outcome, reasons.get(self.outcome), "call")  # type: ignore[arg-type]


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Report a finding as it is: to look for fixtures, output and tracebacks of each takes longer than to ask hosts."""
    if not isinstance(item, Check):
        return None
    hook, manager = item.ihook, item.config.pluginmanager
    # Plugins such as pytest-html wait for the end; pytest's own would read through all the ends for each failure.
    end = manager.subset_hook_caller("pytest_runtest_logreport", [manager.get_plugin("terminalreporter")])
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    hook.pytest_runtest_logreport(report=item.call)
    end(report=pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "teardown"))
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_pycollect_makeitem(collector: pytest.Module, name: str, obj: Any) -> list[Check] | None:
    """One test for each finding of each host; a host that cannot be asked is one test, which fails with the reason."""
    if name != "shown":
        return None
    option, line = collector.config.option, obj.__code__.co_firstlineno - 1
    checks: list[Check] = []
    for host, answer in _reported(Path(option.gds_report)) if option.gds_report else _asked(option):
        for row in [answer] if isinstance(answer, str) else answer or ["no check applies to this host"]:
            ident = f"test_check[{host}-{getattr(row, 'check', 'reachable')}]"
            outcome, words = obj(row)
            checks.append(Check.from_parent(collector, name=ident, outcome=outcome, words=words, line=line))
    return checks


def _reported(file: Path) -> Answers:
    for name, host in json.loads(file.read_text(encoding="utf-8"))["hosts"].items():
        error = host["error"]
        reason = error and "\n".join(filter(None, (error["message"], error["hint"])))
        yield f"ssh://{name}", reason or [Finding(**row) for row in host["findings"]]


def _asked(option: Any) -> Answers:
    # These take seconds to import.
    import testinfra

    from gdsdeploy.testing.hosts import Gds

    # Without a file, hosts are compared with what provision left on them.
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
