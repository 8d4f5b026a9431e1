"""What every way of taking hosts out of work has in common, and how drains are signed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: How the reason of a rollout's drain begins; the boot gate's own begin with ``gdsdeploy: `` (host/gate/slurm.py).
ROLLOUT = "gdsdeploy rollout "


def reason_of(rollout: str, text: str) -> str:
    """The reason with which the rollout of that id signs its drains, in one line: ``gdsdeploy rollout ID: text``."""
    return " ".join(f"{ROLLOUT}{rollout}: {text}".split())


def signature(reason: str) -> str:
    """The part of such a reason that says whose it is: ``gdsdeploy rollout ID:``; of any other text all of it."""
    found = re.match(rf"{ROLLOUT}\S+:", reason)
    return found[0] if found else reason


def rollout_of(reason: str) -> str:
    """The id of the rollout that signed ``reason``; empty where none did."""
    return signature(reason).removeprefix(ROLLOUT).removesuffix(":") if reason.startswith(ROLLOUT) else ""


@dataclass(frozen=True)
class State:
    """What a host's scheduler says of it.

    out: it gets no new work, whoever did that.  reason: as the scheduler has it, empty where it has none.
    """

    out: bool
    reason: str = ""


class Drainer(Protocol):
    """One way of taking hosts out of work.  ``host`` is always the fleet's name of it.

    Methods may be called by several threads at once, for different hosts.  Each may be called again after it was
    done, or was cut off half-way: it comes to the same end.  ``reason`` is one of :func:`reason_of`.  A wish to stop
    (``stopping``) ends what waits, with Interrupted.
    """

    def check(self, hosts: Sequence[str]) -> list[str]:
        """Before a rollout begins: what speaks against it, one line each; changes nothing.

        The scheduler answers, lets this user drain, and knows every host.  Raises nothing else.
        """
        ...

    def states(self, hosts: Sequence[str]) -> dict[str, State]:
        """What is out of work, and why; hosts that the scheduler does not know are left out of the answer.

        Raises DrainFailed where the scheduler cannot be asked.
        """
        ...

    def drain(self, host: str, reason: str, *, timeout: float, progress: Callable[[str], None]) -> Mapping[str, Any]:
        """Take ``host`` out of work, and wait until none is left on it.

        {"drained": whether the drain is this rollout's, "reason": as the scheduler has it, "was": its reason if it
        was out before, else ""}; not drained: somebody else's drain keeps it out, and was left as it is.
        timeout: seconds.  progress: gets one line of text at a time.  Raises DrainFailed past ``timeout``, with what
        still runs, and where the scheduler refuses; the drain then stays, for :meth:`undrain`.
        """
        ...

    def undrain(self, host: str, reason: str, *, progress: Callable[[str], None]) -> Mapping[str, Any]:
        """Bring ``host`` back if it is this rollout that keeps it out; only what ``reason`` is signed with counts.

        {"returned": whether it gets work now, "reason": why it stays out, else ""}.  A drain of somebody else stays,
        and is no error.  Raises DrainFailed where the scheduler cannot be asked or refuses.
        """
        ...
