"""What a step works with: the machine, the lock, and the program on the host.

One run at a time changes a host: a step waits for another run, and the end of a rollout releases its hosts.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gdsdeploy import cancel, console
from gdsdeploy.converge.machine import Machine
from gdsdeploy.errors import (
    Busy,
    ControllerUnfit,
    ConvergeFailed,
    GdsError,
    HostUnfit,
    HostUnreachable,
    Interrupted,
    ModuleBuildFailed,
    RebootFailed,
)
from gdsdeploy.lock.releases import Release
from gdsdeploy.model.events import Facts
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.model.rollout import Standing, Task
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.model.text import read
from gdsdeploy.rollout.drain import Drainer, reason_of
from gdsdeploy.rollout.steps import answers
from gdsdeploy.rollout.steps.answers import Question, S, Status
from gdsdeploy.ssh.endpoint import Answer, refusal
from gdsdeploy.ssh.transport import ask
from gdsdeploy.zipapp import hostapp

#: Seconds for one question to the program on a host; some answers digest several hundred megabytes.
TIMEOUT = 300.0
#: Tries for a host that doesn't answer; one that took so many seconds isn't asked again.
TRIES, HANGS = 3, 60.0
#: Kind of a refusal by the program on the host → error class; by default ConvergeFailed.
_KINDS: Mapping[str, type[GdsError]] = {
    "busy": Busy, "packages-busy": HostUnfit, "packages-broken": HostUnfit, "space": HostUnfit,
    "inhibited": RebootFailed, "systemd": RebootFailed, "once": RebootFailed, "audit": ModuleBuildFailed,
}  # fmt: skip


class InWork(Exception):
    """A step would disturb the host's work, and has done nothing."""


@dataclass(frozen=True)
class Patience:
    """Seconds to wait; tests set less."""

    #: while another program holds the package manager's lock, or another run keeps the host
    packages: float = 300.0
    #: between two looks at a host
    poll: float = 3.0
    #: for the first question to a host that reboots; one that is up and slow gets more each time
    knock: float = 20.0
    #: for services that start after sshd
    settle: float = 180.0
    #: for a validation, which may read under load
    validation: float = 600.0


@dataclass(frozen=True)
class Work:
    """Everything that one step of one machine needs; ``fleet`` holds little more than that machine."""

    task: Task
    fleet: Fleet
    lock: Lock
    fleet_path: Path
    settings: Rollout
    #: of the rollout, as its plan has it
    rollout: str
    drainer: Drainer
    #: folder for whole outputs of programs
    logs: Path
    #: gets one line of progress at a time
    say: Callable[[str], None]
    #: the whole fleet as it was planned
    everyone: Fleet
    patience: Patience = field(default_factory=Patience)
    #: gets what a person has to do now, which is shown whatever the display
    announce: Callable[[str], None] = console.say
    #: hosts at whose consoles a person enrols a key
    consoles: frozenset[str] = frozenset()
    #: records that the machine has this lock; None: no record
    release: Release | None = None

    @property
    def name(self) -> str:
        return self.task.host

    @functools.cached_property
    def facts(self) -> Facts:
        """What earlier steps found."""
        return read(Facts, self.task.data)

    @property
    def is_builder(self) -> bool:
        return self.name in self.fleet.builders

    @property
    def console(self) -> bool:
        """Whether a person enrols a key at the machine's console."""
        return self.name in self.consoles

    @functools.cached_property
    def machine(self) -> Machine:
        """The machine, without what a run has for it."""
        return Machine(self.fleet, self.lock, self.name)

    def standing(self) -> Standing:
        """Who keeps the host out of work now; raises DrainFailed and SchedulerAway."""
        if self.is_builder:
            return Standing.OURS
        return self.drainer.look(self.name, reason_of(self.rollout, ""))

    def require_out(self) -> None:
        """Called right before whatever would disturb work; raises InWork, DrainFailed and SchedulerAway."""
        if self.standing() is Standing.WORKS:
            raise InWork

    def towards(self, release: Release) -> Work:
        """The same work towards another lock, with the fleet that belonged to it; raises RolloutRefused."""
        fleet = release.for_host(self.name, self.everyone)
        return replace(self, fleet=alone(fleet, self.name), lock=release.lock, release=release)

    def ask(
        self, question: Question[S], *options: str, stdin: bytes = b"", timeout: float = TIMEOUT, tries: int = TRIES
    ) -> S:
        """The host program's answer to ``question`` with ``options``; any question can be asked twice.

        Raises HostUnreachable, HostKeyMismatch, HostUnfit for another shape of answer, and the error of a refusal.
        """
        argv = [*question.words, *options, "--json"]
        send = partial(ask, self.fleet, self.fleet_path, [self.name], argv, Answer.require_document)
        for left in range(tries - 1, -1, -1):
            ((answer, _),) = send(timeout=timeout, stdin=stdin, program=program())
            if not isinstance(answer.error, HostUnreachable | ControllerUnfit) or not left or answer.seconds > HANGS:
                break
            # A moment without a network must not roll back a host.
            self.wait(self.patience.poll)
        document = answer.require_document()
        error = document.get("error")
        if isinstance(error, Mapping):
            raise refusal(self.name, error, _KINDS.get(str(error.get("kind", "")), ConvergeFailed))
        return question.read(self.name, document)

    def attempts(self, seconds: float) -> Iterator[float]:
        """Seconds passed before each attempt, from 0 until ``seconds`` have."""
        waited, begin = 0.0, time.monotonic()
        while waited < seconds:
            yield waited
            self.wait(self.patience.poll)
            waited = max(waited + self.patience.poll, time.monotonic() - begin)
        yield waited

    def wait(self, seconds: float) -> None:
        """Pause; raises Interrupted when the rollout is to stop."""
        cancel.current().wait(seconds)


@functools.cache
def program() -> bytes:
    """The host program, built once for a rollout."""
    return hostapp.build()


def alone(fleet: Fleet, name: str) -> Fleet:
    """``fleet`` with only the machine ``name``: each step of each machine renders it.

    A profile that signs needs all addresses: they tell its key from another fleet's.
    """
    return fleet if fleet.profiles[fleet.machine(name).profile].signing is not None else fleet.alone(name)


def await_status(work: Work, seconds: float) -> Status:
    """The host's status as soon as it answers; raises the last error after ``seconds``.

    Every error is waited out: what answers while a host goes down or comes up may be a program that is being ended, an
    initramfs with another host key, or a sudo without its rules.
    """
    error: GdsError
    limit = max(work.patience.knock, 1.0)
    for _ in work.attempts(seconds):
        begin = time.monotonic()
        try:
            return work.ask(answers.STATUS, timeout=limit, tries=1)
        except Interrupted:
            raise
        except GdsError as caught:
            error = caught
        if time.monotonic() - begin >= limit:
            limit = min(2 * limit, TIMEOUT)
    words = f"no answer for {seconds:.0f} s" if isinstance(error, HostUnreachable) else f"after {seconds:.0f} s still"
    hint = error.hint
    if isinstance(error, HostUnreachable):
        hint = "Look at its console; a power cycle boots the kernel that it had before"
    raise type(error)(f"{work.name}: {words}: {error.message}", hint=hint)


#: Seconds to release a host; one that doesn't answer is free when its lease ends.
_RELEASE_SECONDS = 60.0


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


def release_host(work: Work) -> None:
    """Let other runs change the host."""
    with contextlib.suppress(GdsError):
        work.ask(answers.RELEASE, work.rollout, timeout=_RELEASE_SECONDS, tries=1)
