"""The service that writes metrics of I/O through cuFile: docs/watch.md."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, List, Sequence

from .. import derived
from ..derived import Thing
from ..io.prometheus import places
from ..paths import WATCH_METRICS, WATCH_STATE
from . import services
from .host import ManagedHost
from .model import Change, Refusal, Words
from .program import COMMAND

UNIT = "gds-watch.service"
#: What a unit file takes for itself alone.
_PATH = re.compile(r"/[\w./+@=-]*")


@dataclass(frozen=True)
class Desired:
    """Whether this host has the service, and how it looks."""

    #: Whether this host has the service; ``false`` removes it.
    enabled: bool = True
    #: Seconds between two looks at the processes.
    every: int = 30
    #: Folder of node_exporter's textfile collector.  Empty for the usual ones.
    metrics: str = ""


class Watch(services.UnitResource[Desired]):
    """An enabled unit that runs, or none."""

    name = "watch"
    desired_type = Desired
    removal_rank = 25
    reasons: ClassVar[Words] = {"stopped": "it doesn't run"}
    unit = UNIT

    def unit_text(self, desired: Desired) -> str:
        return unit(desired) if desired.enabled else ""

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        observed = super().observe(host, desired)
        observed["due"] = derived.is_due(_running(host), host.root)
        observed["active"] = observed["booted"] and services.is_active(host, UNIT)
        return observed

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        refusals = super().refusals(desired, observed)
        if desired.metrics and not _PATH.fullmatch(desired.metrics):
            words = f"{desired.metrics!r}: a unit file can't name this folder"
            refusals.append(Refusal("path", words, "use letters, digits and . / + @ = - _ in it"))
        if not 1 <= desired.every <= 3600:
            refusals.append(Refusal("interval", f"every is {desired.every}", "say a number of seconds from 1 to 3600"))
        return refusals

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        changes = super().changes(desired, observed, pending)
        written = any(change.subject == services.path(UNIT) for change in changes)
        is_other = written or observed["outdated"] or observed["due"]
        if desired.enabled and observed["booted"] and (is_other or not observed["active"]):
            changes.append(Change("start", UNIT, "", "", "stopped" if not observed["active"] else "unit"))
        return changes

    def derives(self, host: ManagedHost, desired: Desired) -> Sequence[Thing]:
        return [_running(host)] if desired.enabled and services.is_booted(host) else []

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        if change.kind == "start":
            services.systemctl(host, "restart", UNIT)
        else:
            super().apply(host, desired, change)

    def revert(self, host: ManagedHost) -> List[Change]:
        """Stop the service, which removes its metrics, and forget it."""
        return services.dismiss(host, UNIT, (WATCH_STATE,))


def _running(host: ManagedHost) -> Thing:
    return services.running(host, UNIT, [services.path(UNIT)])


def unit(desired: Desired) -> str:
    """The text of gds-watch.service."""
    options = f" --folder {desired.metrics}" if desired.metrics else ""
    return f"""\
# Rendered by gdsdeploy; changes here are overwritten. See: systemctl edit {UNIT}
[Unit]
Description=Metrics of GPUDirect Storage: which path I/O through cuFile takes
ConditionPathExists=/usr/lib/gdsdeploy/gdsdeploy-host.pyz

[Service]
ExecStart={COMMAND} watch --metrics --every {desired.every}{options}
# It removes its files itself, unless it was killed.
ExecStopPost=-/bin/rm -f {" ".join(places(desired.metrics, WATCH_METRICS))}
# It ends when another version of the program is installed.
Restart=always
RestartSec=5
Nice=10
MemoryMax=128M
TasksMax=16
# It reads files and namespaces of all processes. With a private mount namespace, it would take every other process for
# one in a container.
CapabilityBoundingSet=CAP_SYS_ADMIN CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_DAC_OVERRIDE CAP_SYS_CHROOT
NoNewPrivileges=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictRealtime=yes
LockPersonality=yes

[Install]
WantedBy=multi-user.target
"""
