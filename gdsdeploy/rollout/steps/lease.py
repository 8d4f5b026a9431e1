"""One run at a time changes a host: waiting for another run, and releasing the host."""

from __future__ import annotations

import contextlib

from gdsdeploy.converge.provision import Identity
from gdsdeploy.errors import Busy, GdsError, HostUnfit
from gdsdeploy.rollout.steps import answers
from gdsdeploy.rollout.steps.answers import Status
from gdsdeploy.rollout.steps.work import Work

#: Seconds to release a host; one that doesn't answer is free when its lease ends.
_SECONDS = 60.0


def identity(work: Work) -> Identity:
    """How hosts know this rollout, on any controller."""
    return Identity(work.rollout, f"{Identity.of('rollout').who} {work.rollout}")


def wait_until_free(work: Work) -> Status:
    """The host's status when no other run changes it; waits a while for one that does.

    Raises HostUnfit where a program keeps the package manager's lock, Busy where another run keeps the host.
    """
    for waited in work.attempts(work.patience.packages):
        status = work.ask(answers.STATUS)
        error = _find_obstacle(work, status)
        if error is None:
            return status
        if not waited:
            work.say(f"{error.message}; waiting")
    assert error is not None
    raise type(error)(f"{error.message}, for more than {waited:.0f} s", hint=error.hint)


def _find_obstacle(work: Work, status: Status) -> GdsError | None:
    keeper = status.apply
    # An earlier call of this rollout may still run after its connection broke.
    if keeper.works or (keeper.who and keeper.run != work.rollout):
        hint = "Wait until it ends, and begin again; on the host: gdsdeploy-host.pyz rollout status"
        return Busy(f"{work.name}: {keeper.who or 'another process'} is changing this host", hint=hint)
    for lock in status.packages.locks:
        holder = f"{lock.program or 'a program'} (process {lock.pid})"
        return HostUnfit(
            f"{work.name}: {holder} holds the lock of the package manager ({lock.path})",
            hint="See what it does there, and begin again when it has ended",
        )
    return None


def release(work: Work) -> None:
    """Let other runs change the host."""
    with contextlib.suppress(GdsError):
        work.ask(answers.RELEASE, work.rollout, timeout=_SECONDS, tries=1)
