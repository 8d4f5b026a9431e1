"""The modules of the stack are loaded, once the locked kernel runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar, Dict, List, Sequence

from ..boot import needed
from .host import ManagedHost
from .model import RELOAD, Change, Resource, Words

#: Seconds for modprobe, which may have to start the GPUs.
_SECONDS = 600.0


@dataclass(frozen=True)
class Desired:
    """``modules``: loaded in this order.  ``units``: module → the unit that loads it in modprobe's place."""

    kernel_release: str
    modules: List[str] = field(default_factory=list)
    units: Dict[str, str] = field(default_factory=dict)


class Loaded(Resource[Desired]):
    """Loads what isn't loaded.

    It loads nothing on another kernel than the locked one, and nothing beside a module that isn't the installed one:
    nvidia-fs of one driver on another driver is a kernel BUG.  There ``reboot`` has to come first.
    """

    name = "loaded"
    desired_type = Desired
    kinds: ClassVar[Words] = {"load": "load {}", "unload": "unload {}"}
    reasons: ClassVar[Words] = {"not-loaded": "not loaded"}

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        loaded = {name: host.exists(f"/sys/module/{name.replace('-', '_')}") for name in desired.modules}
        present = [name for name in desired.modules if loaded[name]]
        causes = needed.pending(os.uname().release, present).causes
        stale = [cause.subject for cause in causes if cause.id == needed.MODULE]
        return {"running": os.uname().release, "loaded": loaded, "stale": stale}

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        if observed["running"] != desired.kernel_release or observed["stale"]:
            return []
        missing = [name for name in desired.modules if not observed["loaded"][name]]
        return [Change("load", name, "not-loaded", "loaded", "not-loaded", RELOAD) for name in missing]

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        unit = desired.units.get(change.subject, "")
        host.run(["systemctl", "start", unit] if unit else ["modprobe", change.subject], _SECONDS)
