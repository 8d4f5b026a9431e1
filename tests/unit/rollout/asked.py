"""Work on a host whose answers are looked up, so that a step's decisions can be tried without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from loopback_fleet import target

from gdsdeploy import lockfile
from gdsdeploy.drain.none import Nothing
from gdsdeploy.errors import GdsError
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.intended import Rollout
from gdsdeploy.model.rollout import Step, Task
from gdsdeploy.rollout.work import Patience, Work

KERNEL = "6.12.94+deb13-amd64"
OLD = "6.12.90+deb13-amd64"
BOOT, NEXT = "boot-1", "boot-2"
#: An answer, an error, or what makes one out of how often the question was asked before.
Reply = dict[str, Any] | GdsError | Callable[[int], "dict[str, Any] | GdsError"]


class Asked(Work):
    """``replies``: first two words of a question → reply."""

    replies: Mapping[str, Reply]
    questions: list[tuple[str, ...]]
    waited: list[float]

    def ask(self, *argv: str, stdin: bytes = b"", timeout: float = 1.0, tries: int = 1) -> dict[str, Any]:
        key = " ".join(argv[:2])
        number = sum(" ".join(item[:2]) == key for item in self.questions)
        self.questions.append(argv)
        reply = self.replies[key]
        found = reply(number) if callable(reply) else reply
        if isinstance(found, GdsError):
            raise found
        return found

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)

    def asked(self, *words: str) -> list[tuple[str, ...]]:
        return [item for item in self.questions if item[: len(words)] == words]


def work(
    step: Step,
    replies: Mapping[str, Reply],
    known: Mapping[str, Any] | None = None,
    *,
    profile: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Asked:
    """A step of the host gpu1, whose lock names KERNEL."""
    value = {
        "version": 1,
        "profiles": {"gds": {"os": "debian-13", "repositories": [], "mode": "compat", **(profile or {})}},
        "hosts": {"gpu1": "gds"},
    }
    fleet = Fleet.model_validate(value)
    lock = lockfile.build({"gds": target(fleet, "gds", KERNEL)})
    made = Asked(
        task=Task("gpu1", step, 1, dict(known or {})),
        fleet=fleet,
        lock=lock,
        fleet_path=Path("/tmp/fleet.yml"),
        settings=Rollout(**settings),
        rollout="20261121T1054-7f3a",
        drainer=Nothing(),
        logs=Path("/nowhere"),
        told=lambda _: None,
        everyone=fleet,
        patience=Patience(packages=10, poll=2, knock=1, settle=6),
    )
    object.__setattr__(made, "replies", replies)
    object.__setattr__(made, "questions", [])
    object.__setattr__(made, "waited", [])
    return made


def status(boot: str = BOOT, kernel: str = OLD, **changed: Any) -> dict[str, Any]:
    """As ``rollout status`` answers."""
    found: dict[str, Any] = {
        "boot_id": boot,
        "kernel": kernel,
        "lock_digest": "",
        "once": {"state": "none", "kernel": ""},
        "packages": {"manager": "dpkg", "broken": [], "interrupted": False, "locks": []},
        "space": {},
    }
    return {**found, **changed}


def needed(*reasons: str, boot: str = BOOT, running: str = OLD) -> dict[str, Any]:
    """As ``boot needed`` answers."""
    return {"needed": bool(reasons), "reasons": list(reasons), "boot_id": boot, "running": running, "unloaded": []}
