"""Before a step disturbs a host, it looks: whether the host is in work, and whether it was done already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from gdsdeploy.errors import DrainFailed, GdsError, HostKeyMismatch, HostUnfit, HostUnreachable, RebootFailed
from gdsdeploy.model.rollout import Standing, Step
from gdsdeploy.report.model import HostReport
from gdsdeploy.rollout import session
from gdsdeploy.rollout.drain import SchedulerAway
from gdsdeploy.rollout.steps import answers, rollback, upgrade, work as steps_work
from gdsdeploy.rollout.steps.answers import Question, S
from tests.unit.rollout.adversary import imagined_playbooks
from tests.unit.rollout.asked import BOOT, KERNEL, NEXT, OLD, Reply, ScriptedWork, needed, status, work

SILENT = HostUnreachable("gpu1: no route")
AWAY = SchedulerAway("slurmctld doesn't answer")
GONE = DrainFailed("Slurm knows no node gpu1")
POWER_COMMAND = ["touch", "{host}"]


@dataclass
class Scheduler:
    """Says the same about every host, or raises it."""

    standing: Standing | Exception

    def look(self, host: str, reason: str) -> Standing:
        assert (host, reason) == ("gpu1", "gdsdeploy rollout 20261121T1054-7f3a:")
        if isinstance(self.standing, Exception):
            raise self.standing
        return self.standing


def host_in(
    step: Step, standing: Standing | Exception, replies: Mapping[str, Reply], facts: Mapping[str, Any] = {},
    attempt: int = 1, **settings: Any,
) -> ScriptedWork:  # fmt: skip
    host = work(step, {"apply --release": {}, **replies}, facts, **settings)
    object.__setattr__(host, "drainer", Scheduler(standing))
    object.__setattr__(host, "task", replace(host.task, attempt=attempt))
    return host


#: Steps that disturb work, with the facts that they have and what the host answers.
REBOOTS: dict[str, Reply] = {
    "rollout status": status(kernel=KERNEL), "boot needed": needed("nvidia is another", running=KERNEL),
    "rollout reboot": {"did": "ordered"},
}  # fmt: skip
UP: dict[str, Reply] = {"rollout status": status(kernel=KERNEL), "guard judge": {"admitted": True, "reasons": []}}
DISTURBING = {
    Step.APPLY: UP, Step.MODULES: UP, Step.REBOOT: REBOOTS, Step.UNDO_REBOOT: REBOOTS, Step.UNDO: UP,
    Step.UNDO_VALIDATE: UP, Step.POWER: {"rollout status": SILENT},
}  # fmt: skip


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done to the host beside questions: playbooks by their name, and power."""
    effects: list[str] = []
    patches = imagined_playbooks(lambda _work, step: effects.append(step) or [])
    patches[upgrade] |= {
        "run": lambda command, **_: effects.append(command[0]),
        "validate": lambda _: effects.append("validate") or {},
    }
    patches[rollback]["towards_before"] = lambda work: work
    for module, names in patches.items():
        for name, value in names.items():
            monkeypatch.setattr(module, name, value)
    return effects


def effects_of(host: ScriptedWork, done: list[str]) -> list[str]:
    return [*done, *(f"{words[0]} {words[1]}" for words in host.calls("rollout", "reboot"))]


@pytest.mark.parametrize("step", DISTURBING)
@pytest.mark.parametrize(
    ("standing", "facts"),
    [
        (Standing.WORKS, {"standing": "works"}),
        (AWAY, {"standing": "unknown", "reason": "slurmctld doesn't answer"}),
        (GONE, None),
        (Standing.OURS, {}),
        (Standing.THEIRS, {}),
    ],
)
def test_work_is_never_disturbed(
    step: Step, standing: Standing | Exception, facts: dict[str, str] | None, done: list[str]
) -> None:
    snapshot = {"boot_id": BOOT, "snapshot": {}}
    host = host_in(step, standing, DISTURBING[step], snapshot, power_cycle=POWER_COMMAND, reload=False)
    host_has_kernel = {"rollout once": {"once": False, "default": ""}}
    object.__setattr__(host, "replies", {**host.replies, **host_has_kernel})
    if facts is None:
        with pytest.raises(DrainFailed, match="knows no node"):
            session._perform(host)
    else:
        assert session._perform(host).items() >= facts.items()
    assert bool(effects_of(host, done)) is (facts == {})


