"""Time for a driver: what the clock says, and what really passes.

The clock of a machine may be set while a rollout runs.  Maintenance windows follow it; a soak does not: it lasts as
long as it was meant to, whatever the clock does.  Time that passed while no driver was running counts towards a soak
only where it can be measured, which is within one boot of this machine.  After a reboot of it, or on another machine,
the rest of the soak that was last written down begins anew: it may then last longer than was meant, but it is never
skipped, and never waits for ever.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from gdsdeploy.model.rollout import Event, Kind

#: Seconds by which the clock is off before it counts as set; less is what time synchronization does all the time.
TOLERANCE: Final = 2.0

Item = TypeVar("Item")


class Clock:
    """The clocks of this machine; tests have others."""

    def wall(self) -> float:
        """Seconds since the epoch; may jump."""
        return time.time()

    def steady(self) -> float:
        """Seconds since this machine's boot, suspension included; never jumps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot(self) -> str:
        """Which boot of which machine ``steady`` counts from."""
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def get(self, source: queue.SimpleQueue[Item], seconds: float) -> Item | None:
        """The next item of ``source``; None: there was none for ``seconds``."""
        try:
            return source.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None


class Soaks:
    """Keeps the ends of soaks where they belong while the clock is set.  Feed it every event."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boot = clock.boot()
        self._offset = clock.wall() - clock.steady()
        #: wave → data of its newest SOAKING
        self._open: dict[Any, Mapping[str, Any]] = {}

    def feed(self, event: Event) -> None:
        """Take note of the next event."""
        if event.kind is Kind.SOAKING:
            self._open[event.data["wave"]] = event.data
        elif event.kind is Kind.CLOSED:
            self._open.pop(event.data["wave"], None)

    def dated(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Data of SOAKING with what the rest of the soak can be measured by later."""
        measured = {"left": data["until"] - self._clock.wall(), "boot": self._boot, "steady": self._clock.steady()}
        return {**data, "measured": measured}

    def taken_up(self) -> list[dict[str, Any]]:
        """Data of SOAKING for what a driver before this one has left open, where the clock alone would get it wrong."""
        return [
            self.dated({"wave": data["wave"], "until": self._clock.wall() + left})
            for data in self._open.values()
            if (left := self._left(data)) is not None
            and not math.isclose(self._clock.wall() + left, data["until"], abs_tol=TOLERANCE)
        ]

    def _left(self, data: Mapping[str, Any]) -> float | None:
        if (known := data.get("measured")) is None:
            return None
        passed = self._clock.steady() - known["steady"] if known["boot"] == self._boot else 0.0
        return float(known["left"] - max(0.0, passed))

    def jumped(self) -> float:
        """Seconds by which the clock was set since this was asked last; 0: it was not."""
        offset = self._clock.wall() - self._clock.steady()
        jump = offset - self._offset
        if abs(jump) < TOLERANCE:
            return 0.0
        self._offset = offset
        return jump

    def moved(self, jump: float) -> Iterable[dict[str, Any]]:
        """Data of SOAKING for open soaks, after the clock was set by ``jump``."""
        return [self.dated({"wave": data["wave"], "until": data["until"] + jump}) for data in self._open.values()]
