"""The interface between a driver and what performs its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gdsdeploy.model.rollout import Task


class Effects(Protocol):
    """Performs steps.  Called by several threads at once, never twice at once for one host."""

    def perform(self, task: Task, progress: Callable[[str], None]) -> Mapping[str, Any]:
        """Do one step and return its facts, as JSON.

        An earlier attempt may have done it, wholly or in part: the end must be the same.
        progress: gets one line of text at a time.  Raises GdsError when the step failed.
        """
        ...

    def stop(self) -> None:
        """Have every running ``perform`` end soon, with Interrupted.  Called from another thread."""
        ...
