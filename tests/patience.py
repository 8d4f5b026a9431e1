"""Time in tests, on machines that have other work: what has to end, and limits that leave the time for that work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
#: Seconds that nothing takes that ends by itself.  What would hang hangs for much longer.
SURELY = 300.0
#: Limits, in seconds, from one that a machine without other work keeps to one that every machine keeps.
LIMITS = (1, 10, 60)


def with_time(work: Callable[[int], Result], enough: Callable[[Result], object]) -> Result:
    """What ``work`` brings with the first of LIMITS that is ``enough`` for what has to be done before it is reached."""
    for limit in LIMITS:
        result = work(limit)
        if enough(result):
            break
    return result


def wait_for(condition: Callable[[], object], seconds: float = SURELY) -> bool:
    """Whether the condition came true within so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
