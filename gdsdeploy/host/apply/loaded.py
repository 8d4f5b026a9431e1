"""The modules of the stack are loaded, once the locked kernel runs, and the driver's services run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Sequence

from ..boot import needed
from ..rootdir import list_folder
from . import services, unload
from .host import ManagedHost
from .model import RELOAD, Change, Refusal, Resource, Words

#: Seconds for modprobe, which may have to start the GPUs.
_SECONDS = 600.0
_DRIVER = "nvidia"
#: Loads what modules-load.d names, at boot.
_LOADER = "systemd-modules-load.service"
_PCI = "/sys/bus/pci/devices"


@dataclass(frozen=True)
class Desired:
    """What is loaded into the running kernel, and which services run."""

    #: Release of the locked kernel, as ``uname -r`` prints it.  Nothing is loaded into another one.
    kernel_release: str
    #: Modules to load, in this order.
    loaded: List[str] = field(default_factory=list)
    #: Module name to the systemd unit that loads it instead of modprobe.
    units: Dict[str, str] = field(default_factory=dict)
    #: Units of the driver's packages to enable and, once the driver is loaded, to start.
    services: List[str] = field(default_factory=list)


class Loaded(Resource[Desired]):
    """Loads what isn't loaded, and enables and starts the driver's services.

    It loads nothing on another kernel than the locked one, and nothing beside a module that isn't the installed one:
    nvidia-fs of one driver on another driver is a kernel BUG.  There ``reboot`` has to come first, and starts services.

    A boot without the right modules leaves the unit that loads them failed, so it starts again once they are loaded.
    """

    name = "loaded"
    desired_type = Desired
    kinds: ClassVar[Words] = {"load": "load {}", "unload": "unload {}", "enable": "enable {}", "start": "start {}"}
    reasons: ClassVar[Words] = {
        "not-loaded": "not loaded",
        "not-enabled": "not enabled",
        "not-active": "not running",
        "failed-at-boot": "it failed at this boot",
    }

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        loaded = {name: host.exists(f"/sys/module/{name.replace('-', '_')}") for name in desired.loaded}
        present = [name for name in desired.loaded if loaded[name]]
        causes = needed.pending(os.uname().release, present).causes
        stale = [cause.subject for cause in causes if cause.id == needed.MODULE]
        # A unit that is missing or masked is for the check driver.services to judge.
        texts = {unit: services.vendor_text(host, unit) for unit in desired.services}
        units = {unit: text for unit, text in texts.items() if text}
        return {
            "running": os.uname().release,
            "loaded": loaded,
            "failed": len(present) < len(loaded) and services.has_failed(host, _LOADER),
            "stale": stale,
            "links": {u: services.missing_links(u, text, services.observe(host, u)) for u, text in units.items()},
            # Without a GPU they end at once; the check driver.services needs none there.
            "inactive": [
                u for u in units if _has_gpu(host) and services.is_booted(host) and not services.is_active(host, u)
            ],
        }

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        return services.names_refused(desired.services)

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        enabled = [unit for unit, links in observed["links"].items() if links]
        changes = [Change("enable", unit, "", "enabled", "not-enabled") for unit in enabled]
        if observed["running"] != desired.kernel_release or observed["stale"]:
            return changes
        missing = [name for name in desired.loaded if not observed["loaded"][name]]
        changes += [Change("load", name, "not-loaded", "loaded", "not-loaded", RELOAD) for name in missing]
        if observed["failed"]:
            changes.append(Change("start", _LOADER, "failed", "active", "failed-at-boot"))
        if _DRIVER in desired.loaded:
            changes += [Change("start", unit, "", "active", "not-active") for unit in observed["inactive"]]
        return changes

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        if change.kind == "enable":
            text = services.vendor_text(host, change.subject)
            links = services.missing_links(change.subject, text, services.observe(host, change.subject))
            services.enable_vendor(host, change.subject, links)
        elif change.subject == _LOADER:
            # It fails if it can't load a module of the site's own; the check boot.autoload judges that.
            host.attempt(["systemctl", "restart", _LOADER], _SECONDS)
        elif change.kind == "start":
            services.systemctl(host, "start", change.subject)
        else:
            unit = desired.units.get(change.subject, "")
            host.run(["systemctl", "start", unit] if unit else ["modprobe", change.subject], _SECONDS)

    def settle(self, host: ManagedHost, desired: Desired, changes: Sequence[Change]) -> None:
        """What was unloaded for packages is loaded again once every module is; a rollout has nothing to load then."""
        if all(host.exists(f"/sys/module/{name.replace('-', '_')}") for name in desired.loaded):
            unload.settle(host)


def _has_gpu(host: ManagedHost) -> bool:
    """Whether the kernel lists a display function of NVIDIA."""
    return any(
        host.text(f"{_PCI}/{name}/vendor").strip() == "0x10de" and host.text(f"{_PCI}/{name}/class").startswith("0x03")
        for name in list_folder(host.root, _PCI)
    )
