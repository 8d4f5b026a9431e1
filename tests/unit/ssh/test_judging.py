"""Answers of a large fleet are judged by several processes; the results are the same."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gdsdeploy.errors import GdsError, HostUnreachable, all_errors
from gdsdeploy.ssh import judging
from gdsdeploy.ssh.endpoint import Answer

HOSTS = judging.MANY + 20


@dataclass(frozen=True)
class Judge:
    """Refuses every tenth answer; in a process of its own, ``deadly`` ends that."""

    parent: int
    deadly: str = ""

    def __call__(self, answer: Answer) -> tuple[str, int]:
        if answer.host == self.deadly and os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        if answer.host.endswith("0"):
            raise HostUnreachable(f"{answer.host}: no answer", hint="Start it")
        return answer.host, os.getpid()


def answers() -> Iterator[Answer]:
    return (Answer(f"gpu{number}", {"number": number}, None, 0.1) for number in range(HOSTS))


def judged(judge: Judge) -> dict[str, object]:
    results = {answer.host: result for answer, result in judging.at_once(answers(), judge, HOSTS)}
    return {
        host: (str(result), result.hint) if isinstance(result, GdsError) else result[0]
        for host, result in results.items()
    }


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.usefixtures("two_processors")
def test_several_processes_judge_as_one_does() -> None:
    judge = Judge(os.getpid())
    processes = {
        result[1] for _, result in judging.at_once(answers(), judge, HOSTS) if not isinstance(result, GdsError)
    }
    assert os.getpid() not in processes
    alone = {answer.host: result for answer, result in judging.one_by_one(answers(), judge)}
    assert judged(judge).keys() == alone.keys()
    assert judged(judge)["gpu10"] == ("gpu10: no answer", "Start it")
    assert judged(judge)["gpu11"] == "gpu11"


@pytest.mark.usefixtures("two_processors")
def test_a_process_that_is_killed_loses_no_answer() -> None:
    assert judged(Judge(os.getpid(), deadly="gpu41")) == judged(Judge(os.getpid()))


@pytest.mark.usefixtures("two_processors")
def test_no_process_stays_when_the_rest_is_not_needed() -> None:
    results = judging.at_once(answers(), Judge(os.getpid()), HOSTS)
    next(results)
    results.close()
    for process in multiprocessing.active_children():
        process.join(10)
    assert multiprocessing.active_children() == []


def test_a_small_fleet_is_judged_here() -> None:
    judge = Judge(os.getpid())
    (result,) = [each for _, each in judging.at_once(iter([Answer("gpu1", {}, None, 0.1)]), judge, 1)]
    assert result == ("gpu1", os.getpid())


@pytest.mark.parametrize("kind", list(all_errors()), ids=lambda kind: kind.__name__)
def test_every_error_can_be_sent(kind: type[GdsError]) -> None:
    sent = pickle.loads(pickle.dumps(kind("what is wrong", hint="the next step")))
    assert (type(sent), sent.message, sent.hint) == (kind, "what is wrong", "the next step")
