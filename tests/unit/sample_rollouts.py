"""Rollouts as journals have them: a small one in which much happens, and one of any size."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from gdsdeploy.model.events import Event, Kind
from gdsdeploy.model.rollout import BACK, FORWARD, Outcome, Plan, Step, Wave
from gdsdeploy.model.rollout_settings import Rollout

#: 2026-11-21 10:54 UTC
BEGIN = 1795258440.0
#: Seconds of each step.
SECONDS = {
    Step.PREFLIGHT: 4, Step.DRAIN: 95, Step.SNAPSHOT: 12, Step.APPLY: 140, Step.MODULES: 180, Step.AUDIT: 6,
    Step.REBOOT: 3, Step.BOOT: 110, Step.VALIDATE: 40, Step.RETURN: 2, Step.SOAK: 30, Step.UNDO: 120,
    Step.UNDO_REBOOT: 3, Step.UNDO_BOOT: 100, Step.UNDO_VALIDATE: 35, Step.POWER: 5,
}  # fmt: skip
ERROR = {
    "kind": "ModuleBuildFailed",
    "message": "gpu6: nvidia-fs does not build: <nvfs-dma.c:412> & 'struct page' has no member \x1b[31mpgmap",
    "hint": "Run `gdsdeploy kmod preflight fleet.yml`",
}


class Story:
    """Events one after the other; ``wait`` lets time pass."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.time = plan, BEGIN
        self.events: list[Event] = []
        self.say(Kind.PLANNED, plan=plan.as_json())

    def say(self, kind: Kind, host: str = "", **data: Any) -> None:
        self.events.append(Event(len(self.events) + 1, self.time, kind, host, data))

    def wait(self, seconds: float) -> None:
        self.time += seconds

    def step(self, host: str, step: Step, *, error: Mapping[str, Any] | None = None, **data: Any) -> None:
        self.say(Kind.BEGIN, host, step=str(step), attempt=1)
        self.wait(SECONDS[step])
        if error:
            self.say(Kind.FAIL, host, step=str(step), error=dict(error))
        else:
            self.say(Kind.END, host, step=str(step), data=data or STEP_DATA.get(step, {}))

    def upgrade(self, host: str, *, until: Step | None = None, error: Mapping[str, Any] | None = None) -> None:
        for step in FORWARD:
            if step is until:
                self.step(host, step, error=error)
                return
            self.step(host, step)
        self.say(Kind.OUTCOME, host, outcome=str(Outcome.DONE), reason="every check passed in its boot")

    def undo(self, host: str) -> None:
        for step in BACK:
            self.step(host, step)
        self.say(Kind.OUTCOME, host, outcome=str(Outcome.ROLLED_BACK), reason=f"{host}: nvidia-fs does not build")


STEP_DATA: dict[Step, dict[str, Any]] = {
    Step.PREFLIGHT: {
        "current": "sha256:" + "a" * 64, "boot_id": "1", "kernel": "6.12.94+deb13-amd64", "satisfied": False,
        "disruption": "reboot",
    },
    Step.BOOT: {"boot_id": "2", "kernel": "6.12.107+deb13-amd64"},
    Step.VALIDATE: {"validated_boot": "2", "verdict": "pass", "lock": "sha256:" + "b" * 64},
    Step.UNDO_BOOT: {"boot_id": "3", "kernel": "6.12.94+deb13-amd64"},
    Step.UNDO_VALIDATE: {"validated_boot": "3", "verdict": "pass", "lock": "sha256:" + "a" * 64},
    Step.RETURN: {"returned": True},
}  # fmt: skip


#: Settings of a rollout that leaves failed hosts as they are.
KEEPS = Rollout(on_failure="keep").model_dump(mode="json")


