"""How long a rollout waits until a host is free of work."""

from __future__ import annotations

import time
from collections.abc import Callable

from gdsdeploy import cancel
from gdsdeploy.errors import DrainFailed


class Deadline:
    """Of one drain of ``host``.  timeout: seconds from now on.  pause: seconds between two looks."""

    def __init__(self, host: str, timeout: float, pause: float, progress: Callable[[str], None]) -> None:
        self._host, self._timeout, self._pause, self._progress = host, timeout, pause, progress
        self._end = time.monotonic() + timeout
        self._last = ""

    @property
    def left(self) -> float:
        """Seconds until then; at least one, for who starts something that may take that long."""
        return max(1.0, self._end - time.monotonic())

    @property
    def past(self) -> bool:
        return time.monotonic() >= self._end

    def failed(self, text: str, hint: str) -> DrainFailed:
        """The error of a host that is not free of work by now."""
        return DrainFailed(
            f"{self._host} is not free of work after {self._timeout:.0f} s of draining: {text}", hint=hint
        )

    def wait(self, text: str = "") -> None:
        """Tell ``text`` where it is something new, and pause; a wish to stop ends that with Interrupted."""
        if text not in ("", self._last):
            self._progress(text)
            self._last = text
        cancel.current().wait(max(0.0, min(self._pause, self._end - time.monotonic())))
