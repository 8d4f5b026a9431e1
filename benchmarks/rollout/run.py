"""What the driver of a rollout costs, paired with the bare steps in one run.

Every step is a real program that takes 0.5 to 2 s, the same one for the same step of the same host on both sides.
Bare: a pool of threads does the steps of each host one after another, wave by wave, and nothing else.  Driver: the same
through ``gdsdeploy.rollout.driver``, with its journal on this machine's disk.  Both alternate; prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gdsdeploy import console, run
from gdsdeploy.model.events import Kind
from gdsdeploy.model.rollout import FORWARD, Plan, Step, Task, Wave
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout import journal
from gdsdeploy.rollout.driver import drive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16], metavar="N")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 32], metavar="N", help="for each concurrency")
    parser.add_argument("--waves", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--shortest", type=float, default=0.5, metavar="SECONDS", help="of a step (default: %(default)s)"
    )
    parser.add_argument(
        "--longest", type=float, default=2.0, metavar="SECONDS", help="of a step (default: %(default)s)"
    )
    options = parser.parse_args()
    if len(options.hosts) != len(options.concurrency):
        parser.error("give one number of hosts for each concurrency")
    between = options.shortest, options.longest
    results = [
        measure(hosts, lanes, options.waves, options.rounds, between)
        for lanes, hosts in zip(options.concurrency, options.hosts, strict=True)
    ]
    console.data(json.dumps(results, indent=2))


class Programs:
    """Steps that are programs; also Effects."""

    def __init__(self, between: tuple[float, float]) -> None:
        self._between = between

    def perform(self, task: Task, _tell: Callable[[str], None]) -> Mapping[str, Any]:
        seconds = random.Random(f"{task.host} {task.step}").uniform(*self._between)  # noqa: S311 - the same for the same step
        run.run(["sleep", f"{seconds:.3f}"], doing="take time")
        boot = "2" if task.step in {Step.BOOT, Step.VALIDATE} else "1"
        return {"boot_id": boot, "validated_boot": boot, "drained": True, "returned": True, "disruption": "reboot"}

    def stop(self) -> None:
        """Not used."""


def measure(hosts: int, lanes: int, waves: int, rounds: int, between: tuple[float, float]) -> dict[str, object]:
    plan = make_plan(hosts, lanes, waves)
    bare, driven, processor, events = [], [], [], 0
    for _ in range(rounds):
        bare.append(alone(plan, lanes, Programs(between)))
        seconds, spent, events = with_driver(plan, Programs(between))
        driven.append(seconds)
        processor.append(spent)
    middle = statistics.median(bare), statistics.median(driven)
    extra = middle[1] - middle[0]
    return {
        "concurrency": lanes,
        "hosts": hosts,
        "waves": waves,
        "steps": hosts * len(FORWARD),
        "events": events,
        "bare_seconds": [round(seconds, 2) for seconds in bare],
        "driver_seconds": [round(seconds, 2) for seconds in driven],
        "overhead_percent": round(100 * extra / middle[0], 2),
        "overhead_ms_per_host": round(1000 * extra / hosts, 1),
        "overhead_ms_per_wave": round(1000 * extra / waves, 1),
        "processor_ms_per_host": round(1000 * statistics.median(processor) / hosts, 1),
    }


def make_plan(hosts: int, lanes: int, waves: int) -> Plan:
    names = [f"gpu{number:03}" for number in range(hosts)]
    size = -(-hosts // waves)
    parts = tuple(Wave(str(at), tuple(names[at * size : (at + 1) * size])) for at in range(waves))
    settings = Rollout(parallel=lanes).model_dump(mode="json")
    return Plan("20261121T1054-7f3a", "/fleet.yml", "sha256:1", "sha256:2", parts, settings, max_unavailable=lanes)


def alone(plan: Plan, lanes: int, programs: Programs) -> float:
    """Seconds of the steps, with nothing that decides or writes."""

    def host(name: str) -> None:
        for step in FORWARD:
            programs.perform(Task(name, step), lambda _: None)

    begin = time.perf_counter()
    with ThreadPoolExecutor(lanes) as pool:
        for wave in plan.waves:
            for _ in pool.map(host, wave.hosts):
                pass
    return time.perf_counter() - begin


def with_driver(plan: Plan, programs: Programs) -> tuple[float, float, int]:
    """Seconds, seconds of this process's processor time, and lines in the journal."""
    with tempfile.TemporaryDirectory() as folder:
        begin, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        with journal.writing(Path(folder) / "fleet.sqlite", doing="benchmark") as writer:
            writer.begin(plan)
            machine = drive(writer, plan.id, programs)
        seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
        assert machine.finished, machine.phase
        assert machine.outcomes() == {"done": len(machine.hosts)}, machine.outcomes()
        with journal.reading(Path(folder) / "fleet.sqlite") as reader:
            kinds = [event.kind for event in reader.events(plan.id)]
    assert kinds.count(Kind.END) == len(machine.hosts) * len(FORWARD)
    return seconds, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime, len(kinds)


if __name__ == "__main__":
    main()
