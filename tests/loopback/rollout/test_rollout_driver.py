"""The driver: what it writes down when, and what it does when it is interrupted, meets a bug, or cannot write."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import cancel, run
from gdsdeploy.errors import (
    Busy,
    ControllerUnfit,
    DrainFailed,
    FleetInvalid,
    GdsError,
    HostUnreachable,
    Interrupted,
    JournalUnusable,
    RolloutRefused,
)
from gdsdeploy.model.events import Event, Kind, RollbackBegun, RolloutAborted, RolloutPaused, RolloutResumed
from gdsdeploy.model.rollout import Outcome, Plan, Standing, Step, Task, Wave
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout import control, driver, journal
from gdsdeploy.rollout.driver import Hooks, drive
from gdsdeploy.rollout.machine import StateMachine, fold
from gdsdeploy.run import as_root, which
from tests.patience import SURELY
from tests.unit.rollout.driven_rollout import PLAN, Hurried, begin_fork, forked, status_of
from tests.unit.rollout.pretended_hosts import OLD, Hosts

ONE = replace(PLAN, waves=(Wave("1", ("a",)),))
TWO = replace(PLAN, waves=(Wave("1", ("a", "b")),))
THREE = replace(PLAN, waves=(Wave("1", ("a",)), Wave("2", ("b", "c"))))


class Performing:
    """Effects that do what ``step`` does, and else what pretended hosts do."""

    def __init__(self, hosts: Hosts, step: Callable[[Task], object]) -> None:
        self._hosts = hosts
        self._own = step
        self.end = cancel.Stop()

    def perform(self, task: Task, progress: Callable[[str], None]) -> Mapping[str, Any]:
        with self.end.scope():
            self._own(task)
        return self._hosts.perform(task, progress)

    def stop(self) -> None:
        self.end.request()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet.sqlite"


@contextlib.contextmanager
def begun(path: Path, plan: Plan) -> Iterator[journal.Writer]:
    """The journal of ``plan``, which is begun unless it was."""
    with journal.writing(path, doing="rollout start") as writer:
        if writer.newest() is None:
            writer.begin(plan)
        yield writer


def driven(
    path: Path, plan: Plan, *, hooks: Hooks | None = None, step: Callable[[Task], object] | None = None
) -> StateMachine:
    hosts = Hosts(path.parent, plan)
    with begun(path, plan) as writer:
        return drive(writer, plan.id, Performing(hosts, step) if step else hosts, hooks=hooks, clock=Hurried())


def resumed(path: Path, plan: Plan) -> StateMachine:
    """By somebody else, to its end; with nothing that must not be."""
    with journal.writing(path, doing="rollout resume") as writer:
        control.write(writer, RolloutResumed("test"))
    machine = driven(path, plan)
    assert Hosts(path.parent, plan).broken(machine) == []
    return machine


def events(path: Path) -> list[Event]:
    with journal.reading(path) as reader:
        return list(reader.events(PLAN.id))


def open_steps(path: Path) -> list[tuple[str, str]]:
    """Steps that were begun, and of which nobody says how they ended."""
    steps: dict[str, str] = {}
    for event in events(path):
        if event.kind is Kind.BEGIN:
            steps[event.host] = event.data["step"]
        elif event.kind in {Kind.END, Kind.FAIL}:
            assert steps.pop(event.host) == event.data["step"]
    return list(steps.items())


def all_done(machine: StateMachine) -> bool:
    return machine.finished and {host.outcome for host in machine.hosts.values()} == {Outcome.DONE}


def wait_for(what: Callable[[], object]) -> None:
    end = time.monotonic() + SURELY
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_step_is_written_down_before_it_is_begun(path: Path) -> None:
    watched: list[Event] = []
    lines: list[tuple[str, str]] = []

    def begun_already(task: Task) -> None:
        last = [event for event in events(path) if event.host == task.host][-1]
        assert (last.kind, last.data) == (Kind.BEGIN, {"step": task.step, "attempt": 1})

    hooks = Hooks(observe=watched.append, progress=lambda *words: lines.append(words))
    machine = driven(path, THREE, hooks=hooks, step=begun_already)
    assert all_done(machine)
    assert watched == events(path)[1:], "who watches sees everything that this driver wrote, in its order"
    assert ("c", "apply is done") in lines
    drains = [event for event in watched if event.data.get("step") == Step.DRAIN and event.kind is Kind.END]
    assert drains[0].data["data"]["drained"] is True
    assert not open_steps(path)
    with begun(path, THREE) as writer:
        assert drive(writer, PLAN.id, Hosts(path.parent, THREE)).finished
    assert len(events(path)) == len(watched) + 1, "nothing is left to do"


# -- wishes


def slowly(path: Path) -> StateMachine:
    with begun(path, THREE) as writer:
        return drive(writer, PLAN.id, Hosts(path.parent, THREE, seconds=0.1))


def test_a_driver_that_runs_is_paused(path: Path) -> None:
    def child() -> None:
        assert slowly(path).paused == "lunch"

    pid = begin_fork(child, path.with_name("error"))
    wait_for(lambda: path.exists() and len(events(path)) > 4)
    event, by_driver = control.tell(path, RolloutPaused("lunch"))
    assert (event.kind, event.data, by_driver) == (Kind.PAUSED, {"reason": "lunch"}, True)
    assert status_of(pid) == 0
    assert events(path)[event.number - 1] == event
    assert all(each.kind is not Kind.BEGIN for each in events(path)[event.number :])
    assert not open_steps(path), "steps under way were finished"
    assert not [*control.folder(path).iterdir()], "nothing is left behind"
    with pytest.raises(RolloutRefused, match="cannot be paused: it is paused already"):
        control.tell(path, RolloutPaused())
    assert all_done(resumed(path, THREE))
    with pytest.raises(RolloutRefused, match="it is finished"):
        control.tell(path, RolloutPaused())


def test_a_wish_whose_sender_is_gone_is_not_fulfilled(path: Path) -> None:
    with begun(path, ONE) as writer:
        pid = begin_fork(lambda: control.tell(path, RolloutPaused("old")), path.with_name("error"))
        wait_for(lambda: [*control.folder(path).glob("*.json")])
        os.kill(pid, signal.SIGKILL)
        status_of(pid)
        assert [*control.folder(path).glob("*.json")], "it could not take it back"
        assert all_done(drive(writer, PLAN.id, Hosts(path.parent, ONE), clock=Hurried()))
    assert not [*control.folder(path).iterdir()]


def test_a_driver_that_does_not_answer(path: Path) -> None:
    with begun(path, ONE), pytest.raises(Busy, match=r"process \d+ .* and does not answer"):
        control.tell(path, RolloutAborted(), patience=0.3)
    assert not [*control.folder(path).iterdir()]


def test_nonsense_beside_the_journal_stops_nobody(path: Path) -> None:
    control.folder(path).mkdir()
    (control.folder(path) / "1.json").write_text("[")
    with (control.folder(path) / "2.json").open("w") as file:
        file.write('{"kind": "halt and catch fire", "data": 1}\n')
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert all_done(driven(path, ONE))


# -- a host that doesn't come back; tests/cases/rollout/machine.yml has the others


def test_a_silent_host_is_lost_and_taken_back_once_somebody_has_switched_it_off_and_on(path: Path) -> None:
    plan = replace(PLAN, waves=(Wave("canary", ("a",), canary=True), Wave("2", ("b",))))
    hosts = Hosts(path.parent, plan)

    def silent(task: Task) -> None:
        if task.step is Step.BOOT:
            raise HostUnreachable(f"{task.host}: no answer for 1200 s")

    machine = driven(path, plan, step=silent)
    assert (machine.phase, machine.hosts["a"].outcome, machine.hosts["b"].outcome) == ("halted", Outcome.LOST, None)
    assert hosts.look()["a"].drained
    assert hosts.broken(None) == []

    # A power cycle lands in the old kernel: the new one was to boot once.
    hosts.append("a", "reboot:old")
    machine = resumed(path, plan)
    assert machine.hosts["a"].outcome is Outcome.ROLLED_BACK
    state = hosts.look()["a"]
    assert (state.lock, state.runs, state.drained) == (OLD, OLD, False)
    assert state.count["reboot:new"] == 1


# -- signals


def commands(program: str) -> Callable[[Task], object]:
    """A step that starts a program as real ones do, after it has said so in the folder."""

    def step(task: Task) -> None:
        if task.step is Step.APPLY and task.attempt == 1:
            run.run(["sh", "-c", program], doing="test")

    return step


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_first_signal_pauses(path: Path, number: signal.Signals) -> None:
    """To the process and all that it started, as a terminal sends it."""
    program = f"touch {path.parent}/begun.$$; while [ ! -e {path.parent}/go ]; do sleep 0.05; done"

    def child() -> None:
        with pytest.raises(Interrupted, match="paused") as caught:
            driven(path, TWO, step=commands(program))
        assert "gdsdeploy rollout resume" in str(caught.value.hint)

    pid = begin_fork(child, path.with_name("error"))
    # Both: a program is in the session of its parent until it has started.
    wait_for(lambda: len(list(path.parent.glob("begun.*"))) == 2)
    os.killpg(pid, number)
    wait_for(lambda: Kind.PAUSED in {event.kind for event in events(path)})
    (path.parent / "go").touch()
    assert status_of(pid) == 0, path.with_name("error").read_text()
    assert not open_steps(path), "steps under way were finished"
    (paused,) = [event for event in events(path) if event.kind is Kind.PAUSED]
    assert paused.data == {"reason": f"interrupted by {number.name}"}
    assert all(event.kind not in {Kind.BEGIN, Kind.FAIL} for event in events(path)[paused.number :])
    assert all_done(resumed(path, TWO))


def test_a_second_signal_stops_at_once(path: Path) -> None:
    def step(task: Task) -> None:
        if task.step is Step.APPLY and task.attempt == 1:
            run.stream(["sh", "-c", f"touch {path.parent}/begun; sleep 600"], doing="test", line=lambda _: None)

    def child() -> None:
        with pytest.raises(Interrupted, match="stopped at once"):
            driven(path, TWO, step=step)

    begin = time.monotonic()
    pid = begin_fork(child, path.with_name("error"))
    wait_for((path.parent / "begun").exists)
    os.killpg(pid, signal.SIGINT)
    wait_for(lambda: Kind.PAUSED in {event.kind for event in events(path)})
    os.killpg(pid, signal.SIGINT)
    assert status_of(pid) == 0, path.with_name("error").read_text()
    assert time.monotonic() - begin < SURELY
    assert {step for _, step in open_steps(path)} == {Step.APPLY}
    assert Kind.FAIL not in {event.kind for event in events(path)}, "that they were stopped is not the hosts' fault"
    assert all_done(resumed(path, TWO))


def test_a_third_signal_does_not_wait_for_what_cannot_be_stopped(path: Path) -> None:
    def child() -> None:
        with pytest.raises(Interrupted, match="1 steps had not ended"):
            driven(path, ONE, step=lambda _: (path.parent.joinpath("begun").touch(), time.sleep(600)))

    begin = time.monotonic()
    pid = begin_fork(child, path.with_name("error"))
    wait_for((path.parent / "begun").exists)
    for _ in range(3):
        os.kill(pid, signal.SIGINT)
        time.sleep(0.3)
    assert status_of(pid) == 0, path.with_name("error").read_text()
    assert time.monotonic() - begin < SURELY
    assert all_done(resumed(path, ONE))


def test_a_signal_in_the_last_step_of_all(path: Path) -> None:
    """Nothing is left that could be paused: it is finished, and said to be."""

    def observe(event: Event) -> None:
        if event.kind is Kind.BEGIN and event.data["step"] == Step.RETURN:
            os.kill(os.getpid(), signal.SIGINT)

    machine = driven(path, ONE, hooks=Hooks(observe=observe))
    assert all_done(machine)


def test_signals_are_again_what_they_were(path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    driven(path, ONE)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


# -- what goes wrong


def test_a_bug_in_a_step(path: Path) -> None:
    def step(task: Task) -> None:
        if task.host == "a" and task.step is Step.AUDIT:
            raise ZeroDivisionError("of a programmer")

    with pytest.raises(ZeroDivisionError, match="of a programmer"):
        driven(path, TWO, step=step)
    (failed,) = [event for event in events(path) if event.kind is Kind.FAIL]
    assert failed.data["error"] == {"kind": "ZeroDivisionError", "message": "of a programmer", "hint": None}
    (paused,) = [event for event in events(path) if event.kind is Kind.PAUSED]
    assert paused.data == {"reason": "a: audit met a bug: ZeroDivisionError: of a programmer"}
    assert all(event.kind is not Kind.BEGIN for event in events(path)[paused.number :])
    assert not open_steps(path)
    machine = resumed(path, TWO)
    assert [machine.hosts[name].outcome for name in "ab"] == [Outcome.ROLLED_BACK, Outcome.DONE]


def test_what_this_machine_lacks_pauses_and_says_nothing_about_the_host(path: Path) -> None:
    def step(task: Task) -> None:
        if task.host == "a" and task.step is Step.VALIDATE and task.attempt == 1:
            raise ControllerUnfit("this machine cannot ask a: Too many open files", hint="ulimit")

    with pytest.raises(ControllerUnfit) as caught:
        driven(path, TWO, step=step)
    assert caught.value.message == "the rollout is paused: this machine cannot ask a: Too many open files"
    assert caught.value.hint == "ulimit; then: gdsdeploy rollout resume /fleet.yml"
    assert [event for event in events(path) if event.kind is Kind.FAIL] == []
    (paused,) = [event for event in events(path) if event.kind is Kind.PAUSED]
    assert paused.data == {"reason": "a: validate: this machine cannot ask a: Too many open files"}
    machine = resumed(path, TWO)
    assert [machine.hosts[name].outcome for name in "ab"] == [Outcome.DONE, Outcome.DONE]


@pytest.mark.parametrize(("hard", "most"), [(4096, 40), (256 + 8 * 7, 7)])
def test_as_many_steps_at_once_as_this_machine_has_files_for(path: Path, hard: int, most: int) -> None:
    """The soft limit is raised for all of them; where the hard one is too low, fewer run, and the journal says so."""
    names = tuple(f"g{number}" for number in range(40))
    plan = replace(PLAN, waves=(Wave("all", names),), settings=Rollout(parallel=40).model_dump(mode="json"),
                   max_unavailable=40)  # fmt: skip
    lock, full, now, counts, limits = threading.Lock(), threading.Event(), set[str](), [], set[int]()

    def step(task: Task) -> None:
        with lock:
            now.add(task.host)
            counts.append(len(now))
            limits.add(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
            if len(now) >= most:
                full.set()
        full.wait(SURELY)
        time.sleep(0.01)
        with lock:
            now.remove(task.host)

    def body() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        driven(path, plan, step=step)
        assert max(counts) == most
        assert min(limits) >= min(hard, 256 + 8 * 40)

    assert forked(body, path.parent / "log") == 0, (path.parent / "log").read_text()
    notes = [event.data["text"] for event in events(path) if event.kind is Kind.NOTE]
    assert [f"has files for {most} steps" in text for text in notes] == [True] * (most < 40)


def test_a_step_that_finds_what_cannot_be_written_down(path: Path) -> None:
    class Sets(Hosts):
        def perform(self, task: Task, progress: Callable[[str], None]) -> Mapping[str, Any]:
            return {**super().perform(task, progress), **({"names": {1}} if task.step is Step.SNAPSHOT else {})}

    with begun(path, ONE) as writer, pytest.raises(TypeError, match="set is not JSON"):
        drive(writer, PLAN.id, Sets(path.parent, ONE), clock=Hurried())
    assert resumed(path, ONE).hosts["a"].outcome is Outcome.ROLLED_BACK


def test_a_step_that_was_interrupted_by_somebody_else(path: Path) -> None:
    def step(task: Task) -> None:
        if task.step is Step.BOOT and task.attempt == 1:
            raise Interrupted("by a finger on another keyboard")

    with pytest.raises(Interrupted):
        driven(path, ONE, step=step)
    assert open_steps(path) == [("a", Step.BOOT)]
    assert [event.data for event in events(path) if event.kind is Kind.PAUSED] == [
        {"reason": "a: boot was interrupted"}
    ]
    assert all_done(resumed(path, ONE))


def test_a_disk_that_is_full_in_the_middle(tmp_path: Path) -> None:
    """Really: on a small file system of its own.  Nothing is begun after; with space it goes on."""
    place = tmp_path / "small"
    place.mkdir()
    script = f"""
        import errno, sys
        sys.path.insert(0, {str(Path(__file__).parents[3])!r})
        from tests.loopback.rollout.test_rollout_driver import *
        from gdsdeploy.errors import GdsError
        place = Path({str(place)!r})
        path, ballast = place / "fleet.sqlite", place / "ballast"
        (place / "hosts").mkdir()
        performed = []

        def fill(task):
            performed.append(task)
            # Again with each step: while it is filled, another host's write may hold pages that it gives back.
            if task.step is Step.REBOOT or ballast.exists():
                with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as stream:
                    while True:
                        stream.write(bytes(4096))

        hosts = Hosts(Path({str(tmp_path)!r}), TWO)
        with begun(path, TWO) as writer:
            try:
                drive(writer, PLAN.id, Performing(hosts, fill), clock=Hurried())
            except GdsError as error:
                print(type(error).__name__, error.message)
        begins = [event for event in events(path) if event.kind is Kind.BEGIN]
        print(len(begins) == len(performed), hosts.broken())
        ballast.unlink()
        with begun(path, TWO) as writer:
            machine = drive(writer, PLAN.id, hosts, clock=Hurried())
        print(all_done(machine), hosts.broken(machine))
        """
    argv = ["sh", "-c", f'mount -t tmpfs -o size=96k none {place} && exec "$@"', "sh", sys.executable, "-c"]
    alone = as_root([which("unshare"), "--mount", "--propagation", "private", *argv, textwrap.dedent(script)])
    done = subprocess.run(
        alone, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3], timeout=300
    )
    assert done.returncode == 0, done.stderr
    full, during, after = done.stdout.splitlines()
    assert full.startswith("JournalUnusable")
    assert "the disk is full" in full
    assert during == "True []", "nothing was begun that could not be written down"
    assert after == "True []"


def test_a_journal_that_cannot_be_written_while_steps_are_under_way(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are finished, that is said, and so are their ends if they can be."""
    extend = journal.Writer.extend

    def refuse(writer: journal.Writer, events: Sequence[Event]) -> None:
        if any((event.host, event.data.get("step")) == ("a", Step.MODULES) for event in events):
            raise JournalUnusable("the disk is on fire")
        extend(writer, events)

    monkeypatch.setattr(journal.Writer, "extend", refuse)
    lines: list[str] = []
    said = threading.Event()

    def progress(host: str, text: str) -> None:
        if not host:
            lines.append(text)
            said.set()

    def slow(task: Task) -> None:
        if (task.host, task.step) == ("b", Step.DRAIN):
            said.wait(SURELY)

    with pytest.raises(JournalUnusable, match="on fire"):
        driven(path, TWO, hooks=Hooks(progress=progress), step=slow)
    (line,) = lines
    assert line == "the disk is on fire\n1 steps are finished before this ends; a signal stops them"
    assert open_steps(path) == [], "the end of both steps could be written"
    monkeypatch.undo()
    assert all_done(resumed(path, TWO))