def test_a_step_that_may_have_changed_something_says_so_when_it_is_put_off(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks in its playbook, and a person returns the host before it is reached again."""
    host = host_in(Step.APPLY, Standing.OURS, UP)

    def broken(work: Any, step: str, _: object) -> Any:
        done.append(step)
        host.drainer.standing = Standing.WORKS  # type: ignore[attr-defined]
        raise SILENT

    monkeypatch.setattr(upgrade, "_play_once", broken)
    assert session._perform(host) == {"standing": "works", "begun": True}
    assert done == ["apply"]


# -- effects that may have happened


def silent_until(number: int, answer: dict[str, Any]) -> Reply:
    return lambda asked: SILENT if asked < number else answer


@pytest.mark.parametrize(
    ("attempt", "before", "orders"),
    [
        # The controller was killed after the order: the host boots for some minutes.
        (2, {"rollout status": silent_until(30, status(NEXT, KERNEL))}, 0),
        # The connection broke with the order.
        (1, {"rollout status": lambda n: status(BOOT) if not n else SILENT if n < 30 else status(NEXT, KERNEL),
             "rollout reboot": SILENT}, 1),
        # The controller was killed before the order.
        (2, {"rollout status": status(BOOT)}, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [Step.REBOOT, Step.UNDO_REBOOT])
def test_a_reboot_that_may_have_been_ordered_is_looked_for(
    step: Step, attempt: int, before: dict[str, Reply], orders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollback, "towards_before", lambda work: work)
    host = host_in(step, Standing.OURS, {**REBOOTS, **before}, {"boot_id": BOOT}, attempt, reload=False)
    assert session._perform(host) == {"how": "reboot", "boot_id": BOOT}
    assert len(host.calls("rollout", "reboot")) == orders


@pytest.mark.parametrize("step", [Step.SNAPSHOT, Step.UNDO, Step.UNDO_VALIDATE, Step.RETURN, Step.SOAK])
@pytest.mark.parametrize("attempt", [1, 2])
def test_any_step_waits_for_a_host_that_boots(step: Step, attempt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_in(step, Standing.OURS, {"rollout status": silent_until(100, status()), "rollout space": SILENT})
    object.__setattr__(host, "task", replace(host.task, attempt=attempt))

    def body(work: Any) -> dict[str, Any]:
        return {"boot_id": work.ask(answers.STATUS).boot_id}

    monkeypatch.setattr(session, "STEPS", {step: body})
    assert session._perform(host)["boot_id"] == BOOT
    assert 100 <= sum(host.waited) < host.settings.reboot_timeout
    host = host_in(step, Standing.OURS, {"rollout status": SILENT})
    with pytest.raises(HostUnreachable, match=r"no answer for 1200 s: gpu1: no route"):
        session._perform(host)


TROUBLE = {
    "the program is ended": HostUnfit("gpu1: gdsdeploy's program was killed by signal 15"),
    "sudo has no rules yet": HostUnfit("gpu1: sudo: a password is required"),
    "an initramfs answers": HostKeyMismatch("gpu1: its host key changed"),
}


@pytest.mark.parametrize("error", TROUBLE.values(), ids=TROUBLE)
@pytest.mark.parametrize("question", ["rollout status", "boot needed"])
def test_what_a_host_says_while_it_boots_is_not_final(error: GdsError, question: str) -> None:
    replies = {"rollout status": status(NEXT, KERNEL), "boot needed": needed(boot=NEXT, running=KERNEL)}
    answer = replies[question]
    hiccup: dict[str, Reply] = {**replies, question: lambda n: error if n < 2 else answer}
    facts = {"how": "reboot", "boot_id": BOOT}
    assert upgrade.boot(host_in(Step.BOOT, Standing.OURS, hiccup, facts))["boot_id"] == NEXT
    with pytest.raises(type(error), match=error.message):
        upgrade.boot(host_in(Step.BOOT, Standing.OURS, {**replies, question: error}, facts))


def test_a_host_that_is_slow_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status takes longer than it may take to reach it: it gets more time with each question."""
    clock, limits = [0.0], []

    class Slow(ScriptedWork):
        def ask(self, question: Question[S], *options: str, timeout: float = 300.0, **more: Any) -> S:
            if question.words == ("rollout", "status"):
                limits.append(timeout)
                clock[0] += min(timeout, 130.0)
                if timeout < 130.0:
                    raise HostUnreachable(f"no answer within {timeout:g} s")
            return super().ask(question, *options, timeout=timeout, **more)

    monkeypatch.setattr(steps_work, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    replies: dict[str, Reply] = {
        "rollout status": status(NEXT, KERNEL), "boot needed": needed(boot=NEXT, running=KERNEL)
    }  # fmt: skip
    host = host_in(Step.BOOT, Standing.OURS, replies, {"how": "reboot", "boot_id": BOOT})
    object.__setattr__(host, "patience", replace(host.patience, knock=20.0))
    host.__class__ = Slow
    assert upgrade.boot(host)["boot_id"] == NEXT
    assert limits == [20, 40, 80, 160]


@pytest.mark.parametrize(
    ("attempt", "reply", "cut"),
    [
        (1, SILENT, True),
        (1, status(NEXT, KERNEL), False),
        (1, HostUnfit("gpu1: sudo: a password is required"), False),
        # An earlier attempt may have done it, and a boot takes its time.
        (2, silent_until(30, status(NEXT, KERNEL)), False),
        (2, SILENT, True),
    ],
)
def test_no_power_is_cut_on_a_host_that_answers(attempt: int, reply: Reply, cut: bool, done: list[str]) -> None:
    host = host_in(Step.POWER, Standing.OURS, {"rollout status": reply}, attempt=attempt, power_cycle=POWER_COMMAND)
    assert session._perform(host) == {}
    assert done == (["touch"] if cut else [])
    assert sum(host.waited) >= (host.settings.reboot_timeout if attempt > 1 and cut else 0)


def test_a_boot_after_an_interrupted_reboot_gives_the_host_time_to_go_down() -> None:
    """Whether it was ordered isn't known: it still answers in its boot, and then it is in another."""
    replies: dict[str, Reply] = {
        "rollout status": lambda n: status(BOOT, KERNEL) if n < 2 else status(NEXT, KERNEL),
        "boot needed": needed(boot=NEXT, running=KERNEL),
    }
    assert upgrade.boot(host_in(Step.BOOT, Standing.OURS, replies, {"boot_id": BOOT}))["boot_id"] == NEXT
    stays: dict[str, Reply] = {**replies, "rollout status": status(BOOT, KERNEL), "boot needed": needed(running=KERNEL)}
    assert upgrade.boot(host_in(Step.BOOT, Standing.OURS, stays, {"boot_id": BOOT}))["boot_id"] == BOOT
    with pytest.raises(RebootFailed, match="it runs kernel"):
        upgrade.boot(host_in(Step.BOOT, Standing.OURS, {"rollout status": status(BOOT, OLD)}, {"boot_id": BOOT}))


# -- load


@pytest.mark.parametrize(
    ("step", "facts", "standing", "load"),
    [
        (Step.VALIDATE, {}, Standing.OURS, True),
        (Step.VALIDATE, {}, Standing.THEIRS, False),
        (Step.VALIDATE, {}, Standing.WORKS, False),
        (Step.UNDO_VALIDATE, {"changed": []}, Standing.OURS, True),
        # Its drain failed, because its jobs didn't end: nothing was changed on it.
        (Step.UNDO_VALIDATE, {}, Standing.OURS, False),
    ],
)
def test_only_a_host_that_was_changed_and_has_no_work_is_read_from_under_load(
    step: Step, facts: dict[str, Any], standing: Standing, load: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[bool] = []

    def check(_: Any, *, but: Any = (), load: bool = False) -> HostReport:
        loads.append(load)
        return HostReport("gpu1", "gds", boot_id=BOOT)

    monkeypatch.setattr(upgrade, "check_host", check)
    replies: dict[str, Reply] = {
        "boot show": {"default": KERNEL}, "rollout once": {"once": False, "default": ""},
        "gate run": {"state": "open", "boot_id": BOOT, "reason": ""},
    }  # fmt: skip
    upgrade.validate(host_in(step, standing, replies, facts))
    assert loads == [load]
