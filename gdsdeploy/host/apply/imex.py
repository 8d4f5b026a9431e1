"""The nodes file of IMEX: the addresses of the hosts that share GPU memory over NVLink.

IMEX guide, IMEX Service Config Options: ``IMEX_NODE_CONFIG_FILE`` is this path by default, with one address a line.
The service reads it when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, ClassVar, List, Sequence

from .. import derived
from ..derived import Thing
from ..errors import ApplyError, DesiredError
from ..paths import IMEX_NODES
from . import services
from .file_resource import FileResource, restoration_changes, restore, take_back
from .files import File
from .host import ManagedHost
from .model import RELOAD, Change, Words, writing

UNIT = "nvidia-imex.service"


@dataclass(frozen=True)
class Desired:
    """The IMEX domain of the host."""

    #: IP addresses of the hosts in the domain.  Empty: the host is in none, and a file of others stays.
    imex_nodes: List[str] = field(default_factory=list)


class Imex(FileResource[Desired]):
    """``/etc/nvidia-imex/nodes_config.cfg``; IMEX restarts where it runs with another one."""

    name = "imex"
    desired_type = Desired
    removal_rank = 55
    reverts = (IMEX_NODES,)
    kinds: ClassVar[Words] = {"restart": "restart {}"}
    reasons: ClassVar[Words] = {"nodes": "it runs with other nodes"}

    def desired_files(self, desired: Desired) -> List[File]:
        return [File.of(IMEX_NODES, text(desired.imex_nodes))] if desired.imex_nodes else []

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        """Also what takes back an earlier domain's file, and whether IMEX runs, where that decides about a restart."""
        _check(desired.imex_nodes)
        observed = super().observe(host, desired)
        observed["left"] = [] if desired.imex_nodes else restoration_changes(host, self.reverts)
        observed["due"] = derived.is_due(running(host), host.root)
        concerned = desired.imex_nodes or observed["left"] or observed["due"]
        observed["active"] = bool(concerned) and _is_active(host)
        return observed

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """The file, and the restart, which ends what programs share over NVLink."""
        changes: List[Change] = observed["left"] + super().changes(desired, observed, pending)
        if (changes or observed["due"]) and observed["active"]:
            changes.append(Change("restart", UNIT, "", "", "nodes", RELOAD))
        return changes

    def derives(self, host: ManagedHost, desired: Desired) -> Sequence[Thing]:
        return [running(host)] if _is_active(host) else []

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        if change.kind == "restart":
            services.systemctl(host, "restart", change.subject)
        elif change.reason in ("restore", "not-recorded"):
            take_back(host, change.subject)
        else:
            super().apply(host, desired, change)

    def revert(self, host: ManagedHost) -> List[Change]:
        """Restore the file; IMEX restarts with it where it runs, if it can."""
        restarts = restart_changes(host, differs=bool(restoration_changes(host, self.reverts)))
        if host.check:
            return restore(host, self.reverts) + restarts
        things = [running(host)] if restarts else []
        with writing(derived.PATH), derived.remaking(things, host.root, keep=False):
            changes = restore(host, self.reverts)
            if restarts:
                restart(host)
        return changes + restarts


def restart_changes(host: ManagedHost, *, differs: bool) -> List[Change]:
    """The restart where IMEX runs and has read other nodes, or will have, because they are about to differ."""
    is_due = _is_active(host) and (differs or derived.is_due(running(host), host.root))
    return [Change("restart", UNIT, "", "", "nodes", RELOAD)] if is_due else []


def restart(host: ManagedHost) -> None:
    """Have IMEX read the nodes from before; where it doesn't start with those, it has no domain.  Raises ApplyError."""
    try:
        services.systemctl(host, "restart", UNIT)
    except ApplyError as error:
        if _is_active(host):
            raise
        host.notes.append(error.message)


def running(host: ManagedHost) -> Thing:
    """IMEX with the nodes that it has read."""
    return services.running(host, UNIT, [IMEX_NODES])


def _is_active(host: ManagedHost) -> bool:
    return services.is_booted(host) and services.is_active(host, UNIT)


def text(nodes: Sequence[str]) -> str:
    """The text of the nodes file."""
    return "".join(f"{node}\n" for node in nodes)


def _check(nodes: Sequence[str]) -> None:
    for node in nodes:
        try:
            ip_address(node)
        except ValueError:
            raise DesiredError(f"imex.imex_nodes: {node!r} isn't an IP address") from None
