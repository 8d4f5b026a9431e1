"""Plays the rollout of a large fleet in virtual time, with hosts that fail, and prints what its waves would take.

    python benchmarks/rollout/simulate.py [--hosts N] [--fail PERCENT] [--lost PERCENT] [--parallel N] [--json FILE]

The machine is the real one: every event of a real journal is applied to it, and it decides what comes next.  Only the
steps are imagined: each takes a random time around what it takes in practice, and a share of the hosts fails.  Where it
halts, a person looks at the hosts that failed, repairs those that are lost, and resumes it an hour later.  Nothing is
read or written.  See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdsdeploy import console
from gdsdeploy.model.events import Event, Kind, as_json
from gdsdeploy.model.rollout import Plan, Step, Task
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout.machine import StateMachine
from gdsdeploy.rollout.waves import Candidate, layout

#: Seconds that a step takes in the middle; each varies by a factor of two either way.
TAKES = {
    Step.PREFLIGHT: 4, Step.DRAIN: 900, Step.SNAPSHOT: 20, Step.APPLY: 150, Step.MODULES: 40, Step.AUDIT: 3,
    Step.REBOOT: 5, Step.BOOT: 240, Step.VALIDATE: 60, Step.RETURN: 3, Step.SOAK: 20, Step.POWER: 300,
    Step.UNDO: 150, Step.UNDO_REBOOT: 5, Step.UNDO_BOOT: 240, Step.UNDO_VALIDATE: 60,
}  # fmt: skip
#: Where hosts fail, one as likely as another.
FRAGILE = (Step.DRAIN, Step.APPLY, Step.MODULES, Step.AUDIT, Step.VALIDATE)
FAILED = {"kind": "ConvergeFailed", "message": "it broke", "hint": None}
SILENT = {"kind": "HostUnreachable", "message": "no answer", "hint": None}
#: Seconds until a person has looked at a rollout that halted.
REPAIR = 3600


def make_plan(hosts: int, parallel: int, unavailable: str, threshold: str) -> Plan:
    """Racks of forty, two kinds of hosts, and at most one of each group of replicas at a time."""
    settings = Rollout.model_validate({
        "parallel": parallel, "max_unavailable": unavailable, "apart": ["replica"], "order": ["rack"],
        "failures": {"canary": 2, "later": threshold},
    })  # fmt: skip
    labels = {f"gpu{i:05}": {"rack": f"r{i // 40:04}", "replica": f"g{i // 4}"} for i in range(hosts)}
    waves = layout(settings, [Candidate(name, each, f"kind{i % 2}") for i, (name, each) in enumerate(labels.items())])
    return Plan(
        id="20261121T1054-7f3a", fleet="/fleet.yml", lock_digest="sha256:b", fleet_digest="sha256:f",
        waves=waves.waves, settings=settings.model_dump(mode="json"), labels=labels,
        max_unavailable=waves.max_unavailable, expected=dict.fromkeys(labels, 1400.0),
    )  # fmt: skip


class Simulation:
    """A machine, the steps that are under way by the time of their end, and the processor time of the machine alone."""

    def __init__(self, plan: Plan, seed: int, fail: float, lost: float) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - the same for the same seed
        self.doomed = {name: self._fate(fail, lost) for wave in plan.waves for name in wave.hosts}
        self.now = 1_795_000_000.0
        self.under_way: list[tuple[float, int, Task]] = []
        self.events = 0
        self.most_out = 0
        self.halts: list[str] = []
        self.cpu = 0.0
        begin = time.process_time()
        self.machine = StateMachine(plan)
        self.cpu += time.process_time() - begin

    def _fate(self, fail: float, lost: float) -> Step | None:
        number = self.chance.random() * 100
        if number < lost:
            return Step.BOOT
        return self.chance.choice(FRAGILE) if number < lost + fail else None

    def say(self, kind: Kind, host: str, data: dict[str, Any]) -> None:
        """The next event of the journal."""
        self.events += 1
        event = Event(self.events, self.now, kind, host, data)
        begin = time.process_time()
        self.machine.apply(event)
        self.cpu += time.process_time() - begin

    def run(self) -> None:
        """Until it is finished."""
        self.say(Kind.PLANNED, "", {"plan": {}})
        while True:
            begin = time.process_time()
            decided = self.machine.decide(self.now, open_window=True)
            self.cpu += time.process_time() - begin
            for host, payload in decided.events:
                self.say(payload.kind, host, as_json(payload))
            for task in decided.tasks:
                self.say(Kind.BEGIN, task.host, {"step": task.step.value, "attempt": task.attempt})
                takes = TAKES[task.step] * 2 ** self.chance.uniform(-1, 1)
                heapq.heappush(self.under_way, (self.now + takes, self.events, task))
            self.most_out = max(self.most_out, self.machine.slots.used)
            if decided.events or decided.tasks:
                continue
            if self.under_way:
                self.now, _, task = heapq.heappop(self.under_way)
                self.end(task)
            elif decided.wake_at is not None:
                self.now = decided.wake_at
            elif decided.over and self.machine.halted:
                self.halts.append(self.machine.halted)
                self.now += REPAIR
                failed = [name for name, host in self.machine.hosts.items() if host.counted and host.counted.failed]
                self.say(Kind.RESUMED, "", {"accept": failed})
            elif decided.over:
                return

    def end(self, task: Task) -> None:
        """A step is over, as its host's fate has it."""
        if self.doomed[task.host] is task.step:
            self.doomed[task.host] = None
            error = SILENT if task.step is Step.BOOT else FAILED
            self.say(Kind.FAIL, task.host, {"step": task.step.value, "error": error})
            return
        boot = f"{task.host}-{task.attempt}-{'a' if task.step.value.startswith('undo') else 'b'}"
        steps: dict[Step, dict[str, Any]] = {
            Step.PREFLIGHT: {"boot_id": "first", "satisfied": False},
            Step.DRAIN: {"drained": True},
            Step.BOOT: {"boot_id": boot, "kernel": "6.12.94"},
            Step.UNDO_BOOT: {"boot_id": boot, "kernel": "6.12.93"},
            Step.VALIDATE: {"validated_boot": task.data.get("boot_id"), "verdict": "passed"},
            Step.UNDO_VALIDATE: {"validated_boot": task.data.get("boot_id"), "verdict": "passed"},
            Step.RETURN: {"returned": True},
        }
        self.say(Kind.END, task.host, {"step": task.step.value, "data": steps.get(task.step, {})})