def plan(waves: tuple[Wave, ...], **changed: Any) -> Plan:
    hosts = [name for wave in waves for name in wave.hosts]
    values: dict[str, Any] = {
        "id": "20261121T1054-7f3a",
        "fleet": "/srv/fleets/fleet.yml",
        "lock_digest": "sha256:" + "b" * 64,
        "fleet_digest": "sha256:" + "f" * 64,
        "waves": waves,
        "settings": Rollout().model_dump(mode="json"),
        "labels": {name: {"rack": f"r{number % 4}"} for number, name in enumerate(hosts)},
        "previous": dict.fromkeys(hosts, "sha256:" + "a" * 64),
        "max_unavailable": max(1, len(hosts) // 4),
        "expected": dict.fromkeys(hosts, 600.0),
    }
    return Plan(**{**values, **changed})


def small() -> Story:
    """Eight hosts: the canary is done; of four, one fails to build and one does not come back; a pause; halted."""
    waves = (
        Wave("canary", ("gpu1",), soak=600, canary=True),
        Wave("wave-2", ("gpu2", "gpu3"), halt_at=2),
        Wave("wave-3", ("gpu4", "gpu5", "gpu6", "gpu7"), halt_at=2),
        Wave("wave-4", ("gpu8",), halt_at=2),
    )
    story = Story(plan(waves, down=("old1",), skipped={"gpu9": "it has the label gdsdeploy-skip"}, max_unavailable=3))
    story.say(Kind.OPENED, wave="canary")
    story.upgrade("gpu1")
    story.say(Kind.SOAKING, wave="canary", until=story.time + 600)
    story.wait(600)
    story.step("gpu1", Step.SOAK)
    story.say(Kind.CLOSED, wave="canary")
    story.say(Kind.OPENED, wave="wave-2")
    story.upgrade("gpu2")
    story.say(Kind.PAUSED, reason="Ctrl-C")
    story.wait(400)
    story.say(Kind.RESUMED, reason="")
    # Somebody has set the clock; nothing happens before what happened before.
    story.wait(-3600)
    story.upgrade("gpu3")
    story.say(Kind.CLOSED, wave="wave-2")
    story.say(Kind.OPENED, wave="wave-3")
    story.upgrade("gpu4")
    story.upgrade("gpu6", until=Step.MODULES, error=ERROR)
    story.undo("gpu6")
    lost = {"kind": "HostUnreachable", "message": "gpu5: no answer within 1200 s of its reboot", "hint": ""}
    story.upgrade("gpu5", until=Step.BOOT, error=lost)
    story.say(Kind.OUTCOME, "gpu5", outcome=str(Outcome.LOST), reason=lost["message"])
    story.say(Kind.HALTED, reason="2 hosts failed, and the rollout halts at 2: gpu6, gpu5")
    story.say(Kind.BEGIN, "gpu7", step="preflight", attempt=2)
    story.wait(30)
    return story


def large(hosts: int = 2000, seed: int = 7) -> Story:
    """Waves twice as large as the one before, all hosts of one at once; one host of a hundred fails."""
    chance = random.Random(seed)
    names = [f"node{number:04}" for number in range(hosts)]
    waves, at, size = [], 0, 1
    while at < hosts:
        waves.append(Wave(f"wave-{len(waves)}" if waves else "canary", tuple(names[at : at + size]), canary=not waves))
        at, size = at + size, min(size * 2, max(1, hosts // 4))
    story = Story(plan(tuple(waves), settings=KEEPS))
    for wave in waves:
        story.say(Kind.OPENED, wave=wave.name)
        moments: list[tuple[float, int, Kind, str, dict[str, Any]]] = []
        for name in wave.hosts:
            moments += [(at, number, *rest) for number, (at, *rest) in enumerate(_moments(name, chance))]
        begin = story.time
        for after, _, kind, name, data in sorted(moments, key=lambda moment: (moment[0], moment[3], moment[1])):
            story.time = begin + after
            story.say(kind, name, **data)
        story.say(Kind.CLOSED, wave=wave.name)
    story.say(Kind.FINISHED, outcomes={})
    return story


def _moments(name: str, chance: random.Random) -> list[tuple[float, Kind, str, dict[str, Any]]]:
    at, moments = chance.uniform(0, 900), []
    fails = chance.random() < 0.01
    for step in FORWARD:
        moments.append((at, Kind.BEGIN, name, {"step": str(step), "attempt": 1}))
        at += SECONDS[step] * chance.uniform(0.7, 1.6)
        if fails and step is Step.AUDIT:
            error = {**ERROR, "message": f"{name}: no audit"}
            moments.append((at, Kind.FAIL, name, {"step": str(step), "error": error}))
            moments.append((at, Kind.OUTCOME, name, {"outcome": "kept", "reason": "no audit"}))
            return moments
        moments.append((at, Kind.END, name, {"step": str(step), "data": STEP_DATA.get(step, {})}))
    moments.append((at, Kind.OUTCOME, name, {"outcome": "done", "reason": ""}))
    return moments
