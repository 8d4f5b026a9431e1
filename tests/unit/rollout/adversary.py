"""Rollouts among people, schedulers and networks that misbehave, and what never may happen then.

    python -m tests.unit.rollout.adversary [--runs N] [--seed N]

The machine, the steps that reboot, judge, return and take back, their waiting, and the client of Slurm are the real
ones.  What they ask is answered by a world with a clock of its own, in which things happen whenever somebody waits or
asks: people return, drain, power and rename hosts; jobs begin and end; the scheduler is away; answers are lost; boots
are slow, and say nonsense meanwhile; the controller is killed at any place.  Playbooks are imagined: they change what a
host has installed.  After some days the people repair what is left, and the rollout has to come to its end.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge.ansible import HostResult
from gdsdeploy.errors import (
    ChecksFailed,
    ConvergeFailed,
    DrainFailed,
    GdsError,
    HostKeyMismatch,
    HostUnfit,
    HostUnreachable,
    ProgramFailed,
)
from gdsdeploy.lock import lockfile
from gdsdeploy.model.events import Kind, StepError
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.model.rollout import Outcome, Step, Task, Wave
from gdsdeploy.report.model import HostReport
from gdsdeploy.rollout import drain, progress, session
from gdsdeploy.rollout.drain import reason_of
from gdsdeploy.rollout.steps import answers, rollback, upgrade, work as steps_work
from gdsdeploy.rollout.steps.answers import Question, S
from gdsdeploy.rollout.steps.work import Patience, Work
from tests.loopback.loopback_fleet import target
from tests.unit.rollout.asked import KERNEL, OLD, ScriptedWork, needed, status, work
from tests.unit.rollout.rehearsed import Play, plan

NEW = KERNEL
BOOT_TIME = 60
BEGIN = 1_795_000_000.0
OPS = "fan 3, ops"
#: What a host answers while it boots.
NONSENSE = (
    HostUnreachable("no route"), HostUnreachable("no route"), HostUnreachable("no route"),
    HostUnfit("the program was killed by signal 15"), HostKeyMismatch("its host key changed"),
)  # fmt: skip


class Killed(BaseException):
    """The controller is gone, in the middle of whatever it did."""


class Broken(AssertionError):
    """What never may happen has happened."""


@dataclass
class Machine:
    """A host as it is."""

    name: str
    boot: int = 1
    running: str = OLD
    default: str = OLD
    once: str = ""
    installed: str = OLD
    #: its checks fail with the new lock
    bad: bool = False
    #: until when it boots, and until when nobody reaches it
    up_at: float = 0.0
    reached_at: float = 0.0
    #: it hangs in its boot until somebody switches it off and on
    hangs: bool = False
    #: as Slurm has it; no reason: it is not drained
    node: str = ""
    reason: str = ""
    jobs: int = 0
    #: since when it is silent, or was last
    silent_from: float = 0.0

    @property
    def works(self) -> bool:
        return not self.reason or self.jobs > 0


class Slurm(drain.Slurm):
    """The real client, whose scontrol and squeue are the world's."""

    pause = 10.0

    def __init__(self, world: World) -> None:
        super().__init__(["scontrol"], "{host}", None, patience=60.0)  # type: ignore[arg-type]
        self._world = world

    def _ask(self, argv: Sequence[str], doing: str, *, beside: str = "", ok: Sequence[int] = (0,)) -> Any:
        world = self._world
        if not beside:  # The two questions of one look are one.
            world.happens()
        if world.now < world.scheduler_at:
            world.now += 5
            raise DrainFailed(f"cannot {doing}: Unable to contact slurm controller")
        nodes = {host.node: host for host in world.hosts.values()} | {other.node: other for other in world.others}
        if beside:
            (name,) = (word.removeprefix("--nodelist=") for word in argv if word.startswith("--nodelist="))
            return SimpleNamespace(stdout="7|ann|RUNNING|1:00|train\n" * nodes[name].jobs)
        if argv[-1] == "nodes":
            return SimpleNamespace(stdout="\n".join(map(shown, nodes.values())))
        name = argv[1].removeprefix("NodeName=") if argv[0] == "update" else argv[-1]
        if name not in nodes:
            raise DrainFailed(f"cannot {doing}: Node {name} not found")
        if argv[0] == "update":
            words = dict(word.split("=", 1) for word in argv[2:])
            if words["State"] == "DRAIN":
                nodes[name].reason = words["Reason"]
            else:
                nodes[name].reason = ""
        return SimpleNamespace(stdout=shown(nodes[name]))


