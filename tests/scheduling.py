"""Whole groups of tests to each of several processes; for pytest-xdist, which users of tests/host need not have."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import NodeManager

from tests import groups

#: Seconds that a process has to clear away what it made, when all of it is interrupted.
CLEARING = 120


class Scheduler(LoadScopeScheduling):
    """Hands out whole groups, in the order in which they were collected."""

    def __init__(self, config: Any, log: Any) -> None:
        # By itself it would begin with the groups that have the most tests.
        config.option.loadscopereorder = False
        NodeManager.EXIT_TIMEOUT = CLEARING
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return groups.of(nodeid)[1]

    def _reschedule(self, node: Any) -> None:
        # The next group is taken when the last test of one begins, which may take minutes: no sooner.
        if node.shutting_down or not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
            super()._reschedule(node)