def test_a_machine_that_has_no_more_threads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == f"a {Step.APPLY}":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ControllerUnfit, match="can't start new thread"):
        driven(path, ONE)
    assert Kind.FAIL not in {event.kind for event in events(path)}
    monkeypatch.undo()
    assert all_done(resumed(path, ONE))


def test_who_watches_cannot_stop_it(path: Path) -> None:
    def observe(_: Event) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    assert all_done(driven(path, TWO, hooks=Hooks(observe=observe, progress=lambda *_: 1 / 0)))
    notes = [event.data["text"] for event in events(path) if event.kind is Kind.NOTE]
    assert sorted(notes) == [
        "an observer of this rollout failed: BrokenPipeError",
        "an observer of this rollout failed: ZeroDivisionError",
    ]


# -- the fleet and the time


def test_hosts_that_are_no_longer_in_the_fleet(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LOOK", 0.0)
    removed: list[str] = []

    def observe(event: Event) -> None:
        if event.host == "a" and event.data.get("step") == Step.BOOT:
            removed.extend(["a", "c"])

    machine = driven(path, THREE, hooks=Hooks(observe=observe, removed=lambda: removed))
    assert [machine.hosts[name].outcome for name in "abc"] == [Outcome.DONE, Outcome.DONE, Outcome.SKIPPED]
    assert not [event for event in events(path) if event.host == "c" and event.kind is Kind.BEGIN]
    assert Hosts(path.parent, THREE).look()["c"].count.total() == 0


def test_a_fleet_file_that_cannot_be_read_any_more(path: Path) -> None:
    def removed() -> list[str]:
        raise FleetInvalid("fleet.yml: line 3: what is this?")

    notices = ["gdsdeploy.lock is no longer what was planned; the rollout keeps to its own copy"]
    assert all_done(driven(path, TWO, hooks=Hooks(removed=removed, notices=lambda: notices)))
    notes = [event.data["text"] for event in events(path) if event.kind is Kind.NOTE]
    assert notes[0] == notices[0]
    assert notes[1:] == ["whether hosts were removed from the fleet is unknown: fleet.yml: line 3: what is this?"]


class Scheduler:
    """Who keeps hosts out of work, by the number of the look; an error where nobody says it."""

    def __init__(self, *looks: dict[str, Standing] | GdsError) -> None:
        self.looks, self.asked = looks, 0
        self.afresh: list[bool] = []

    def __call__(self, _down: Collection[str], afresh: bool) -> dict[str, Standing]:
        look = self.looks[min(self.asked, len(self.looks) - 1)]
        self.asked += 1
        self.afresh.append(afresh)
        if isinstance(look, GdsError):
            raise look
        return look


def test_who_is_out_of_work_is_asked_before_hosts_are_drained(path: Path) -> None:
    """Somebody drains x and y while the canary soaks, and brings x back before a person has it go on."""
    plan = replace(PLAN, max_unavailable=2, down=("old",))
    drained = {"x": Standing.THEIRS, "y": Standing.THEIRS}
    scheduler = Scheduler({"old": Standing.THEIRS}, drained)
    machine = driven(path, plan, hooks=Hooks(look=scheduler))
    assert machine.halted.endswith(" cannot be begun while out of work: x, y; at most 2 are at a time")
    assert [event.data for event in events(path) if event.kind is Kind.LOOKED] == [{"down": ["x", "y"], "back": []}]
    assert scheduler.afresh == [True] + [False] * (scheduler.asked - 1)
    with journal.writing(path, doing="rollout resume") as writer:
        control.write(writer, RolloutResumed("test"))
    scheduler = Scheduler({"y": Standing.THEIRS})
    assert all_done(driven(path, plan, hooks=Hooks(look=scheduler)))
    assert scheduler.afresh[0]


@pytest.mark.parametrize("error", [DrainFailed("slurmctld is away"), MemoryError("bug")], ids=["away", "bug"])
def test_no_host_is_drained_while_nobody_says_who_is_out(path: Path, error: Exception) -> None:
    def away(_down: Collection[str], _afresh: bool) -> dict[str, Standing]:
        raise error

    told: list[str] = []
    machine = driven(path, ONE, hooks=Hooks(look=away, progress=lambda _, text: told.append(text)))
    assert machine.phase == "paused"
    assert re.match(r"who is out of work is not known: .*(slurmctld is away|bug)", machine.paused)
    assert machine.hosts["a"].works == []
    assert "no host is drained until it is" in told[0]
    assert told.count(told[0]) == 1
    # An abort that has nobody to take back needs no scheduler.
    with journal.writing(path, doing="rollout abort") as writer:
        control.write(writer, RolloutAborted("test"))
    assert driven(path, ONE, hooks=Hooks(look=away)).phase == "aborted"


def test_a_moment_without_a_scheduler_is_waited_out(path: Path) -> None:
    scheduler = Scheduler(DrainFailed("away"), DrainFailed("away"), {})
    assert all_done(driven(path, ONE, hooks=Hooks(look=scheduler)))


def test_hosts_wait_for_their_window(path: Path) -> None:
    times: list[float] = []

    def open_window(now: float) -> bool:
        times.append(now)
        if len(times) < 20:
            assert not [event for event in events(path) if event.kind is Kind.BEGIN]
        return len(times) >= 20

    assert all_done(driven(path, ONE, hooks=Hooks(open_window=open_window)))
    assert times[19] - times[0] > 100, "the clock of this test, by which waiting takes no time"


# -- A driver that is killed at any instant, and resumed: no host is lost, rebooted twice or returned unproven. Every
# place is tried: before and after each write to the journal, before and after what each step does to its host. The
# driver is a process that really gets SIGKILL; its hosts are imitated (see pretended_hosts), there being no way to
# reboot real ones a thousand times.


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory, where there is one: thousands of commits would wait for the disk."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="gdsdeploy-test-", dir=where))
    yield folder
    shutil.rmtree(folder)


class Killer:
    """Kills this process at the place with the number ``at``; 0: never."""

    def __init__(self, at: int = 0) -> None:
        self._at = at
        self._count = 0
        self._lock = threading.Lock()

    def __call__(self, _name: str) -> None:
        with self._lock:
            self._count += 1
            if self._count == self._at:
                os.kill(os.getpid(), signal.SIGKILL)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """For the block, every write to a journal is a place, before and after."""
        write = journal.Writer._transaction

        @contextlib.contextmanager
        def watched(writer: journal.Writer) -> Iterator[None]:
            self("before a write")
            with write(writer):
                yield
            self("after a write")

        journal.Writer._transaction = watched  # type: ignore[method-assign]
        try:
            yield
        finally:
            journal.Writer._transaction = write  # type: ignore[method-assign]


Story = Callable[[journal.Writer, Hosts], StateMachine]


def through(folder: Path, story: Story, *, plan: Plan = PLAN, kill: int = 0, **about: Any) -> StateMachine:
    """Begin or go on with the rollout in ``folder``, to its end or its kill."""
    killer = Killer(kill)
    hosts = Hosts(folder, plan, at=killer, **about)
    with killer.watching(), journal.writing(folder / "fleet.sqlite", doing="test") as writer:
        if writer.newest() is None:
            writer.begin(plan)
        return story(writer, hosts)


def to_its_end(writer: journal.Writer, hosts: Hosts) -> StateMachine:
    return drive(writer, hosts.plan.id, hosts, clock=Hurried())


def paused_in_between(writer: journal.Writer, hosts: Hosts) -> StateMachine:
    """A signal comes when hosts are under way, once; then it is resumed."""
    steps: list[Event] = []
    so_far = list(writer.events(hosts.plan.id))
    already = Kind.PAUSED in {event.kind for event in so_far}
    if fold(so_far).paused:
        control.write(writer, RolloutResumed("test"))

    def signalled(event: Event) -> None:
        steps.append(event)
        if not already and event.host == "b" and event.kind is Kind.BEGIN and event.data["step"] == Step.REBOOT:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        return drive(writer, hosts.plan.id, hosts, clock=Hurried(), hooks=Hooks(observe=signalled))
    except Interrupted:
        assert Kind.PAUSED in {event.kind for event in steps}
        control.write(writer, RolloutResumed("test"))
        return to_its_end(writer, hosts)


def and_back(writer: journal.Writer, hosts: Hosts) -> StateMachine:
    """To its end, and then all of it is taken back."""
    machine = to_its_end(writer, hosts)
    if machine.rolling_back:
        return machine
    control.write(writer, RollbackBegun("test"))
    return to_its_end(writer, hosts)


def aborted(writer: journal.Writer, hosts: Hosts) -> StateMachine:
    """Somebody wants it aborted when hosts are under way."""

    def ask() -> None:
        with contextlib.suppress(RolloutRefused, Busy):  # it is already; it has just ended
            control.tell(writer.path, RolloutAborted("test"), patience=0.5)

    asking = threading.Thread(target=ask, daemon=True)

    def wish(event: Event) -> None:
        if event.host == "c" and event.kind is Kind.BEGIN and event.data["step"] == Step.BOOT and not asking.ident:
            asking.start()
            while asking.is_alive() and not [*control.folder(writer.path).glob("*.json")]:
                time.sleep(0.001)

    machine = drive(writer, hosts.plan.id, hosts, clock=Hurried(), hooks=Hooks(observe=wish))
    if asking.ident:
        asking.join()
    return machine


def survives(place: Path, story: Story, expected: Callable[[StateMachine], bool], **options: Any) -> int:
    """Kill at every place, one run each; how many places there were."""
    for number in itertools.count(1):
        folder = place / str(number)
        folder.mkdir()
        status = forked(lambda: through(folder, story, kill=number, **options), folder / "error")  # noqa: B023
        assert status in {0, -signal.SIGKILL}, (folder / "error").read_text()
        hosts = Hosts(folder, options.get("plan", PLAN))
        assert hosts.broken() == [], number
        if (folder / "fleet.sqlite").exists():
            with journal.reading(folder / "fleet.sqlite") as reader:
                for summary in reader.rollouts():
                    fold(reader.events(summary.id))
        machine = through(folder, story, **options)
        assert hosts.broken(machine) == [], number
        assert expected(machine), (number, machine.outcomes(), machine.phase)
        shutil.rmtree(folder)
        if status == 0:
            return number - 1
    raise AssertionError


def test_killed_at_every_place_of_a_rollout_that_goes_well(place: Path) -> None:
    places = survives(place, to_its_end, all_done)
    assert places > 3 * 10 * 3, "each step has what it does, before and after, and what is written in between"


def test_killed_at_every_place_of_a_rollout_that_halts(place: Path) -> None:
    waves = (Wave("canary", ("a",), canary=True), Wave("1", ("b",)), Wave("2", ("c",)))
    plan = replace(PLAN, waves=waves)

    def halted(machine: StateMachine) -> bool:
        outcomes = [machine.hosts[name].outcome for name in "abc"]
        return outcomes == [Outcome.DONE, Outcome.ROLLED_BACK, None] and bool(machine.halted)

    assert survives(place, to_its_end, halted, plan=plan, fails=("b",)) > 2 * 12 * 3


def test_killed_at_every_place_of_a_rollout_that_is_paused(place: Path) -> None:
    plan = replace(PLAN, waves=(Wave("1", ("b", "c")),))
    assert survives(place, paused_in_between, all_done, plan=plan) > 2 * 10 * 3


def test_killed_at_every_place_of_a_rollout_that_is_taken_back(place: Path) -> None:
    plan = replace(PLAN, waves=(Wave("1", ("b", "c")),))

    def back(machine: StateMachine) -> bool:
        return machine.finished and {host.outcome for host in machine.hosts.values()} <= {Outcome.ROLLED_BACK}

    assert survives(place, and_back, back, plan=plan) > 2 * 16 * 3


def test_killed_at_every_place_of_a_rollout_that_is_aborted(place: Path) -> None:
    plan = replace(PLAN, waves=(Wave("1", ("b", "c")),))

    def over(machine: StateMachine) -> bool:
        outcomes = {host.outcome for host in machine.hosts.values()}
        # A host is skipped if it still waits at its gate when the other one boots and the request comes.
        return machine.finished and outcomes <= {Outcome.DONE, Outcome.ROLLED_BACK, Outcome.SKIPPED}

    assert survives(place, aborted, over, plan=plan) > 2 * 10 * 3


def test_many_kills_of_one_rollout(place: Path) -> None:
    """From outside, whenever it happens to be; each resume is killed, too."""
    chance = random.Random(7)
    names = tuple(f"h{number}" for number in range(12))
    plan = replace(PLAN, waves=(Wave("1", names[:4]), Wave("2", names[4:])), max_unavailable=3)
    kills = 0
    while True:
        pid = begin_fork(lambda: through(place, to_its_end, plan=plan, fails=("h11",), seconds=0.05), place / "error")
        time.sleep(chance.uniform(0.05, 0.3))
        os.kill(pid, signal.SIGKILL)
        status = status_of(pid)
        assert Hosts(place, plan).broken() == []
        if status == 0 or kills == 300:
            break
        assert status == -signal.SIGKILL
        kills += 1
    machine = through(place, to_its_end, plan=plan, fails=("h11",))
    assert Hosts(place, plan).broken(machine) == []
    assert machine.hosts["h11"].outcome is Outcome.ROLLED_BACK
    assert machine.halted
    assert kills > 5
