"""Clocks for a driver.

The machine's clock may be set during a rollout.  Maintenance windows follow it; a soak keeps its length.  Time without
a driver counts towards a soak within one boot of this machine.  After a reboot, or on another machine, the recorded
rest of the soak begins again.
"""

from __future__ import annotations

import math
import queue
import time
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from gdsdeploy.model.events import Event, Measurement, WaveClosed, WaveSoaking

#: Seconds; time synchronization makes smaller corrections all the time.
TOLERANCE: Final = 2.0

T = TypeVar("T")


class Clock:
    """The clocks of this machine; tests replace them."""

    def wall(self) -> float:
        """Seconds since the epoch; may jump."""
        return time.time()

    def steady(self) -> float:
        """Seconds since this machine's boot, suspension included; never jumps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot(self) -> str:
        """Which boot of which machine ``steady`` counts from."""
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def get(self, source: queue.SimpleQueue[T], seconds: float) -> T | None:
        """The next value of ``source``; None: none came within ``seconds``."""
        try:
            return source.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None


class Soaks:
    """Corrects the ends of soaks when the clock is set.  Feed it every event."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boot = clock.boot()
        self._offset = clock.wall() - clock.steady()
        #: wave → end of its soak in seconds since the epoch, and the measurement of its rest
        self._open: dict[str, tuple[float, Measurement | None]] = {}

    def feed(self, event: Event) -> None:
        match event.payload:
            case WaveSoaking(wave, until, measured) if until is not None:
                self._open[wave] = until, measured
            case WaveClosed(wave):
                self._open.pop(wave, None)

    def dated(self, soak: WaveSoaking) -> WaveSoaking:
        """The soak with a measurement of its rest."""
        left = (soak.until or 0.0) - self._clock.wall()
        return replace(soak, measured=Measurement(left, self._boot, self._clock.steady()))

    def taken_up(self) -> list[WaveSoaking]:
        """Soaks of an earlier driver whose end the clock alone would get wrong."""
        return [
            self.dated(WaveSoaking(wave, self._clock.wall() + left))
            for wave, (until, measured) in self._open.items()
            if measured is not None
            and not math.isclose(self._clock.wall() + (left := self._left(measured)), until, abs_tol=TOLERANCE)
        ]

    def _left(self, measured: Measurement) -> float:
        passed = self._clock.steady() - measured.steady if measured.boot == self._boot else 0.0
        return measured.left - max(0.0, passed)

    def jumped(self) -> float:
        """Seconds by which the clock was set since the last call; 0: it wasn't."""
        offset = self._clock.wall() - self._clock.steady()
        jump = offset - self._offset
        if abs(jump) < TOLERANCE:
            return 0.0
        self._offset = offset
        return jump

    def moved(self, jump: float) -> list[WaveSoaking]:
        """Open soaks, after the clock was set by ``jump``."""
        return [self.dated(WaveSoaking(wave, until + jump)) for wave, (until, _) in self._open.items()]
