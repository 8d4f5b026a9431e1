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
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from gdsdeploy.model.events import Event, Measured, WaveClosed, WaveSoaking

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
        #: wave → end of its soak, in seconds since the epoch, and by what its rest can be measured
        self._open: dict[str, tuple[float, Measured | None]] = {}

    def feed(self, event: Event) -> None:
        """Take note of the next event."""
        match event.payload:
            case WaveSoaking(wave, until, measured) if until is not None:
                self._open[wave] = until, measured
            case WaveClosed(wave):
                self._open.pop(wave, None)

    def dated(self, soak: WaveSoaking) -> WaveSoaking:
        """The same with what the rest of the soak can be measured by later."""
        left = (soak.until or 0.0) - self._clock.wall()
        return replace(soak, measured=Measured(left, self._boot, self._clock.steady()))

    def taken_up(self) -> list[WaveSoaking]:
        """Soaks that a driver before this one has left open, where the clock alone would get their end wrong."""
        return [
            self.dated(WaveSoaking(wave, self._clock.wall() + left))
            for wave, (until, measured) in self._open.items()
            if measured is not None
            and not math.isclose(self._clock.wall() + (left := self._left(measured)), until, abs_tol=TOLERANCE)
        ]

    def _left(self, measured: Measured) -> float:
        passed = self._clock.steady() - measured.steady if measured.boot == self._boot else 0.0
        return measured.left - max(0.0, passed)

    def jumped(self) -> float:
        """Seconds by which the clock was set since this was asked last; 0: it was not."""
        offset = self._clock.wall() - self._clock.steady()
        jump = offset - self._offset
        if abs(jump) < TOLERANCE:
            return 0.0
        self._offset = offset
        return jump

    def moved(self, jump: float) -> list[WaveSoaking]:
        """Open soaks, after the clock was set by ``jump``."""
        return [self.dated(WaveSoaking(wave, until + jump)) for wave, (until, _) in self._open.items()]
