"""What tests of the driver share: a plan, a clock for which waiting takes no time, and processes of their own."""

from __future__ import annotations

import itertools
import os
import queue
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdsdeploy.model.rollout import Plan, Wave
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout.driver import Clock

PLAN = Plan(
    "20261121T1054-7f3a", "/fleet.yml", "sha256:new", "sha256:2",
    (Wave("canary", ("a",), soak=600, canary=True), Wave("1", ("b", "c"))),
    Rollout(parallel=2).model_dump(mode="json"), max_unavailable=2,
)  # fmt: skip


class Hurried(Clock):
    """Waits for nothing: what would be waited for has passed.  Each is a boot of its own, as a resume may meet it."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self._passed = 0.0
        self._boot = f"{os.getpid()}-{next(self._numbers)}"

    def wall(self) -> float:
        return super().wall() + self._passed

    def steady(self) -> float:
        return super().steady() + self._passed

    def boot(self) -> str:
        return self._boot

    def get(self, source: queue.SimpleQueue[Any], seconds: float) -> Any:
        event = super().get(source, min(seconds, 0.002))
        if event is None:
            self._passed += 30
        return event


def begin_fork(body: Callable[[], object], log: Path) -> int:
    """The process id of a child that does ``body``; it ends with 0, or with 3 after an exception, which ``log`` has."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            # Whoever runs the tests may ignore some of them, as nohup does; a driver leaves those ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            body()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing of the child may run on in the parent's code
            log.write_text(traceback.format_exc())
            os._exit(3)
    return pid


def status_of(pid: int) -> int:
    """With what a child ended; negative: by that signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(body: Callable[[], object], log: Path) -> int:
    """What a child that does ``body`` ends with."""
    return status_of(begin_fork(body, log))
