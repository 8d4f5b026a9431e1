"""How long the tests of parallel processes took: `make test` has a limit."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.naming import RUN

#: Seconds of a test module from which on it is listed.
SLOW = 10
#: Accounts of processor time, where there are control groups of version 1.
ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")


def account(nodeid: str) -> None:
    """Count this process for a test's module from now on, with all that it starts: programs, hosts of a lab."""
    if (ACCOUNTS / "cgroup.procs").is_file():
        folder = ACCOUNTS / _prefix() / nodeid.partition("::")[0].replace("/", ":")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text(str(os.getpid()))


def forget() -> None:
    """Remove the accounts of this run, as far as no process is left in them."""
    for folder in (*(ACCOUNTS / _prefix()).glob("*/"), ACCOUNTS / _prefix()):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _prefix() -> str:
    return Path(os.environ[RUN]).name


def _used() -> dict[str, float]:
    """Processor seconds of each module so far."""
    accounts = (ACCOUNTS / _prefix()).glob("*/cpuacct.usage")
    return {file.parent.name.replace(":", "/"): int(file.read_text()) / 1e9 for file in accounts}


class Summary:
    """A plugin of the main process, which begins to measure when it is made."""

    def __init__(self) -> None:
        self._begin = _processors()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the slow test modules with their processor time, and say how busy the processors were."""
        seconds: Counter[str] = Counter()
        for reports in terminalreporter.stats.values():
            for report in reports:
                if isinstance(report, pytest.TestReport):
                    seconds[report.nodeid.partition("::")[0]] += report.duration
        used = _used()
        terminalreporter.section("seconds of each test module: in its process, of processors")
        for path, time in seconds.most_common():
            if max(time, used.get(path, 0)) > SLOW:
                terminalreporter.write_line(f"{time:6.0f} {used.get(path, 0):6.0f}  {path}")
        busy, idle = (after - before for after, before in zip(_processors(), self._begin, strict=True))
        terminalreporter.write_line(f"the processors were busy {100 * busy // (busy + idle or 1)} % of the time")


def _processors() -> tuple[int, int]:
    """This machine's processor time since its boot: busy, and idle with what waited for disks."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = sum(fields[3:5])
    return sum(fields[:8]) - idle, idle
