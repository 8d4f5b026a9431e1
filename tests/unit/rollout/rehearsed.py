"""Plays a rollout without hosts: what each step comes to is looked up, and time is a number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gdsdeploy.model.events import Draft, Event, Kind, as_json
from gdsdeploy.model.rollout import BACK, FORWARD, Outcome, Plan, Step, Task, Wave
from gdsdeploy.rollout.machine import Decisions, StateMachine

ERROR = {"kind": "ProgramFailed", "message": "it broke", "hint": None}
SILENT = {"kind": "HostUnreachable", "message": "no answer", "hint": None}
#: The steps of a host that goes well, and those of the way back.
FORWARD_STEPS = [step.value for step in FORWARD]
UNDO = [step.value for step in BACK]
#: Of a fleet that can switch its hosts off and on.
POWER: dict[str, Any] = {"settings": {"power_cycle": ["ipmi", "{host}"]}}


def plan(*waves: Wave, **changed: Any) -> Plan:
    """A plan of these waves; ``max_unavailable`` is large unless it is said."""
    fields: dict[str, Any] = {"settings": {}, "max_unavailable": 1000, **changed}
    return Plan("20261121T1054-7f3a", "/fleet.yml", "sha256:b", "sha256:f", waves, **fields)


def step_data(task: Task, boot: str = "") -> dict[str, Any]:
    """What a step finds where everything goes well."""
    back = task.step.value.startswith("undo")
    now = boot or ("boot-3" if back else "boot-2")
    return {
        Step.PREFLIGHT: {"boot_id": "boot-1", "current": "sha256:a", "satisfied": False, "disruption": "reboot"},
        Step.DRAIN: {"drained": True, "reason": "gdsdeploy rollout"},
        Step.SNAPSHOT: {"snapshot": {}},
        Step.BOOT: {"boot_id": now, "kernel": "b"},
        Step.VALIDATE: {"validated_boot": now, "verdict": "passed"},
        Step.RETURN: {"returned": True},
        Step.REBOOT: {"how": "reboot"},
        Step.UNDO_BOOT: {"boot_id": now, "kernel": "a"},
        Step.UNDO_VALIDATE: {"validated_boot": task.data.get("boot_id", now) if back else now},
    }.get(task.step, {})


class Play:
    """A machine, its journal, and what is under way."""

    def __init__(self, plan: Plan, now: float = 1000.0) -> None:
        self.plan = plan
        self.machine = StateMachine(plan)
        self.events: list[Event] = []
        self.now = now
        self.open = True
        self.under_way: dict[str, Task] = {}
        self.say(Kind.PLANNED, plan={})

    def say(self, kind: Kind, host: str = "", **data: Any) -> Event:
        event = Event(len(self.events) + 1, self.now, kind, host, data)
        self.events.append(event)
        self.machine.apply(event)
        return event

    def take(self, drafts: Iterable[Draft]) -> None:
        """Write down what the machine has decided."""
        for host, payload in drafts:
            self.say(payload.kind, host, **as_json(payload))

    def decide(self) -> Decisions:
        return self.machine.decide(self.now, open_window=self.open)

    def step(self) -> Decisions:
        """Write down and begin whatever can be, until nothing more can."""
        while True:
            decided = self.decide()
            self.take(decided.events)
            for task in decided.tasks:
                self.say(Kind.BEGIN, task.host, step=task.step.value, attempt=task.attempt)
                self.under_way[task.host] = task
            if not decided.events and not decided.tasks:
                return decided

    def end(self, host: str, data: Mapping[str, Any] | None = None) -> None:
        task = self.under_way.pop(host)
        self.say(Kind.END, host, step=task.step.value, data=dict(step_data(task) if data is None else data))

    def fail(self, host: str, error: Mapping[str, Any] = ERROR) -> None:
        task = self.under_way.pop(host)
        self.say(Kind.FAIL, host, step=task.step.value, error=dict(error))

    def kill(self) -> None:
        """The controller dies, and another one reads the journal."""
        self.under_way.clear()
        self.machine = refolded(self.plan, self.events)
        self.machine.interrupted()

    def steps(self, host: str) -> list[str]:
        """Its steps as they were begun."""
        return [e.data["step"] for e in self.events if e.host == host and e.kind is Kind.BEGIN]

    def occurrences(self, *kinds: Kind) -> list[str]:
        return [e.kind.value for e in self.events if e.kind in kinds]

    def outcome(self, host: str) -> Outcome | None:
        return self.machine.hosts[host].outcome


def refolded(plan: Plan, events: list[Event]) -> StateMachine:
    machine = StateMachine(plan)
    for event in events:
        machine.apply(event)
    return machine


def failed(machine: StateMachine) -> list[str]:
    """Hosts whose failure counts."""
    return [name for name, host in machine.hosts.items() if host.counted is not None and host.counted.failed]


def unavailable(machine: StateMachine) -> int:
    """Hosts of the fleet that are out of work, by this rollout or for other reasons."""
    out = {name for name in machine.slots.held if machine.hosts[name].out}
    return len(out | machine.slots.down)


def waits(decided: Decisions) -> bool:
    """Whether hosts wait for nothing but a window: there is nothing to do, no time to wait for, and no end."""
    return not (decided.events or decided.tasks or decided.over) and decided.wake_at is None


#: Whether a step of a host fails: its error, or None.
Fault = Callable[[Task], Mapping[str, Any] | None]


def run(play: Play, fault: Fault = lambda _: None, until: Callable[[Play], bool] = lambda _: False) -> Play:
    """Everything that is under way ends, one after the other, until nothing more happens or ``until`` says so."""
    for _ in range(10_000):
        decided = play.step()
        if until(play):
            return play
        if play.under_way:
            host = next(iter(play.under_way))
            task = play.under_way[host]
            error = fault(task)
            if error is None:
                play.end(host)
            else:
                play.fail(host, error)
        elif decided.wake_at is not None:
            play.now = decided.wake_at
        else:
            return play
    raise AssertionError("it does not end")


def failing(**faults: Mapping[str, Any]) -> Fault:
    """Hosts' steps by name, ``a_boot=ERROR``; ``_`` stands for ``-`` in a step."""
    errors = {tuple(name.split("_", 1)): error for name, error in faults.items()}
    return lambda task: errors.get((task.host, task.step.value.replace("-", "_")))


__all__ = ["ERROR", "SILENT", "Play", "failing", "plan", "refolded", "run", "step_data"]


def one(*hosts: str, **changed: Any) -> Play:
    """One wave of these hosts, of which any number may fail."""
    return Play(plan(Wave("all", hosts or ("a",), halt_at=99), **changed))


def reach(play: Play, host: str, step: str) -> None:
    """Everything goes well until ``host`` is in ``step``."""
    run(play, until=lambda p: host in p.under_way and p.under_way[host].step == step)
    assert host in play.under_way


def soaking(**changed: Any) -> Play:
    waves = Wave("canary", ("a", "b"), soak=60, canary=True), Wave("wave-2", ("c",))
    return run(Play(plan(*waves, **changed)), until=lambda p: p.machine.waves[0].state == "soaking")
