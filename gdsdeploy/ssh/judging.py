"""Judge answers as they come: in this process, or in several where a large fleet would hold one processor up."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from gdsdeploy.errors import GdsError
from gdsdeploy.ssh.endpoint import Answer

T = TypeVar("T")
Judge = Callable[[Answer], T]

#: Answers from which on several processes are faster: each of them begins to work after half a second.
MANY = 200
#: Answers that wait for each process: more would only need memory.
WAITING = 4
_judge: Judge[Any]


def one_by_one(answers: Iterator[Answer], judge: Judge[T]) -> Iterator[tuple[Answer, T | GdsError]]:
    """Each answer with its result or error, judged in this process."""
    return ((answer, _result(judge, answer)) for answer in answers)


def at_once(
    answers: Iterator[Answer], judge: Judge[T], hosts: int
) -> Generator[tuple[Answer, T | GdsError], None, None]:
    """The same, for ``hosts`` answers; for many of them, on every processor that this process may use.

    judge: can be pickled, as its results and errors can.
    """
    processes = len(os.sched_getaffinity(0))
    if hosts < MANY or processes == 1:
        yield from one_by_one(answers, judge)
        return
    # A process that has threads must not fork.
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (judge,)) as pool:
        pending: dict[Future[T | GdsError], Answer] = {}
        try:
            for answer in answers:
                try:
                    pending[pool.submit(_judge_here, answer)] = answer
                except BrokenProcessPool:
                    yield answer, _result(judge, answer)
                yield from _finished(pending, judge, least=len(pending) - WAITING * processes)
            yield from _finished(pending, judge, least=len(pending))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _finished(
    pending: dict[Future[T | GdsError], Answer], judge: Judge[T], *, least: int
) -> Iterator[tuple[Answer, T | GdsError]]:
    """Take what is judged out of ``pending``; wait until that is ``least``."""
    taken = 0
    while True:
        for future in [future for future in pending if future.done()]:
            answer, taken = pending.pop(future), taken + 1
            try:
                yield answer, future.result()
            except BrokenProcessPool:
                # The kernel has killed one for want of memory; this process goes on alone.
                yield answer, _result(judge, answer)
        if taken >= least:
            return
        wait(pending, return_when=FIRST_COMPLETED)


def _begin(judge: Judge[Any]) -> None:
    """In a new process; Ctrl-C is for the one that asked."""
    global _judge
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _judge = judge
    # What has been imported stays, and needn't be looked through again and again.
    gc.freeze()


def _judge_here(answer: Answer) -> Any:
    return _result(_judge, answer)


def _result(judge: Judge[T], answer: Answer) -> T | GdsError:
    try:
        return judge(answer)
    except GdsError as error:
        return error
