"""What a driver needs of the world; ``steps.py`` has the real thing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gdsdeploy.model.rollout import Task


class Effects(Protocol):
    """Performs steps.  Called by several threads at once, never twice at once for one host."""

    def perform(self, task: Task, progress: Callable[[str], None]) -> Mapping[str, Any]:
        """Do one step and return what it found, as JSON.

        A task with an attempt above 1 may have been done before, wholly or in part: it must come to the same end.
        progress: gets one line of text at a time.  Raises GdsError when the step failed.
        """
        ...

    def stop(self) -> None:
        """Have every ``perform`` that is under way end soon, with Interrupted.  Called from another thread."""
        ...
