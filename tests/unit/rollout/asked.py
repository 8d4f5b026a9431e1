"""Work on a host whose answers are looked up, so that a step's decisions can be tried without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gdsdeploy.errors import GdsError
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.rollout import Step, Task
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout.drain import Drainer
from gdsdeploy.rollout.steps.answers import Question, S
from gdsdeploy.rollout.steps.work import Patience, Work
from tests.loopback.loopback_fleet import target

KERNEL = "6.12.94+deb13-amd64"
OLD = "6.12.90+deb13-amd64"
BOOT, NEXT = "boot-1", "boot-2"
MODULE = "updates/gdsdeploy/nvidia.ko"
#: An answer, an error, or what makes one out of how often the question was asked before.
Reply = dict[str, Any] | GdsError | Callable[[int], "dict[str, Any] | GdsError"]


class ScriptedWork(Work):
    """``replies``: first two words of a question → reply."""

    replies: Mapping[str, Reply]
    questions: list[tuple[str, ...]]
    inputs: list[bytes]
    waited: list[float]

    def ask(self, question: Question[S], *options: str, stdin: bytes = b"", timeout: float = 1.0, tries: int = 1) -> S:
        argv, key = (*question.words, *options), " ".join(question.words)
        number = sum(" ".join(words[:2]) == key for words in self.questions)
        self.questions.append(argv)
        self.inputs.append(stdin)
        reply = self.replies[key]
        answer = reply(number) if callable(reply) else reply
        if isinstance(answer, GdsError):
            raise answer
        return question.read(self.name, answer)

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)

    def calls(self, *words: str) -> list[tuple[str, ...]]:
        return [call for call in self.questions if call[: len(words)] == words]


def work(
    step: Step,
    replies: Mapping[str, Reply],
    facts: Mapping[str, Any] | None = None,
    *,
    profile: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ScriptedWork:
    """A step of the host gpu1, whose lock names KERNEL."""
    value = {
        "version": 1,
        "profiles": {"gds": {"os": "debian-13", "repositories": [], "mode": "compat", **(profile or {})}},
        "hosts": {"gpu1": "gds"},
    }
    fleet = Fleet.model_validate(value)
    lock = lockfile.build({"gds": target(fleet, "gds", KERNEL)})
    host_work = ScriptedWork(
        task=Task("gpu1", step, 1, dict(facts or {})),
        fleet=fleet,
        lock=lock,
        fleet_path=Path("/tmp/fleet.yml"),
        settings=Rollout(**settings),
        rollout="20261121T1054-7f3a",
        drainer=Drainer(),
        logs=Path("/nowhere"),
        say=lambda _: None,
        everyone=fleet,
        patience=Patience(packages=10, poll=2, knock=1, settle=6),
    )
    object.__setattr__(host_work, "replies", replies)
    object.__setattr__(host_work, "questions", [])
    object.__setattr__(host_work, "inputs", [])
    object.__setattr__(host_work, "waited", [])
    return host_work


def status(boot: str = BOOT, kernel: str = OLD, **changed: Any) -> dict[str, Any]:
    """As ``rollout status`` answers."""
    answer: dict[str, Any] = {
        "version": 1,
        "boot_id": boot,
        "kernel": kernel,
        "devices": "10de2330",
        "lock_digest": "",
        "once": {"state": "none", "kernel": ""},
        "packages": {"manager": "dpkg", "broken": [], "interrupted": False, "locks": []},
        "space": {},
        "apply": {"run": "", "who": "", "works": False},
    }
    return {**answer, **changed}


def snapshot(**changed: Any) -> dict[str, Any]:
    """As ``rollout snapshot`` answers: a host with a module, a package and a file."""
    answer: dict[str, Any] = {
        "version": 1,
        "when": "2026-11-22T12:00:00Z",
        "host": "gpu1",
        "boot_id": BOOT,
        "kernel": OLD,
        "lock_digest": "sha256:" + "0" * 64,
        "boot": {"default": OLD, "default_entry": "0", "next": OLD, "next_entry": "0", "problem": ""},
        "manager": "dpkg",
        "packages": {"nvidia-driver": {"version": "550.1", "held": True}, "new-one": {"version": "", "held": False}},
        "provision": {"installed": ["nvidia-driver"], "held": ["nvidia-driver"], "removed": []},
        "kernels": {
            OLD: {"files": {"updates/gdsdeploy/nvidia.ko": "1" * 64}, "chosen": {"nvidia": "updates/nvidia.ko"}}
        },
        "files": {
            "/etc/cufile.json": {"sha256": "2" * 64, "mode": "0644", "uid": 0, "gid": 0},
            "/etc/modprobe.d/gdsdeploy.conf": None,
        },
    }
    return {**answer, **changed}


def compared(*differences: dict[str, str]) -> dict[str, Any]:
    """As ``rollout compare`` answers."""
    return {"differences": list(differences)}


def differs(what: str, name: str, was: str = "1", now: str = "2") -> dict[str, str]:
    """One difference."""
    return {"what": what, "name": name, "was": was, "is": now, "says": f"{what} {name}: was {was}, is {now}"}


def needed(*reasons: str, boot: str = BOOT, running: str = OLD) -> dict[str, Any]:
    """As ``boot needed`` answers."""
    return {"needed": bool(reasons), "reasons": list(reasons), "boot_id": boot, "running": running}
