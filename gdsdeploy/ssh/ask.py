"""Ask machines of a fleet one question, all at once: each reply is judged, and one machine's error is only its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from gdsdeploy import console
from gdsdeploy.errors import GdsError
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.ssh import machines, reach, transport
from gdsdeploy.ssh.endpoint import Answer, Endpoint, Files
from gdsdeploy.ssh.reach import Reach
from gdsdeploy.zipapp import hostapp

T = TypeVar("T")


def ask(
    fleet: Fleet,
    fleet_path: Path,
    names: Sequence[str],
    argv: Sequence[str],
    judge: Callable[[Answer], T],
    *,
    timeout: float,
    stdin: bytes | Mapping[str, bytes] = b"",
    program: bytes | Files | None = None,
    read_only: bool = False,
) -> Iterator[tuple[Answer, T | GdsError]]:
    """Run the host program with ``argv`` on the machines ``names``; each answer with its result or error, as it comes.

    judge: makes the result; ``Answer.require_document`` takes the document as it is.  timeout: seconds for each.
    stdin: the same for all, or by machine.  program: the zipapp, where it was packed before;
    or files that are read without it.  read_only: of transport.fan_out.
    Raises what transport.fan_out raises, and FleetInvalid where two names are one endpoint, before it connects to the
    second of them.
    """
    distinct = machines.Distinct(names, fleet_path)
    ways = reach.reaches(fleet, fleet_path.resolve().parent, names)
    hosts = [Reach(way.host, partial(_find, way, distinct)) for way in ways]
    answers = transport.fan_out(
        hosts, program or hostapp.build(), argv, timeout=timeout, stdin=stdin, read_only=read_only
    )
    return ((answer, judged(judge, answer)) for answer in _on_board(names, answers))


def _on_board(names: Sequence[str], answers: Iterator[Answer]) -> Iterator[Answer]:
    for name in names:
        console.board.begin(name, "hasn't answered yet,", timed=False)
    try:
        for answer in answers:
            console.board.end(answer.host)
            yield answer
    finally:
        for name in names:
            console.board.end(name)


def _find(way: Reach, distinct: machines.Distinct) -> Endpoint:
    return distinct.add(way.find())


def judged(judge: Callable[[Answer], T], answer: Answer) -> T | GdsError:
    """The result that ``judge`` makes of an answer, or the error that it raises."""
    try:
        return judge(answer)
    except GdsError as error:
        return error
