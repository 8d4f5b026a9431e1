"""Finds names of a fleet that are one machine, which gdsdeploy would change twice.

Two names with the same login, address and port are one machine, whether or not it answers.  So are two names that
answer from the same boot.  A machine id proves less, because cloned images share it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gdsdeploy.errors import FleetInvalid, GdsError
from gdsdeploy.files import yamlfile
from gdsdeploy.model import hostnames
from gdsdeploy.ssh.endpoint import Endpoint

_HINT = "Remove one of the names from the fleet file, or correct its address"


@dataclass(frozen=True)
class Identity:
    """As host/boot/present.py has it; each is empty where the host doesn't know it."""

    boot_id: str = ""
    #: a digest of it
    machine_id: str = ""


def identity_from(value: object) -> Identity:
    """The identity in a host's answer, which may be anything."""
    if not isinstance(value, Mapping):
        return Identity()
    texts = [value.get(key) for key in ("boot_id", "machine_id")]
    boot_id, machine_id = (text.strip() if isinstance(text, str) and len(text) <= 64 else "" for text in texts)
    return Identity(boot_id, machine_id)


class Distinct:
    """The ways to the machines ``names`` that are known so far; threads may share it."""

    def __init__(self, names: Sequence[str], fleet_path: Path) -> None:
        self._order = {name: number for number, name in enumerate(names)}
        self._fleet_path = fleet_path
        self._lock = threading.Lock()
        self._ends: dict[Hashable, Endpoint] = {}

    def add(self, end: Endpoint) -> Endpoint:
        """The same endpoint; raises FleetInvalid if another name is reached in this way."""
        with self._lock:
            other = self._ends.setdefault((end.address.lower(), end.port, end.user, end.proxy), end)
        if other.host != end.host:
            names = sorted((other.host, end.host), key=self._order.__getitem__)
            first = other if other.host == names[0] else end
            reason = f"are {first.user}@{first.address}, port {first.port}"
            raise same_machine(names, reason, self._fleet_path)
        return end


def require_machines(identities: Mapping[str, Identity], fleet_path: Path, warn: Callable[[str], None]) -> None:
    """Raise FleetInvalid where two names answer from the same boot; ``warn`` of cloned machine ids."""
    if messages := [error.message for error in same_boot(identities, fleet_path).values()]:
        raise FleetInvalid("\n".join(messages), hint=_HINT)
    for words in clones(identities):
        warn(words)


def same_boot(identities: Mapping[str, Identity], fleet_path: Path) -> dict[tuple[str, ...], FleetInvalid]:
    """Names that answer from the same boot → the error that names them."""
    boots = {name: identity.boot_id for name, identity in identities.items() if identity.boot_id}
    return {
        names: same_machine(names, f"answer from the boot {ascii(boots[names[0]])[1:-1]}", fleet_path)
        for names in shared(boots)
    }


def clones(identities: Mapping[str, Identity]) -> list[str]:
    """A warning for each machine id that several machines have."""
    machine_ids = {name: identity.machine_id for name, identity in identities.items() if identity.machine_id}
    return [
        f"cloned machine id: {hostnames.words(names)} have the same /etc/machine-id; give each its own:"
        " rm /etc/machine-id && systemd-machine-id-setup, then reboot"
        for names in shared(machine_ids)
        if len({identities[name].boot_id for name in names}) > 1
    ]


def same_machine(names: Sequence[str], reason: str, fleet_path: Path) -> FleetInvalid:
    """The error for names that are one machine, with the place of each in the fleet file.

    reason: continues "both" or "all".
    """
    lines = _places(fleet_path)
    places = [f"\n  {fleet_path}:{lines[name]}: {name}" if name in lines else f"\n  {name}" for name in names]
    they = "both" if len(names) == 2 else "all"
    return FleetInvalid(f"{' and '.join(names)} are one machine: {they} {reason}{''.join(places)}", hint=_HINT)


def shared(values: Mapping[str, Hashable]) -> list[tuple[str, ...]]:
    """Groups of names that have the same value, the largest first."""
    return [tuple(names) for names in hostnames.grouped(values.items()).values() if len(names) > 1]


def _places(fleet_path: Path) -> dict[str, int]:
    """Line of each machine's name; empty where the file can't be read any more."""
    try:
        root: Any = yamlfile.read(fleet_path, error=FleetInvalid).root
    except GdsError:
        return {}
    return {
        name.value: name.start_mark.line + 1
        for section, machines in (root.value if isinstance(root, yaml.MappingNode) else [])
        if section.value in ("builders", "hosts") and isinstance(machines, yaml.MappingNode)
        for name, _ in machines.value
    }
