"""What every way of taking hosts out of work has in common: how drains are signed, and how clients are run."""

from __future__ import annotations

import abc
import re
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import ClassVar, Generic, ParamSpec, Protocol, TypedDict, TypeVar

from gdsdeploy import cancel, run
from gdsdeploy.cancel import Stop
from gdsdeploy.errors import DrainFailed, FleetInvalid, GdsError, Interrupted
from gdsdeploy.host.io.scontrol import FORMAT
from gdsdeploy.host.io.wording import first_few, line, quoted

#: How the reason of a rollout's drain begins; the boot gate's own begin with ``gdsdeploy: `` (host/gate/gate.py).
ROLLOUT = "gdsdeploy rollout "
#: Gets one line of text at a time.
Progress = Callable[[str], None]


def reason_of(rollout: str, text: str) -> str:
    """The reason with which the rollout of that id signs its drains, in one line: ``gdsdeploy rollout ID: text``."""
    return " ".join(f"{ROLLOUT}{rollout}: {text}".split())


def signature(reason: str) -> str:
    """The part of such a reason that names the rollout, ``gdsdeploy rollout ID:``; any other text as it is."""
    match = re.match(rf"{ROLLOUT}\S+:", reason)
    return match[0] if match else reason


def rollout_of(reason: str) -> str:
    """The id of the rollout that signed ``reason``; empty: no rollout did."""
    return signature(reason).removeprefix(ROLLOUT).removesuffix(":") if reason.startswith(ROLLOUT) else ""


@dataclass(frozen=True)
class State:
    """A host as its scheduler has it."""

    #: it gets no new work, whatever drained it
    out: bool
    #: empty: the scheduler has none
    reason: str = ""


class DrainResult(TypedDict):
    """How a drain ended."""

    #: False: another drain keeps the host out, and was left as it is
    drained: bool
    #: as the scheduler has it
    reason: str
    #: the host's reason if it was out before, else empty
    was: str


class ReturnResult(TypedDict):
    """How a host's return ended."""

    #: whether it gets work now
    returned: bool
    #: why it stays out, else empty
    reason: str


class Drainer(Protocol):
    """One way of taking hosts out of work.  ``host`` is always its name in the fleet file.

    Several threads call methods at once, for different hosts.  A method that is called again, or after it was
    interrupted, comes to the same end.  ``reason`` is one of :func:`reason_of`.  A wish to stop ends what waits, with
    Interrupted.
    """

    def check(self, hosts: Sequence[str]) -> list[str]:
        """Before a rollout begins: each objection in one line; changes nothing, and raises nothing else.

        The scheduler has to answer, to let this user drain, and to know every host.
        """
        ...

    def states(self, hosts: Sequence[str]) -> dict[str, State]:
        """Host → state, without hosts that the scheduler doesn't know.  Raises DrainFailed."""
        ...

    def drain(self, host: str, reason: str, *, timeout: float, progress: Progress) -> DrainResult:
        """Take ``host`` out of work, and wait until no work is left on it.

        timeout: seconds.  Raises DrainFailed past ``timeout``, with what still runs, and where the scheduler refuses;
        the drain then stays, for :meth:`undrain`.
        """
        ...

    def undrain(self, host: str, reason: str, *, progress: Progress) -> ReturnResult:
        """End the drain that ``reason`` signs; any other drain stays, and is no error.

        Raises DrainFailed where the scheduler doesn't answer or refuses.
        """
        ...


class Nothing:
    """Every host is in work, and every drain is done at once."""

    def check(self, hosts: Sequence[str]) -> list[str]:  # noqa: ARG002 - there is no program to ask
        return []

    def states(self, hosts: Sequence[str]) -> dict[str, State]:
        return {host: State(out=False) for host in hosts}

    def drain(self, host: str, reason: str, *, timeout: float, progress: Progress) -> DrainResult:  # noqa: ARG002
        return {"drained": True, "reason": reason, "was": ""}

    def undrain(self, host: str, reason: str, *, progress: Progress) -> ReturnResult:  # noqa: ARG002
        return {"returned": True, "reason": ""}


#: Seconds that one question may take.
SECONDS = 60.0
#: Seconds for which a scheduler that doesn't answer is asked again; a failover takes less.
PATIENCE = 180.0
#: The output is parsed, so the user's language and formats don't apply.
ENVIRONMENT = {"LC_ALL": "C", **FORMAT}
#: Lines of a failed program's output that are quoted.
TAIL = 25
#: Names that a message lists.
LISTED = 5

T = TypeVar("T")
N = TypeVar("N")
P = ParamSpec("P")


