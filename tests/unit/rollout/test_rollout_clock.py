"""A soak lasts as long as it was meant to, whatever happens to the clock of this machine."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.model.events import Event, Kind, Payload, RolloutPaused, RolloutResumed
from gdsdeploy.model.rollout import Outcome, Plan, Step, Wave
from gdsdeploy.rollout import control, driver, journal
from gdsdeploy.rollout.driver import Clock, Hooks, drive
from tests.unit.rollout.driven_rollout import PLAN
from tests.unit.rollout.pretended_hosts import Hosts

SOAK = 600
SOAKS = replace(PLAN, waves=(Wave("1", ("a",), soak=SOAK), Wave("2", ("b",))))


class Settable(Clock):
    """A machine's clocks: time passes while nobody has anything to do; ``at`` is called with what really passed."""

    def __init__(
        self, at: Callable[[Settable], None] = lambda _: None, *, booted: str = "one", steady: float = 1000.0
    ) -> None:
        self.offset = 1.7e9
        self._steady = steady
        self._boot = booted
        self._at = at

    def wall(self) -> float:
        return self._steady + self.offset

    def steady(self) -> float:
        return self._steady

    def boot(self) -> str:
        return self._boot

    def get(self, source: queue.SimpleQueue[Any], seconds: float) -> Any:
        event = super().get(source, min(seconds, 0.005))
        if event is None:
            self._steady += max(seconds, 0.01)
            self._at(self)
        return event


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(driver, "POLL", 10.0)  # a look each half second of the ten minutes takes a while
    return tmp_path / "fleet.sqlite"


class Observer:
    """When, by the time that really passed, a soak began and was judged."""

    def __init__(self) -> None:
        self.clock = Settable()
        self.begun: float | None = None
        self.judged: float | None = None

    def observe(self, event: Event) -> None:
        if event.kind is Kind.SOAKING and self.begun is None:
            self.begun = self.clock.steady()
        if event.kind is Kind.BEGIN and event.data["step"] == Step.SOAK:
            self.judged = self.clock.steady()

    @property
    def passed(self) -> float:
        assert self.begun is not None
        assert self.judged is not None
        return self.judged - self.begun


def driven(path: Path, observer: Observer, clock: Settable, plan: Plan = SOAKS, *wishes: Payload) -> None:
    observer.clock = clock
    with journal.writing(path, doing="test", wall=clock.wall) as writer:
        if writer.newest() is None:
            writer.begin(plan)
        for payload in wishes:
            control.write(writer, payload)
        machine = drive(writer, plan.id, Hosts(path.parent, plan), clock=clock, hooks=Hooks(observe=observer.observe))
    assert {host.outcome for host in machine.hosts.values()} == {Outcome.DONE}
    assert Hosts(path.parent, plan).broken(machine) == []


def notes(path: Path) -> list[str]:
    with journal.reading(path) as reader:
        return [event.data["text"] for event in reader.events(PLAN.id) if event.kind is Kind.NOTE]


@pytest.mark.parametrize(
    ("jump", "messages"),
    [
        (0.0, []),
        (86400.0, ["this machine's clock was set 86400 s forward"]),
        (-86400.0, ["this machine's clock was set 86400 s back"]),
        (-300.0, ["this machine's clock was set 300 s back"]),
    ],
)
def test_the_clock_is_set_during_a_soak(path: Path, jump: float, messages: list[str]) -> None:
    observer = Observer()
    jumps = iter([jump])

    def at(clock: Settable) -> None:
        if observer.begun is not None and clock.steady() > observer.begun + SOAK / 2:
            clock.offset += next(jumps, 0.0)

    driven(path, observer, Settable(at))
    assert observer.passed == pytest.approx(SOAK, abs=2)
    assert notes(path) == messages


@pytest.mark.parametrize("jump", [86400.0, -86400.0])
def test_the_clock_is_set_before_the_soak(path: Path, jump: float) -> None:
    """It is the time that counts by then."""
    observer = Observer()
    clock = Settable()
    hosts = Hosts(path.parent, SOAKS)
    with journal.writing(path, doing="test", wall=clock.wall) as writer:
        writer.begin(SOAKS)

        def observe(event: Event) -> None:
            observer.clock = clock
            observer.observe(event)
            if event.kind is Kind.END and event.data["step"] == Step.APPLY and event.host == "a":
                clock.offset += jump

        assert drive(writer, PLAN.id, hosts, clock=clock, hooks=Hooks(observe=observe)).finished
    assert observer.passed == pytest.approx(SOAK, abs=2)


def test_a_clock_that_creeps_is_followed(path: Path) -> None:
    """As time synchronization has it: nothing is said, and a soak is off by as much at most as it is."""
    observer = Observer()

    def at(clock: Settable) -> None:
        clock.offset += 0.01

    driven(path, observer, Settable(at))
    assert observer.passed == pytest.approx(SOAK, abs=4)
    assert notes(path) == []


@pytest.mark.parametrize("jump", [0.0, 86400.0, -86400.0])
@pytest.mark.parametrize(
    ("booted", "steady", "whole"),
    [("one", 1000.0 + 1e3, False), ("another", 20.0, True)],
    ids=["same boot", "after a reboot"],
)
def test_the_clock_is_set_between_two_drivers(path: Path, jump: float, booted: str, steady: float, whole: bool) -> None:
    """What passed between them counts where it can be measured; a soak is neither skipped nor waits for ever."""
    observer = Observer()

    class Killed(BaseException):
        pass

    def at(clock: Settable) -> None:
        if observer.begun is not None and clock.steady() > observer.begun + SOAK / 4:
            raise Killed

    with pytest.raises(Killed):
        driven(path, observer, first := Settable(at))
    assert observer.begun is not None
    passed = first.steady() - observer.begun
    second = Settable(booted=booted, steady=first.steady() + SOAK / 4 if not whole else steady)
    second.offset = first.wall() + SOAK / 4 + jump - second.steady()
    begin = second.steady()
    driven(path, observer, second)
    assert observer.judged is not None
    waited = observer.judged - begin
    assert waited == pytest.approx(SOAK if whole else SOAK - passed - SOAK / 4, abs=3)


def test_a_soak_is_paused_and_goes_on(path: Path) -> None:
    """Its time goes on while it is paused: the hosts are in work."""
    observer = Observer()

    class Killed(BaseException):
        pass

    def at(clock: Settable) -> None:
        if observer.begun is not None:
            raise Killed

    with pytest.raises(Killed):
        driven(path, observer, first := Settable(at))
    later = Settable(steady=first.steady() + 2 * SOAK)
    begin = later.steady()
    driven(path, observer, later, SOAKS, RolloutPaused("test"), RolloutResumed("test"))
    assert observer.judged == pytest.approx(begin, abs=2)
