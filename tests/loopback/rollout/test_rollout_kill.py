"""A driver that is killed at any instant, and resumed: no host is lost, rebooted twice or returned unproven.

Every place is tried: before and after each write to the journal, before and after what each step does to its host.
The driver is a process that really gets SIGKILL; its hosts are imitated (see pretended_hosts), there being no way to
reboot real ones a thousand times.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import Busy, Interrupted, RolloutRefused
from gdsdeploy.model.events import Event, Kind, RollbackBegun, RolloutAborted, RolloutResumed
from gdsdeploy.model.rollout import Outcome, Plan, Step, Wave
from gdsdeploy.rollout import control, journal
from gdsdeploy.rollout.driver import Hooks, drive
from gdsdeploy.rollout.machine import StateMachine
from tests.unit.rollout.driven_rollout import PLAN, Hurried, begin_fork, forked, status_of
from tests.unit.rollout.pretended_hosts import Hosts


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
    phases = writer.rollouts()[-1].phases
    if phases and phases[-1].kind is Kind.PAUSED:
        control.write(writer, RolloutResumed("test"))

    def signalled(event: Event) -> None:
        steps.append(event)
        if not phases and event.host == "b" and event.kind is Kind.BEGIN and event.data["step"] == Step.REBOOT:
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
                    _folded(reader, summary.id)
        machine = through(folder, story, **options)
        assert hosts.broken(machine) == [], number
        assert expected(machine), (number, machine.outcomes(), machine.phase)
        shutil.rmtree(folder)
        if status == 0:
            return number - 1
    raise AssertionError


def _folded(reader: journal.Journal, rollout: str) -> StateMachine:
    machine = StateMachine(reader.plan(rollout))
    for event in reader.events(rollout):
        machine.apply(event)
    return machine


def all_done(machine: StateMachine) -> bool:
    return machine.finished and {host.outcome for host in machine.hosts.values()} == {Outcome.DONE}


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


def test_killed_at_every_place_of_a_rollout_whose_canary_fails(place: Path) -> None:
    def halted(machine: StateMachine) -> bool:
        return machine.hosts["a"].outcome is Outcome.ROLLED_BACK and machine.counts()["waiting"] == 2

    assert survives(place, to_its_end, halted, fails=("a",)) > 12 * 3


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