class Cluster(abc.ABC, Generic[N]):
    """Nodes of one cluster, which a client program shows and changes.

    program: ``[kubectl, --context, prod]`` or ``[ssh, head, scontrol]``; raises FleetInvalid where it doesn't name the
    client.  name: of a host's node, with ``{host}``.  folder: where programs start.
    pause: seconds between two looks at a node.  patience: seconds, as PATIENCE.
    """

    #: file name of the client
    client: ClassVar[str]
    #: seconds between two looks at a node
    pause: ClassVar[float]
    #: errors that another try doesn't change
    lasting: ClassVar[re.Pattern[str]]

    def __init__(
        self, program: Sequence[str], name: str, folder: Path, *, pause: float | None = None, patience: float = PATIENCE
    ) -> None:
        if not any(PurePath(word).name == self.client for word in program):
            raise FleetInvalid(
                f"rollout.drain.program does not name {self.client}: {shlex.join(program)}",
                hint=f"It is {self.client} and what runs it, for example [ssh, head, {self.client}].",
            )
        self._words, self._name, self._folder, self._patience = list(program), name, folder, patience
        self._pause = self.pause if pause is None else pause

    def states(self, hosts: Sequence[str]) -> dict[str, State]:
        """As Drainer.states: one call for all nodes, and no second try, because a user waits for the plan."""
        nodes = self._nodes()
        return {host: self._state(nodes[name]) for host in hosts if (name := self._node(host)) in nodes}

    @abc.abstractmethod
    def _nodes(self) -> Mapping[str, N]:
        """Name → node."""

    @abc.abstractmethod
    def _state(self, node: N) -> State:
        """Whether the node gets work."""

    def _argv(self, argv: Sequence[str], beside: str = "") -> list[str]:
        """The whole command; ``beside``: a program in the same folder that runs instead."""
        name = re.compile(re.escape(self.client) + "$")
        words = [
            name.sub(beside, word) if beside and PurePath(word).name == self.client else word for word in self._words
        ]
        # ssh joins its words, and a shell splits them again.
        remote = any(PurePath(word).name == "ssh" for word in words)
        return [*words, *(shlex.quote(word) if remote else word for word in argv)]

    def _ask(self, argv: Sequence[str], doing: str, *, beside: str = "", ok: Sequence[int] = (0,)) -> run.Completed:
        """Run it with ``argv``; raises DrainFailed with its output."""
        command = self._argv(argv, beside)
        try:
            return run.run(command, doing=doing, ok=ok, timeout=SECONDS, cwd=self._folder, env=ENVIRONMENT)
        except GdsError as error:
            raise DrainFailed(error.message, hint=self._hint) from error

    @property
    def _hint(self) -> str:
        return f"{shlex.join(self._words)} has to work on this machine (rollout.drain.program says what it is)."

    def _node(self, host: str) -> str:
        return self._name.replace("{host}", host)

    def _unknown(self, names: Sequence[str]) -> str:
        return f"{type(self).__name__} knows no node {first_few(names, LISTED)}"

    def _patiently(self, ask: Callable[P, T], *words: P.args, **options: P.kwargs) -> T:
        """What ``ask`` returns; it's called again for a while, since a scheduler may be away for a moment."""
        end = time.monotonic() + self._patience
        while True:
            try:
                return ask(*words, **options)
            except DrainFailed as error:
                if self.lasting.search(error.message) or time.monotonic() >= end:
                    raise
            cancel.current().wait(self._pause)


class Deadline:
    """When a drain of ``host`` has to be over.  timeout: seconds from now on.  pause: seconds between two looks."""

    def __init__(self, host: str, timeout: float, pause: float, progress: Progress) -> None:
        self._host, self._timeout, self._pause, self._progress = host, timeout, pause, progress
        self._end = time.monotonic() + timeout
        self._last = ""

    @property
    def left(self) -> float:
        """Seconds until then, at least one."""
        return max(1.0, self._end - time.monotonic())

    @property
    def past(self) -> bool:
        return time.monotonic() >= self._end

    def failed(self, text: str, hint: str) -> DrainFailed:
        """The error of a host that still has work."""
        return DrainFailed(
            f"{self._host} is not free of work after {self._timeout:.0f} s of draining: {text}", hint=hint
        )

    def wait(self, text: str = "") -> None:
        """Report ``text`` unless it's the last one again, and pause; a wish to stop raises Interrupted."""
        if text not in ("", self._last):
            self._progress(text)
            self._last = text
        cancel.current().wait(max(0.0, min(self._pause, self._end - time.monotonic())))


def last(argv: Sequence[str], doing: str, seconds: float, folder: Path, line: Progress) -> tuple[int, list[str]]:
    """Run what may take long: its exit status and output, each line of which goes to ``line``.

    Raises DrainFailed where it can't be started, or is ended after ``seconds``; Interrupted after a wish to stop.
    """
    lines: list[str] = []
    outer, limit = cancel.current(), Stop()

    def take(text: str) -> None:
        lines.append(text)
        line(text)

    timer = threading.Timer(seconds, limit.request)
    timer.daemon = True
    timer.start()
    try:
        with outer.ending(limit.request), limit.scope():
            return run.stream(argv, doing=doing, line=take, cwd=folder), lines
    except Interrupted:
        outer.check()
        raise DrainFailed(failure(f"cannot {doing}: no end after {seconds:.0f} s", argv, lines)) from None
    except (GdsError, OSError) as error:
        raise DrainFailed(f"cannot {doing}: {error}") from error
    finally:
        timer.cancel()


def failure(text: str, argv: Sequence[str], lines: Sequence[str]) -> str:
    """``text``, the command and the end of its output, laid out as ``run`` does."""
    return "\n".join([quoted(text), f"  $ {shlex.join(argv)}", *(f"  | {line(words)}" for words in lines[-TAIL:])])
