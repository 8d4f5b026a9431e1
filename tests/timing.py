"""How long the tests of parallel processes took: `make test` has a limit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

#: Seconds of a test module from which on it is listed.
SLOW = 10


class Summary:
    """A plugin of the main process, which begins to measure when it is made."""

    def __init__(self) -> None:
        self._begin = _processors()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """List the slow test modules, and say how busy the processors were."""
        seconds: Counter[str] = Counter()
        for reports in terminalreporter.stats.values():
            for report in reports:
                if isinstance(report, pytest.TestReport):
                    seconds[report.nodeid.partition("::")[0]] += report.duration
        terminalreporter.section("seconds of each test module, in its process")
        for path, time in seconds.most_common():
            if time > SLOW:
                terminalreporter.write_line(f"{time:6.0f}  {path}")
        busy, idle = (after - before for after, before in zip(_processors(), self._begin, strict=True))
        terminalreporter.write_line(f"the processors were busy {100 * busy // (busy + idle or 1)} % of the time")


def _processors() -> tuple[int, int]:
    """This machine's processor time since its boot: busy, and idle with what waited for disks."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = sum(fields[3:5])
    return sum(fields[:8]) - idle, idle
