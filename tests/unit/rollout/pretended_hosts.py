"""Hosts that survive the process that works on them, as real ones do: everything that happens to them is one line.

Real hosts cannot be rebooted at each of hundreds of places where a driver may be killed, so these are imitated: a
host is what the lines of one file say, each of which is appended at once.  The driver, its threads, the journal and the
kills are real.  On a first attempt a step does what it is told without a look; only a further one looks whether it was
done already.  So whoever counts attempts wrongly reboots a host twice.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gdsdeploy.errors import ChecksFailed, GdsError, Interrupted
from gdsdeploy.model.rollout import Outcome, Plan, Step, Task
from gdsdeploy.rollout.machine import StateMachine

OLD, NEW = "sha256:old", "sha256:new"


@dataclass
class Pretended:
    """One host, as its lines say."""

    name: str
    lock: str = OLD
    #: what it runs since its last boot
    runs: str = OLD
    boot: int = 1
    drained: bool = False
    #: the boot in which every check passed, and what it ran
    validated: tuple[int, str] = (0, "")
    count: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def happens(self, what: str) -> None:
        self.count[what] += 1
        match what.split(":"):
            case ["drain"]:
                if self.drained:
                    self.broken.append("drained twice")
                self.drained = True
            case ["install", which]:
                self.lock = "sha256:" + which
            case ["reboot", which]:
                self.count["reboot"] += 1
                self.boot, self.runs = self.boot + 1, "sha256:" + which
            case ["validated"]:
                self.validated = self.boot, self.runs
            case ["return"]:
                if self.validated != (self.boot, self.runs):
                    self.broken.append(f"returned in boot {self.boot} of {self.runs}, validated {self.validated}")
                if not self.drained:
                    self.broken.append("returned, but was in work")
                self.drained = False
        if what != "drain" and not self.drained and what.startswith(("install", "reboot")):
            self.broken.append(f"{what} while in work")


class Hosts:
    """The hosts of the folder ``path``; also Effects.

    fails: hosts whose checks fail with the new lock.  at: called with a name at each place where a kill may come.
    seconds: that each step takes.
    """

    def __init__(
        self,
        path: Path,
        plan: Plan,
        *,
        fails: tuple[str, ...] = (),
        at: Callable[[str], None] = lambda _: None,
        seconds: float = 0.0,
    ) -> None:
        self.plan = plan
        self._file = path / "happened"
        self._fails = fails
        self._at = at
        self._seconds = seconds
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def perform(self, task: Task, progress: Callable[[str], None]) -> Mapping[str, Any]:
        self._at(f"before {task.step}")
        if self._stop.wait(self._seconds):
            raise Interrupted("stopped")
        host, again = self.look()[task.host], task.attempt > 1
        data = self._STEPS.get(task.step, Hosts._nothing)(self, task, host, again)
        progress(f"{task.step} is done")
        self._at(f"after {task.step}")
        return data

    def _nothing(self, _task: Task, _host: Pretended, _again: bool) -> Mapping[str, Any]:
        return {}

    def _preflight(self, _task: Task, host: Pretended, _again: bool) -> Mapping[str, Any]:
        satisfied = host.lock == host.runs == NEW
        return {"boot_id": str(host.boot), "satisfied": satisfied, "disruption": "reboot", "current": host.lock}

    def _drain(self, task: Task, host: Pretended, _again: bool) -> Mapping[str, Any]:
        if not host.drained:
            self.append(task.host, "drain")
        return {"drained": True, "reason": f"gdsdeploy rollout {self.plan.id}"}

    def _apply(self, task: Task, host: Pretended, again: bool) -> Mapping[str, Any]:
        if not again or host.lock != NEW:
            self.append(task.host, "install:new")
        return {"changed": True}

    def _reboot(self, task: Task, host: Pretended, again: bool) -> Mapping[str, Any]:
        if not again or str(host.boot) == task.data["boot_id"]:
            self.append(task.host, "reboot:new" if task.step is Step.REBOOT else "reboot:old")
        return {"how": "reboot", "boot_id": task.data["boot_id"]}

    def _boot(self, task: Task, host: Pretended, _again: bool) -> Mapping[str, Any]:
        if str(host.boot) == task.data["boot_id"]:
            raise GdsError(f"{task.host} did not reboot")
        return {"boot_id": str(host.boot), "kernel": "6.12"}

    def _validate(self, task: Task, host: Pretended, _again: bool) -> Mapping[str, Any]:
        want = OLD if task.step is Step.UNDO_VALIDATE else NEW
        if (host.lock, host.runs) != (want, want):
            raise ChecksFailed(f"{task.host} has {host.lock} and runs {host.runs}")
        if task.host in self._fails and want == NEW:
            raise ChecksFailed(f"{task.host}: one check failed")
        if task.step is not Step.SOAK:
            self.append(task.host, "validated")
        return {"validated_boot": str(host.boot), "verdict": "pass", "lock": want}

    def _return(self, task: Task, host: Pretended, again: bool) -> Mapping[str, Any]:
        if str(host.boot) != task.data["validated_boot"]:
            raise ChecksFailed(f"{task.host} is in another boot than the one that was validated")
        if not again or host.drained:
            self.append(task.host, "return")
        return {"returned": True}

    def _undo(self, task: Task, host: Pretended, again: bool) -> Mapping[str, Any]:
        if not again or host.lock != OLD:
            self.append(task.host, "install:old")
        return {"boot_id": str(host.boot), "disruption": "none" if host.runs == OLD else "reboot"}

    _STEPS: ClassVar[Mapping[Step, Callable[[Hosts, Task, Pretended, bool], Mapping[str, Any]]]] = {
        Step.PREFLIGHT: _preflight,
        Step.DRAIN: _drain,
        Step.APPLY: _apply,
        Step.REBOOT: _reboot,
        Step.UNDO_REBOOT: _reboot,
        Step.BOOT: _boot,
        Step.UNDO_BOOT: _boot,
        Step.VALIDATE: _validate,
        Step.SOAK: _validate,
        Step.UNDO_VALIDATE: _validate,
        Step.RETURN: _return,
        Step.UNDO: _undo,
    }

    def append(self, name: str, what: str) -> None:
        """Something happens to a host, whether or not anybody is there to see it."""
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(handle, json.dumps([name, what]).encode() + b"\n")
        finally:
            os.close(handle)

    def look(self) -> dict[str, Pretended]:
        """What the hosts are."""
        return self._read()[0]

    def _read(self) -> tuple[dict[str, Pretended], int]:
        hosts = {name: Pretended(name) for wave in self.plan.waves for name in wave.hosts}
        most = 0
        for line in self._file.read_text().splitlines() if self._file.exists() else ():
            name, what = json.loads(line)
            hosts[name].happens(what)
            most = max(most, sum(host.drained for host in hosts.values()))
        return hosts, most

    def broken(self, machine: StateMachine | None = None) -> list[str]:
        """Everything that must never be; of hosts of which ``machine`` says that their work is over, more."""
        hosts, most = self._read()
        problems = [f"{host.name}: {what}" for host in hosts.values() for what in host.broken]
        if most > self.plan.max_unavailable:
            problems.append(f"{most} hosts were out of work at a time")
        for host in hosts.values():
            for direction in ("reboot:new", "reboot:old", "install:new", "install:old"):
                if host.count[direction] > 1:
                    problems.append(f"{host.name}: {direction} {host.count[direction]} times")
        if machine is None:
            return problems
        for host in hosts.values():
            state = machine.hosts[host.name]
            expected = {Outcome.DONE: NEW, Outcome.ROLLED_BACK: OLD}.get(state.outcome or Outcome.SKIPPED, host.lock)
            if host.drained and state.outcome not in {Outcome.KEPT, Outcome.LOST}:
                problems.append(f"{host.name}: forgotten in drain as {state.state}")
            if (host.lock, host.runs) != (expected, expected):
                problems.append(f"{host.name}: {state.state} with {host.lock}, running {host.runs}")
        return problems
