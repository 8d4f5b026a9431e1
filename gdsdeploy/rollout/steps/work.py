"""One step's surroundings: which machine, towards which lock, and how its program is asked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gdsdeploy import cancel
from gdsdeploy.errors import (
    Busy,
    ConvergeFailed,
    GdsError,
    HostUnfit,
    HostUnreachable,
    ModuleBuildFailed,
    RebootFailed,
    all_errors,
)
from gdsdeploy.lock.releases import Release
from gdsdeploy.model.events import Facts, read
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Lock, Target
from gdsdeploy.model.rollout import Task
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout.drain import Drainer
from gdsdeploy.rollout.steps.answers import Question, S
from gdsdeploy.ssh.ask import ask
from gdsdeploy.ssh.endpoint import Answer, refusal
from gdsdeploy.zipapp import hostapp

#: Seconds for one question to the program on a host; digests of some hundred megabytes are in some of them.
TIMEOUT = 300.0
#: How often a host that does not answer is asked; one that let us wait for so many seconds is not asked again.
TRIES, HANGS = 3, 60.0
#: What the program on the host calls a refusal → the error of ours; any other is a fault of the host.
_KINDS: Mapping[str, type[GdsError]] = {
    "busy": Busy,
    "packages-busy": HostUnfit,
    "packages-broken": HostUnfit,
    "space": HostUnfit,
    "inhibited": RebootFailed,
    "systemd": RebootFailed,
    "once": RebootFailed,
    "audit": ModuleBuildFailed,
}


@dataclass(frozen=True)
class Patience:
    """Seconds that things may take which end by themselves; tests have less of it."""

    #: another program holds the package manager's lock, or another run keeps the host
    packages: float = 300.0
    #: between two looks at a host that is awaited
    poll: float = 3.0
    #: one attempt to reach it meanwhile
    knock: float = 20.0
    #: services that start after sshd has answered
    settle: float = 180.0
    #: a validation under load needs more than one that looks only
    validation: float = 600.0


@dataclass(frozen=True)
class Work:
    """Everything that performing one step of one machine needs; ``fleet`` holds hardly more than that machine."""

    task: Task
    fleet: Fleet
    lock: Lock
    fleet_path: Path
    settings: Rollout
    #: of the rollout, as its plan has it
    rollout: str
    drainer: Drainer
    #: where whole outputs of programs go
    logs: Path
    progress: Callable[[str], None]
    #: the whole fleet as it was planned
    everyone: Fleet
    patience: Patience = field(default_factory=Patience)
    #: where it is written down that the machine has this lock; None: nowhere
    release: Release | None = None

    @property
    def name(self) -> str:
        return self.task.host

    @functools.cached_property
    def facts(self) -> Facts:
        """What earlier steps found."""
        return read(Facts, self.task.known)

    @property
    def is_builder(self) -> bool:
        return self.name in self.fleet.builders

    @property
    def profile(self) -> Profile:
        return self.fleet.profiles[self.fleet.everyone()[self.name].profile]

    @property
    def target(self) -> Target:
        return self.lock.targets[self.fleet.everyone()[self.name].profile]

    @property
    def has_kernel(self) -> bool:
        """Whether the machine runs the kernel of its lock; no builder does, and no container."""
        return not self.is_builder and self.profile.own_kernel

    def towards(self, release: Release) -> Work:
        """The same work towards another lock, with the fleet that belonged to it; raises RolloutRefused."""
        fleet = release.for_host(self.name, self.everyone)
        return replace(self, fleet=alone(fleet, self.name), lock=release.lock, release=release)

    def say(self, text: str) -> None:
        self.progress(text)

    def ask(
        self, question: Question[S], *options: str, stdin: bytes = b"", timeout: float = TIMEOUT, tries: int = TRIES
    ) -> S:
        """What the program on the host answers to ``question`` with ``options``; any question can be asked twice.

        Raises HostUnreachable, HostKeyMismatch and HostUnfit where there is no answer, or one that isn't what its
        question asks for; where the host refuses, the error that its answer names.
        """
        argv = [*question.words, *options, "--json"]
        send = partial(ask, self.fleet, self.fleet_path, [self.name], argv, Answer.require_document)
        for left in range(tries - 1, -1, -1):
            ((answer, _),) = send(timeout=timeout, stdin=stdin, program=program())
            if not isinstance(answer.error, HostUnreachable) or not left or answer.seconds > HANGS:
                break
            # A rollout is not taken back for a moment without a network.
            self.wait(self.patience.poll)
        document = answer.require_document()
        error = document.get("error")
        if isinstance(error, Mapping):
            raise refusal(self.name, error, _KINDS.get(str(error.get("kind", "")), ConvergeFailed))
        return question.read(self.name, document)

    def wait(self, seconds: float) -> None:
        """Pause; raises Interrupted when the rollout is to stop."""
        cancel.current().wait(seconds)


@functools.cache
def program() -> bytes:
    """The host program; built once, as one rollout asks many times."""
    return hostapp.build()


def alone(fleet: Fleet, name: str) -> Fleet:
    """``fleet`` with no machine but ``name``: rendering all of them for each step of each would take squared time.

    A profile that signs needs all addresses, by which its key is told from another fleet's.
    """
    return fleet if fleet.profiles[fleet.everyone()[name].profile].signing is not None else fleet.alone(name)


def error_named(kind: str) -> type[GdsError]:
    """The class of an error by its name; GdsError itself for one that is not known."""
    return {error.__name__: error for error in all_errors()}.get(kind, GdsError)
