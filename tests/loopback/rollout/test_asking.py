"""Questions to a host as steps ask them, over a real sshd on loopback: answers, refusals, and a broken way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.cancel import Stop
from gdsdeploy.errors import ConvergeFailed, HostUnreachable, Interrupted
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.model.rollout import Step, Task
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout.drain.base import Nothing
from gdsdeploy.rollout.steps import answers
from gdsdeploy.rollout.steps.work import Patience, Work, alone
from tests.loopback import loopback_sshd
from tests.loopback.loopback_fleet import LoopbackFleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackFleet]:
    folder = tmp_path_factory.mktemp("asking")
    server = loopback_sshd.start(folder)
    try:
        yield LoopbackFleet(folder, server, {"gpu1": {"profile": "right"}, "gpu2": {"profile": "right", "port": 1}})
    finally:
        server.stop()


def work(fleet: LoopbackFleet, host: str = "gpu1", poll: float = 0.05) -> Work:
    intent = load_fleet(fleet.path)
    return Work(
        task=Task(host, Step.PREFLIGHT),
        fleet=alone(intent, host),
        lock=lockfile.read(lockfile.beside(fleet.path)),
        fleet_path=fleet.path,
        settings=Rollout(),
        rollout="x",
        drainer=Nothing(),
        logs=Path("/nowhere"),
        say=lambda _: None,
        everyone=intent,
        patience=Patience(poll=poll),
    )


def test_an_answer_is_one_object(fleet: LoopbackFleet) -> None:
    answer = work(fleet).ask(answers.STATUS)
    assert answer.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert {"kernel", "lock_digest", "packages", "space", "once"} <= set(answer.model_dump())


def test_what_the_host_refuses_is_an_error_with_its_words(fleet: LoopbackFleet) -> None:
    with pytest.raises(ConvergeFailed, match="gpu1: this isn't a snapshot of version 1") as caught:
        work(fleet).ask(answers.COMPARE, "--with", "-", stdin=b"{}")
    assert caught.value.hint == "make one: gdsdeploy-host.pyz rollout snapshot --json"


def test_one_that_does_not_answer_is_asked_thrice(fleet: LoopbackFleet) -> None:
    waited: list[float] = []
    host = work(fleet, "gpu2")
    object.__setattr__(host, "wait", waited.append)
    with pytest.raises(HostUnreachable, match="gpu2"):
        host.ask(answers.STATUS)
    assert waited == [0.05, 0.05]


def test_a_wish_to_stop_ends_the_pause_between(fleet: LoopbackFleet) -> None:
    stop = Stop()
    threading.Timer(0.5, stop.request).start()
    with pytest.raises(Interrupted), stop.scope():
        work(fleet, "gpu2", poll=60).ask(answers.STATUS)


def test_a_fleet_of_one_has_that_one(fleet: LoopbackFleet) -> None:
    intent = load_fleet(fleet.path)
    assert list(alone(intent, "gpu2").everyone()) == ["gpu2"]
    assert alone(intent, "build1").builders.keys() == {"build1"}
