"""The root of an image as a host of the playbook: how Ansible enters it, and the variables in which it differs.

What only the kernel that will run can show is left out, and named: the first boot does it, and the gate judges it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from gdsdeploy.converge import boot
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.machine import Machine
from gdsdeploy.errors import FleetInvalid, GdsError, HostUnfit
from gdsdeploy.image.root import ImageRoot, ask, entered, open_root
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.ssh.endpoint import Answer
from gdsdeploy.ssh.transport import judged

T = TypeVar("T")


@dataclass(frozen=True)
class Left:
    """Something that isn't done in an image; ``kind`` as of a change."""

    kind: str
    subjects: tuple[str, ...]
    #: the sentence for people
    words: str


@dataclass(frozen=True)
class Image:
    """An open root, and the host of the fleet whose state it gets.

    enter: of :func:`entered`.  fleet: without the waivers of single hosts, whose checks are ``waivers``.
    """

    root: ImageRoot
    enter: tuple[str, ...]
    name: str
    fleet: Fleet
    waivers: Sequence[str] = ()

    def ask(
        self,
        names: Sequence[str],
        argv: Sequence[str],
        judge: Callable[[Answer], T],
        *,
        stdin: Mapping[str, bytes],
        program: bytes,
    ) -> Iterator[tuple[Answer, T | GdsError]]:
        """As :func:`gdsdeploy.ssh.transport.ask` does with machines."""
        for name in names:
            begin = time.monotonic()
            document = failure = None
            try:
                document = ask(self.root, self.enter, argv, stdin[name], program)
            except HostUnfit as error:
                failure = error
            answer = Answer(name, document, failure, time.monotonic() - begin)
            yield answer, judged(judge, answer)

    def connection(self) -> dict[str, Any]:
        """Ansible's variables with which it enters the root."""
        return {
            "ansible_connection": "gdsdeploy.gds.root",
            "ansible_root_enter": list(self.enter),
            "ansible_become": False,
            # A folder in memory, which ends with the run.
            "ansible_remote_tmp": "/tmp",  # noqa: S108 # nosec B108
        }

    def refusal(self, plan: HostPlan) -> GdsError | None:
        """Why the image isn't provisioned with this plan, where a host would be."""
        if plan.refusals:
            hint = next((one.hint for one in plan.refusals if one.hint), None)
            return HostUnfit(f"{self.root.path}: {plan.refusal}", hint=hint)
        signing = self.fleet.profiles[self.fleet.hosts[self.name].profile].signing
        if plan.supply is not None and plan.supply.mode == "build" and signing is not None:
            hint = "Provision a machine that builds for this profile first: the image then receives its modules"
            words = "its profile signs modules, and the key must not be in an image"
            return HostUnfit(f"{self.root.path}: can't build the modules: {words}", hint=hint)
        return None

    def left(self, machine: Machine) -> list[Left]:
        """What is left to the first boot, to whom boots the hosts, and to a later provision.  machine: the host."""
        profile, release, arguments = machine.profile, machine.release, tuple(boot.arguments(machine.profile))
        modules = (*machine.loads, *machine.peermem)
        missing = "" if self.root.has_loader else ": no boot loader is set up in the image"
        entries = [
            Left("load", modules, f"the first boot loads {', '.join(modules)}"),
            Left("reboot", (release,), f"the first boot has to be of kernel {release}{missing}"),
        ]
        if missing and arguments:
            words = f"what boots the hosts has to pass the kernel's arguments: {' '.join(arguments)}"
            entries.append(Left("arguments", arguments, words))
        if profile.signing is not None:
            key = profile.signing.certificate
            words = f"on each host with Secure Boot a person enrols the key {key}: gdsdeploy provision begins that"
            entries.append(Left("enrol", (key,), words))
        if not profile.own_kernel:
            entries = []
        if self.waivers:
            words = f"waivers of single hosts aren't part of it: {', '.join(self.waivers)}"
            entries.append(Left("waiver", tuple(self.waivers), words))
        return [*entries, Left("gate", (), "the gate judges the first boot")] if profile.gate.enabled else entries

    def to_json(self, lock: Lock) -> dict[str, Any]:
        """What is said about the image in an answer for machines."""
        left = self.left(Machine(self.fleet, lock, self.name))
        return {"root": str(self.root.path), "left": [asdict(entry) for entry in left]}


@contextlib.contextmanager
def open_image(fleet: Fleet, lock: Lock, name: str, folder: Path, *, changes: bool) -> Iterator[Image]:
    """Lock the root ``folder`` for the block, and enter it; changes: whether programs may change it.

    Raises FleetInvalid where there can be no image for the host ``name``, and what open_root and entered raise.
    """
    shared, waivers = fleet_of_image(fleet, name)
    with open_root(folder, lock.targets[fleet.hosts[name].profile].os) as root, entered(root, changes=changes) as enter:
        yield Image(root, enter, name, shared, waivers)


def fleet_of_image(fleet: Fleet, name: str) -> tuple[Fleet, list[str]]:
    """The fleet with the waivers that hold for every host like ``name``, and the checks of its other waivers.

    Raises FleetInvalid if there can be no image for ``name``.
    """
    if name not in fleet.hosts:
        raise FleetInvalid(f"{name} is a builder, and images are for hosts", hint="Name a host with --limit")
    profile = fleet.hosts[name].profile
    if fleet.profiles[profile].fit is not None:
        raise FleetInvalid(
            f"profile {profile} fits cufile.json to each host (fit), and an image has one for all of them",
            hint="Leave fit out of the image's profile, and provision the hosts with fit once they have booted",
        )
    alike = [other for other, host in fleet.hosts.items() if host.profile == profile]
    shared = [one for one in fleet.waivers if all(_holds(one.hosts, other) for other in alike)]
    single = [one.check for one in fleet.waivers if one not in shared and _holds(one.hosts, name)]
    return fleet.model_copy(update={"waivers": tuple(shared)}), single


def _holds(patterns: Sequence[str], name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
