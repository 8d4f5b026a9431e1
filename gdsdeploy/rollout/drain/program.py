"""How the programs of schedulers are started: bounded, and ended early where that is wished."""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import ParamSpec, TypeVar

from gdsdeploy import cancel, run
from gdsdeploy.cancel import Stop
from gdsdeploy.errors import DrainFailed, FleetInvalid, GdsError, Interrupted
from gdsdeploy.host.gate.slurm import FORMAT

#: Seconds that one question may take.
SECONDS = 60.0
#: What programs say is read here, whatever their user likes better.
ENVIRONMENT = {"LC_ALL": "C", **FORMAT}
#: Lines of a failed program's output that are quoted.
TAIL = 25
#: Things that a message lists.
LISTED = 5

T = TypeVar("T")
P = ParamSpec("P")


class Program:
    """A scheduler's client, wherever the fleet file says that it runs.

    words: ``[kubectl, --context, prod]`` or ``[ssh, head, scontrol]``; ``name`` is the client's file name among them.
    Raises FleetInvalid where it is none of them.
    """

    def __init__(self, words: Sequence[str], name: str, folder: Path) -> None:
        if not any(PurePath(word).name == name for word in words):
            raise FleetInvalid(
                f"rollout.drain.program does not name {name}: {shlex.join(words)}",
                hint=f"It is {name} and what runs it, for example [ssh, head, {name}].",
            )
        self._words, self._name, self._folder = list(words), name, folder

    def argv(self, argv: Sequence[str], beside: str = "") -> list[str]:
        """The whole command; ``beside``: a program that lies beside it instead."""
        name = re.compile(re.escape(self._name) + "$")
        words = [
            name.sub(beside, word) if beside and PurePath(word).name == self._name else word for word in self._words
        ]
        # ssh joins its words, and a shell takes them apart.
        remote = any(PurePath(word).name == "ssh" for word in words)
        return [*words, *(shlex.quote(word) if remote else word for word in argv)]

    def ask(self, argv: Sequence[str], doing: str, *, beside: str = "", ok: Sequence[int] = (0,)) -> run.Completed:
        """Run it with ``argv``; raises DrainFailed with what it said."""
        command = self.argv(argv, beside)
        try:
            return run.run(command, doing=doing, ok=ok, timeout=SECONDS, cwd=self._folder, env=ENVIRONMENT)
        except GdsError as error:
            raise DrainFailed(error.message, hint=self.hint) from error

    @property
    def hint(self) -> str:
        return f"{shlex.join(self._words)} has to work on this machine (rollout.drain.program says what it is)."


def last(
    argv: Sequence[str], doing: str, seconds: float, folder: Path, line: Callable[[str], None]
) -> tuple[int, list[str]]:
    """Run what may take long: its exit status and output, each line of which is handed to ``line``.

    Raises DrainFailed where it cannot be started, or has not ended after ``seconds``; it is ended then, as it is by a
    wish to stop, with Interrupted.
    """
    lines: list[str] = []
    outer, limit = cancel.current(), Stop()

    def take(text: str) -> None:
        lines.append(text)
        line(text)

    timer = threading.Timer(seconds, limit.wish)
    timer.daemon = True
    timer.start()
    try:
        with outer.ending(limit.wish), limit.scope():
            return run.stream(argv, doing=doing, line=take, cwd=folder), lines
    except Interrupted:
        outer.check()
        raise DrainFailed(failure(f"cannot {doing}: no end after {seconds:.0f} s", argv, lines)) from None
    except (GdsError, OSError) as error:
        raise DrainFailed(f"cannot {doing}: {error}") from error
    finally:
        timer.cancel()


def failure(text: str, argv: Sequence[str], lines: Sequence[str]) -> str:
    """``text``, the command and the end of what it said, as ``run`` lays them out."""
    return "\n".join([text, f"  $ {shlex.join(argv)}", *(f"  | {line}" for line in lines[-TAIL:])])


class Patience:
    """Asks again, for a while, where a scheduler may only be away for a moment.

    seconds: for how long.  pause: seconds between.  lasting: what asking again does not change.
    """

    def __init__(self, seconds: float, pause: float, lasting: re.Pattern[str]) -> None:
        self._seconds, self._pause, self._lasting = seconds, pause, lasting

    def __call__(self, ask: Callable[P, T], *words: P.args, **options: P.kwargs) -> T:
        """The answer; raises what ``ask`` raises in the end."""
        end = time.monotonic() + self._seconds
        while True:
            try:
                return ask(*words, **options)
            except DrainFailed as error:
                if self._lasting.search(error.message) or time.monotonic() >= end:
                    raise
            cancel.current().wait(self._pause)


def listed(items: Sequence[str]) -> str:
    """The first few of them in one line."""
    more = f" and {len(items) - LISTED} more" if len(items) > LISTED else ""
    return ", ".join(items[:LISTED]) + more
