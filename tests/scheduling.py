"""Distribute whole groups of tests to pytest-xdist's processes; tests/host works without xdist."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import NodeManager

from tests import groups

#: Seconds for a process's cleanup after an interruption.
CLEARING = 120


class Scheduler(LoadScopeScheduling):
    """Distribute whole groups in the order of their collection."""

    def __init__(self, config: Any, log: Any) -> None:
        # The default order starts with the groups that have the most tests.
        config.option.loadscopereorder = False
        NodeManager.EXIT_TIMEOUT = CLEARING
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return groups.of(nodeid)[1]

    def _reschedule(self, node: Any) -> None:
        # A process takes the next group only when it starts its last test, which may take minutes.
        if node.shutting_down or not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
            super()._reschedule(node)
