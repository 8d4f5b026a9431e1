"""Commands of the site take hosts out of work, and bring them back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gdsdeploy import run
from gdsdeploy.errors import DrainFailed, GdsError
from gdsdeploy.model.rollout_settings import Drain, fill
from gdsdeploy.rollout.drain.base import Deadline, DrainResult, Progress, ReturnResult, State, failure, last, rollout_of

#: Seconds between two questions whether a host is idle.
PAUSE = 10.0
#: Seconds that one such question, or the way back, may take.
SECONDS = 600.0


class Commands:
    """Starts ``out``, ``back`` and ``idle`` with {host}, {node}, {reason} and {rollout} replaced in their words.

    They run on this machine in the folder of the fleet file, and end with status 0 when they're done.  Each may be
    started again after it was done.
    """

    def __init__(self, settings: Drain, folder: Path, *, pause: float = PAUSE) -> None:
        self._settings = settings
        self._folder = folder
        self._pause = pause

    def check(self, hosts: Sequence[str]) -> list[str]:  # noqa: ARG002 - a command can't be asked about hosts
        objections = []
        for name in ("out", "back", "idle"):
            if not (command := getattr(self._settings, name)):
                continue
            if "/" not in command[0]:
                try:
                    run.which(command[0])
                except GdsError as error:
                    objections.append(f"rollout.drain.{name}: {error.message}")
            elif not os.access(self._folder / command[0], os.X_OK):
                objections.append(
                    f"rollout.drain.{name}: {self._folder / command[0]} is no program that can be started"
                )
        return objections

    def states(self, hosts: Sequence[str]) -> dict[str, State]:  # noqa: ARG002 - no command answers that
        return {}

    def drain(self, host: str, reason: str, *, timeout: float, progress: Progress) -> DrainResult:
        """As Drainer.drain: ``out`` ends with 0, then ``idle`` does, both within ``timeout``."""
        deadline = Deadline(host, timeout, self._pause, progress)
        self._do("out", f"take {host} out of work", host, reason, timeout)
        progress("it gets no more work")
        while self._settings.idle:
            doing = f"ask whether {host} is idle"
            status, lines = self._run("idle", doing, host, reason, min(SECONDS, deadline.left))
            if status == 0:
                break
            text = lines[-1].strip() if lines else f"status {status}"
            if deadline.past:
                output = failure(f"{doing}: status {status}", self._words("idle", host, reason), lines)
                raise deadline.failed(f"{text}\n{output}", "rollout.drain.timeout is how long a rollout waits.")
            deadline.wait(f"waiting until it is idle: {text}")
        return {"drained": True, "reason": reason, "was": ""}

    def undrain(self, host: str, reason: str, *, progress: Progress) -> ReturnResult:
        """As Drainer.undrain; ``back`` fails where the host stays out."""
        self._do("back", f"bring {host} back into work", host, reason, SECONDS)
        progress("it gets work again")
        return {"returned": True, "reason": ""}

    def _do(self, name: str, doing: str, host: str, reason: str, seconds: float) -> None:
        status, lines = self._run(name, doing, host, reason, seconds)
        if status:
            raise DrainFailed(
                failure(f"cannot {doing}: status {status}", self._words(name, host, reason), lines),
                hint=f"It is rollout.drain.{name} of the fleet file, started in {self._folder}.",
            )

    def _run(self, name: str, doing: str, host: str, reason: str, seconds: float) -> tuple[int, list[str]]:
        return last(self._words(name, host, reason), doing, seconds, self._folder, lambda _: None)

    def _words(self, name: str, host: str, reason: str) -> list[str]:
        node = self._settings.node.replace("{host}", host)
        values = {"host": host, "node": node, "reason": reason, "rollout": rollout_of(reason)}
        return fill(getattr(self._settings, name), values)