def duration(seconds: float) -> str:
    """``3:04:05``, hours first."""
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


def main(argv: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--fail", type=float, default=1.0, help="per cent of hosts that fail and are taken back")
    parser.add_argument("--lost", type=float, default=0.05, help="per cent of hosts that never come back")
    parser.add_argument("--parallel", type=int, default=256, help="hosts that are worked on at a time")
    parser.add_argument("--max-unavailable", default="25%")
    parser.add_argument("--threshold", default="5%", help="failed hosts at which it halts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    arguments = parser.parse_args(argv)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan = make_plan(arguments.hosts, arguments.parallel, arguments.max_unavailable, arguments.threshold)
    results = play(plan, arguments)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / arguments.hosts
    results["peak_bytes_a_host"] = round(peak)
    console.data(f"memory at its peak, plan, machine and simulation together: {peak / 1024:.1f} KiB a host")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def play(plan: Plan, arguments: argparse.Namespace) -> dict[str, Any]:
    """One rollout from its beginning to its end; prints and returns its figures."""
    simulation = Simulation(plan, arguments.seed, arguments.fail, arguments.lost)
    start = simulation.now
    simulation.run()
    machine = simulation.machine
    waves: list[dict[str, Any]] = [
        {"name": wave.wave.name, "hosts": len(wave.wave.hosts), "opened": wave.opened,
         "seconds": (machine.lapse if wave.closed is None else wave.closed) - wave.opened,
         "counts": Counter(machine.hosts[name].state for name in wave.wave.hosts)}
        for wave in machine.waves if wave.opened is not None
    ]  # fmt: skip
    results: dict[str, Any] = {
        "hosts": len(machine.hosts), "waves": waves, "phase": machine.phase, "halts": simulation.halts,
        "outcomes": machine.outcomes(), "virtual_seconds": simulation.now - start, "events": simulation.events,
        "most_unavailable": simulation.most_out, "max_unavailable": plan.max_unavailable,
        "cpu_seconds": round(simulation.cpu, 3),
    }  # fmt: skip
    console.data(f"{'wave':<10} {'hosts':>6} {'begins':>10} {'takes':>10}  ended as")
    for wave in waves:
        ended = ", ".join(f"{number} {state}" for state, number in sorted(wave["counts"].items()))
        times = f"{duration(wave['opened']):>10} {duration(wave['seconds']):>10}"
        console.data(f"{wave['name']:<10} {wave['hosts']:>6} {times}  {ended}")
    console.data(
        f"{machine.phase} after {duration(results['virtual_seconds'])} h of virtual time; halted "
        f"{len(simulation.halts)} times; at most {simulation.most_out} of {plan.max_unavailable} hosts out at a time"
    )
    console.data(
        f"the machine took {simulation.cpu:.2f} s of processor time for {simulation.events} events and the decisions "
        f"after each: {simulation.cpu / simulation.events * 1e6:.0f} µs an event, "
        f"{simulation.cpu / arguments.hosts * 1e3:.2f} ms a host"
    )
    return results


if __name__ == "__main__":
    main()