def shown(host: Machine) -> str:
    state = ("MIXED" if host.jobs else "IDLE") + ("+DRAIN" if host.reason else "")
    reason = f" Reason={host.reason} [root@2026-11-21T00:00:00]" if host.reason else ""
    return f"NodeName={host.node} State={state}{reason}"


class Asked(ScriptedWork):
    """Work on a host of the world."""

    world: World

    def ask(
        self, question: Question[S], *options: str, stdin: bytes = b"", timeout: float = 300.0, tries: int = 3
    ) -> S:
        for left in range(tries - 1, -1, -1):
            try:
                return question.read(self.name, self.world.answer(self.name, question, options))
            except HostUnreachable:
                self.world.now += 1
                if not left:
                    raise
                self.wait(self.patience.poll)
        raise AssertionError

    def wait(self, seconds: float) -> None:
        self.world.passes(seconds)


class World:
    """Everything, by one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        chance = self.chance
        names = [f"g{number}" for number in range(chance.randint(1, 5))]
        cut = chance.randint(1, len(names))
        waves = [Wave("canary", tuple(names[:cut]), chance.choice([0, 60]), 99, canary=True)]
        if cut < len(names):
            waves.append(Wave("wave-2", tuple(names[cut:]), 0, chance.choice([1, 99])))
        self.others = [Machine(name, node=name) for name in ("x1", "x2")]
        self.hosts = {name: Machine(name, node=name, bad=chance.random() < 0.15) for name in names}
        self.now = BEGIN
        self.scheduler_at = 0.0
        self.trouble = chance.choice([0.01, 0.03, 0.1])
        self.quiet = False
        self.killable = False
        self.done: Counter[str] = Counter()
        down = tuple(other.name for other in self.others if chance.random() < 0.3)
        for other in self.others:
            other.reason = OPS if other.name in down else ""
        settings: dict[str, Any] = {
            "drain": {"by": "slurm", "timeout": 300}, "reboot_timeout": BOOT_TIME, "reload": False,
            "parallel": chance.choice([1, 2, 5]), "on_failure": chance.choice(["rollback", "rollback", "keep"]),
        }  # fmt: skip
        if chance.random() < 0.5:
            settings["power_cycle"] = ["ipmi", "{host}"]
        if chance.random() < 0.3:
            settings["apart"] = ["rack"]
        labels = {name: {"rack": chance.choice("abc")} for name in (*names, "x1", "x2")}
        self.play = Play(
            plan(
                *waves, settings=settings, down=down, max_unavailable=chance.randint(1, 4), labels=labels,
                skipped=dict.fromkeys(("x1", "x2"), "not in --limit"),
            ),
            self.now,
        )  # fmt: skip
        fleet, self.locks = stacks()
        self.template = replace(work(Step.PREFLIGHT, {}), settings=self.play.machine.settings, fleet=fleet)
        self.drainer = Slurm(self)

    # -- what happens by itself

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.happens()

    def happens(self) -> None:
        """Perhaps one thing, at a place where a person, a job, the network or a kill may come."""
        for host in (*self.hosts.values(), *self.others):
            if host.jobs and self.chance.random() < 0.1:
                host.jobs -= 1
            elif not host.reason and not host.jobs and self.chance.random() < 0.2:
                host.jobs += 1
        if self.quiet or self.chance.random() >= self.trouble:
            return
        host = self.chance.choice([*self.hosts.values(), *self.others])
        what = self.chance.choice(
            ["return", "return", "return", "drain", "drain", "sign", "power", "rename", "away", "network", "kill"]
        )
        self.done[what] += 1
        match what:
            case "return":
                host.reason, host.node = "", host.name
            case "drain" | "sign" if not host.reason or what == "sign":
                host.reason = OPS
            case "power":
                self.reboots(host, host.default)
            case "rename" if self.chance.random() < 0.3:
                host.node = host.name + "-new" if host.node == host.name else host.name
            case "away":
                self.scheduler_at = self.now + self.chance.choice([5, 30, 30, 500])
            case "network":
                self.silence(host)
                host.reached_at = max(host.reached_at, self.now + self.chance.randint(1, BOOT_TIME // 3))
            case "kill" if self.killable:
                raise Killed

    def silence(self, host: Machine) -> None:
        """It begins, unless the host was silent until a moment ago."""
        if not host.hangs and self.now > max(host.up_at, host.reached_at) + 20:
            host.silent_from = self.now

    def reboots(self, host: Machine, kernel: str) -> None:
        self.silence(host)
        host.boot += 1
        host.running, host.once, host.jobs = kernel, "", 0
        host.up_at = self.now + self.chance.randint(5, BOOT_TIME // 2)
        host.hangs = not self.quiet and self.chance.random() < 0.05

    def silent(self, host: Machine) -> bool:
        return host.hangs or self.now < max(host.up_at, host.reached_at)

    # -- what the rollout does

    def disturb(self, name: str, what: str) -> None:
        host = self.hosts[name]
        if host.works or host.node != host.name:
            raise Broken(f"{what} of {name}, which works: {host}")

    def answer(self, name: str, question: Question[Any], options: Sequence[str]) -> dict[str, Any]:
        """What a host says to a question, which may also do something to it."""
        host, words = self.hosts[name], " ".join(question.words)
        if words != "rollout reboot":
            self.happens()
        if self.silent(host):
            raise self.chance.choice(NONSENSE) if self.now < host.up_at else HostUnreachable("no route")
        lost = not self.quiet and self.chance.random() < self.trouble
        boot = f"{host.name}-{host.boot}"
        value: dict[str, Any] = {
            "rollout status": status(boot, host.running),
            "rollout once": {"once": False, "default": host.default},
            "boot show": {"default": host.default},
            "boot default": {"changed": True},
            "gate run": {"state": "open", "boot_id": boot, "reason": ""},
            "guard judge": {"admitted": True, "reasons": []},
        }.get(words, {})
        match words:
            case "boot needed":
                reasons = [] if options[options.index("--kernel") + 1] == host.running else ["the kernel is another"]
                value = needed(*reasons, boot=boot, running=host.running)
            case "rollout reboot" if options[options.index("--boot-id") + 1] == boot:
                self.disturb(name, "reboot")
                self.reboots(host, host.once or host.default)
            case "rollout once":
                host.once = ""
            case "guard default":
                host.default = host.installed
            case "boot default":
                host.default = options[-1]
        if lost:
            raise HostUnreachable("the connection broke")
        return value

    def played(self, work: Work, step: str) -> list[str]:
        """A playbook."""
        host = self.hosts[work.name]
        if self.silent(host):
            raise HostUnreachable("no route")
        self.disturb(host.name, step)
        if step == "undo":
            host.installed = host.default = OLD
        elif step == "apply":
            host.installed = NEW
        self.passes(self.chance.randint(1, 30))
        if self.silent(host):
            raise HostUnreachable("the connection broke")
        if self.chance.random() < 0.03 and not self.quiet:
            raise ConvergeFailed("a task failed")
        return ["x"]

    def checked(self, work: Asked, *, but: Collection[str] = (), load: bool = False) -> HostReport:
        host = self.hosts[work.name]
        if load and host.works:
            raise Broken(f"{host} is read from under load")
        self.happens()
        if self.silent(host):
            raise HostUnreachable("no route")
        want = OLD if work.task.step is Step.UNDO_VALIDATE else NEW
        if {host.installed, host.running} != {want} or (host.bad and want == NEW):
            raise ChecksFailed(f"{host.name} has {host.installed} and runs {host.running}")
        return HostReport(host.name, "gds", boot_id=f"{host.name}-{host.boot}")

    def powered(self, command: Sequence[str], **_: object) -> None:
        host = self.hosts[command[1]]
        self.disturb(host.name, "power")
        if not self.silent(host):
            raise Broken(f"power is cut on {host}, which answers")
        self.reboots(host, host.default)
        if self.chance.random() < 0.1 and not self.quiet:
            raise ProgramFailed("the BMC says no")

    def steps(self) -> dict[Step, Callable[[Any], dict[str, Any]]]:
        def preflight(work: Asked) -> dict[str, Any]:
            host, state = self.hosts[work.name], work.ask(answers.STATUS)
            satisfied = host.installed == host.running == NEW
            return {"boot_id": state.boot_id, "satisfied": satisfied, "kernel": state.kernel, "current": "sha256:a"}

        def audit(work: Asked) -> dict[str, Any]:
            work.ask(answers.STATUS)
            host = self.hosts[work.name]
            host.once = NEW if host.running != NEW else ""
            return {}

        def soak(work: Asked) -> dict[str, Any]:
            return {"soaked_boot": self.checked(work).boot_id}

        imagined = {Step.PREFLIGHT: preflight, Step.AUDIT: audit, Step.SOAK: soak, Step.SNAPSHOT: self._snapshot}
        return {**session.STEPS, **imagined}

    def _snapshot(self, work: Asked) -> dict[str, Any]:
        return {"boot_id": work.ask(answers.STATUS).boot_id, "snapshot": {}}

    def asked(self, work: ScriptedWork, **changed: Any) -> Asked:
        """The same work, of this world."""
        patience = Patience(packages=10, poll=5, knock=5, settle=20)
        again = replace(work, drainer=self.drainer, patience=patience, **changed)
        again.__class__ = Asked
        object.__setattr__(again, "world", self)
        return again  # type: ignore[return-value]

    def perform(self, task: Task) -> tuple[dict[str, Any] | None, StepError | None]:
        """As the driver has a step performed."""
        try:
            return session._perform(self.asked(self.template, task=task, lock=self.locks[NEW])), None
        except GdsError as error:
            return None, StepError(type(error).__name__, str(error), error.hint)

    # -- the driver, and the person at its terminal

    def look(self, afresh: bool) -> bool:
        """Whether somebody says who is out of work; if not, the rollout pauses, as its driver has it do."""
        machine, play = self.play.machine, self.play
        try:
            standings = self.drainer.states([*self.hosts, *play.plan.skipped])
        except DrainFailed as error:
            self.play.say(Kind.PAUSED, reason=f"who is out of work is not known: {error.message}")
            return False
        play.take(machine.looked({name: each.standing(play.plan.id) for name, each in standings.items()}))
        return True

    def budget(self, task: Task) -> None:
        """Before a host is drained: with it, and all that are out, no more are than may be, nor two of a rack."""
        out = {host.name for host in (*self.hosts.values(), *self.others) if host.reason and host.node == host.name}
        out |= {name for name, each in self.play.under_way.items() if each.step is Step.DRAIN}
        if task.host in out:
            return
        if len(out) + 1 > self.play.plan.max_unavailable:
            raise Broken(f"{task.host} would be out with {sorted(out)}, of {self.play.plan.max_unavailable}")
        labels = self.play.plan.labels
        if self.play.machine.settings.apart and labels[task.host] in [labels[name] for name in out]:
            raise Broken(f"{task.host} would be out with {sorted(out)}, of which one is of its rack")

    def drive(self) -> None:
        """Until nothing more happens without a person; may be killed at any place."""
        play, known = self.play, False
        for _ in range(5000):
            play.now = self.now = max(self.now, play.now)
            if not known and not play.machine.paused:
                if not self.look(True):
                    continue
                known = True
            decided = play.decide()
            halts = not play.under_way and any(payload.kind is Kind.HALTED for _, payload in decided.events)
            # Between its look and what it begins nothing happens.
            if halts or any(task.step is Step.DRAIN for task in decided.tasks):
                before = len(play.events)
                if not self.look(False) or len(play.events) > before:
                    continue
            play.take(decided.events)
            if decided.events:
                continue
            for task in decided.tasks:
                if task.step is Step.DRAIN:
                    self.budget(task)
                play.say(Kind.BEGIN, task.host, step=task.step.value, attempt=task.attempt)
                play.under_way[task.host] = task
            if play.under_way and (not decided.tasks or self.chance.random() < 0.7):
                host = self.chance.choice(sorted(play.under_way))
                facts, error = self.perform(play.under_way[host])
                play.now = self.now
                if facts is not None:
                    play.end(host, facts)
                else:
                    assert error is not None
                    self.given_up(host, error)
                    play.fail(host, {"kind": error.kind, "message": error.message, "hint": error.hint})
            elif not decided.tasks and decided.wake_at is not None:
                self.passes(max(0.0, decided.wake_at - self.now))
            elif not decided.tasks:
                return
        raise Broken("it does not come to an end")

    def given_up(self, name: str, error: StepError) -> None:
        """No step fails for the silence of a host that boots; one that only looks may."""
        host, step = self.hosts[name], self.play.under_way[name].step
        if error.kind != "HostUnreachable" or host.hangs or step is Step.PREFLIGHT:
            return
        if self.now - host.silent_from < BOOT_TIME:
            raise Broken(f"{host} is healthy, and given up at {step}: {error.message}")

    def person(self) -> None:
        """Somebody has the rollout go on, or turns it back."""
        machine, chance = self.play.machine, self.chance
        kinds = [Kind.RESUMED] * 3
        if not (machine.aborted or machine.rolling_back or machine.finished):
            kinds.append(Kind.ABORTED)
        if not machine.rolling_back or machine.finished:
            kinds.append(Kind.ROLLBACK)
        kind = chance.choice(kinds)
        if kind is Kind.RESUMED:
            self.play.say(kind, accept=[name for name in self.failed() if chance.random() < 0.5])
        else:
            self.play.say(kind, reason="a person")

    def failed(self) -> list[str]:
        hosts = self.play.machine.hosts.values()
        return [host.name for host in hosts if host.counted is not None and host.counted.failed]

    def killed_or_driven(self) -> None:
        self.killable = not self.quiet
        try:
            self.drive()
            self.told()
        except Killed:
            self.play.kill()
        finally:
            self.killable = False

    def run(self) -> None:
        """Some commands among the trouble, and then patience and repairs until the end; raises Broken."""
        with self.imagined():
            for _ in range(self.chance.randint(1, 6)):
                self.killed_or_driven()
                self.person()
            self.quiet = True
            for _ in range(20):
                self.repair()
                self.play.kill()
                self.play.say(Kind.RESUMED, accept=self.failed())
                self.killed_or_driven()
                if self.play.machine.finished:
                    break
            else:
                raise Broken(f"it does not end: {self.play.machine.phase}: {self.play.machine.reason}")
        self.over()

    def told(self) -> None:
        """Where it stands still it says why."""
        machine = self.play.machine
        if not (machine.finished or machine.paused or machine.halted or machine._running):
            raise Broken(f"it says nothing: {machine.phase}")

    def repair(self) -> None:
        """Everything works again, and people return what they have drained, and what the rollout has given up."""
        self.scheduler_at = 0.0
        for host in (*self.hosts.values(), *self.others):
            host.node, host.up_at, host.reached_at, host.hangs = host.name, 0.0, 0.0, False
            state = self.play.machine.hosts.get(host.name)
            ours = host.reason.startswith(reason_of(self.play.plan.id, ""))
            if not ours or (state is not None and state.outcome is Outcome.KEPT):
                host.reason = ""

    def over(self) -> None:
        """At the end no host is forgotten, and each is what is said of it."""
        for name, state in self.play.machine.hosts.items():
            host = self.hosts[name]
            ours = host.reason.startswith(reason_of(self.play.plan.id, ""))
            if ours and state.outcome not in (Outcome.KEPT, Outcome.LOST):
                raise Broken(f"{name} is forgotten: {state.outcome}, {host}")
            if state.outcome is Outcome.LOST and state.out:
                raise Broken(f"{name} is healthy, and lost: {host}")
            want = NEW if state.outcome in (Outcome.DONE, Outcome.SATISFIED) else OLD
            if state.outcome not in (Outcome.KEPT, Outcome.LOST) and {host.installed, host.running} != {want}:
                raise Broken(f"{name} is {state.outcome}, and {host}")

    @contextmanager
    def imagined(self) -> Iterator[None]:
        """The world instead of clocks, playbooks and checks."""
        clock = SimpleNamespace(monotonic=lambda: self.now)
        stop = SimpleNamespace(wait=self.passes, check=lambda: None)
        patches = imagined_playbooks(self.played)
        patches[rollback]["towards_before"] = lambda work: self.asked(work, lock=self.locks[OLD])
        patches[upgrade] |= {"run": self.powered, "check_host": self.checked}
        patches[steps_work] = {"time": clock}
        patches[drain] = {"time": clock, "cancel": SimpleNamespace(current=lambda: stop)}
        patches[session] = {"STEPS": self.steps()}
        with ExitStack() as stack:
            for module, names in patches.items():
                stack.enter_context(mock.patch.multiple(module, **names))
            yield


@cache
def stacks() -> tuple[Fleet, dict[str, Lock]]:
    """A fleet of all hosts that a world may have, and its lock with each kernel."""
    names = [f"g{number}" for number in range(5)]
    profiles = {"gds": {"os": "debian-13", "repositories": [], "mode": "compat"}}
    fleet = Fleet.model_validate({"version": 1, "profiles": profiles, "hosts": dict.fromkeys(names, "gds")})
    return fleet, {kernel: lockfile.build({"gds": target(fleet, "gds", kernel)}) for kernel in (OLD, NEW)}


def imagined_playbooks(play: Callable[..., Any]) -> dict[Any, dict[str, Any]]:
    """Module → names: ``play`` instead of playbooks, and nothing of what is prepared for them."""

    def once(work: Work, step: str, _: object) -> HostResult:
        return HostResult(changed=play(work, step))

    machine = SimpleNamespace(fleet=None, lock=None, name="", files=None)
    look = SimpleNamespace(lacks=lambda _: True, supply=Supply("receive", "", ""), machine=machine, plan=None)
    shelf = SimpleNamespace(keep=lambda *_: [])
    assign = SimpleNamespace(open_run_archives=lambda _: nullcontext(shelf))
    packages = SimpleNamespace(
        fetch_packages=lambda *_: {}, differing_packages=lambda *_: [], offer_packages=lambda *_: nullcontext(None)
    )
    return {
        upgrade: {
            "assign": assign, "look_at": lambda *_: look, "_look": lambda _: nullcontext((shelf, look)),
            "inventory": lambda *_: {}, "_play_once": once,
            "_keep_default": lambda _: None, "refuse": lambda *_: None, "packages_of": lambda *_, **__: (),
        },
        rollback: {
            "assign": assign, "_machine": lambda *_: machine, "_restore_variables": lambda *_: {},
            "_managed": lambda *_: {}, "_files": lambda *_: [], "_refuse": lambda *_: None,
            "_differences": lambda *_, leftovers: [] if leftovers else ["a"],
            "credentials": SimpleNamespace(of_fleet=lambda *_: {}), "previous_packages": packages,
        },
    }  # fmt: skip


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    arguments = parser.parse_args()
    begin, events, broken = time.monotonic(), 0, 0
    deeds: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        world = World(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - each is told with its seed
            broken += 1
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)  # noqa: T201
        if arguments.runs == 1:
            for event in world.play.events:
                print(f"{event.number:4} {event.time - BEGIN:7.0f} {progress.sentence(event)}")  # noqa: T201
        events += len(world.play.events)
        deeds += world.done
        ends += world.play.machine.outcomes()
        if seed % 100 == 99:
            print(f"{seed + 1 - arguments.seed} rollouts, {broken} broken", flush=True)  # noqa: T201
    took = time.monotonic() - begin
    print(f"{arguments.runs} rollouts, {broken} broken, {events} events, {took:.0f} s")  # noqa: T201
    print(f"trouble: {dict(deeds)}\nends: {dict(ends)}")  # noqa: T201
    raise SystemExit(broken > 0)


if __name__ == "__main__":
    main()
