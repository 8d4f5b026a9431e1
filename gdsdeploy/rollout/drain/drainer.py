"""What every way of taking hosts out of work has in common, and how drains are signed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

#: How the reason of a rollout's drain begins; the boot gate's own begin with ``gdsdeploy: `` (host/gate/slurm.py).
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
