"""Whether only a reboot brings what is installed: another kernel runs, or a module is loaded from another file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Dict, List, Mapping, Sequence

from ..boot.needed import UNLOADED, pending
from ..errors import ApplyError
from ..kmod.packaged import PREFIX
from .host import ManagedHost
from .model import INSTALLS, REBOOT, Change, Resource, Words
from .modules import UNBUILD

#: Id of the cause that a check adds: modules that are loaded now are about to be replaced.
REPLACED = "replaced"
#: Id of another: the host has not rebooted since the task that rebooted it.
SAME_BOOT = "same-boot"
#: Kinds of changes of the resource ``modules`` that replace module files.
_REPLACES = ("build", "place", "receive", "delete", UNBUILD)


@dataclass(frozen=True)
class Desired:
    """What has to run and to be loaded, and whether this host may be rebooted for it."""

    #: Release of the kernel that has to run.
    kernel_release: str
    #: Modules that have to be loaded from their installed files.
    modules: List[str] = field(default_factory=list)
    #: Whether this host may be rebooted.
    allowed: bool = False
    #: Arguments that the running kernel has to be booted with.
    arguments: List[str] = field(default_factory=list)
    #: Parameters of loaded modules as ``module.parameter``, with the values that they have to have.
    parameters: Dict[str, str] = field(default_factory=dict)
    #: Id of the boot before the reboot that was to bring all this.  Empty: there was none.
    after_boot: str = ""


class Reboot(Resource[Desired]):
    """Says that a reboot is needed.  Who applies the desired state reboots, and applies it again."""

    name = "reboot"
    desired_type = Desired
    kinds: ClassVar[Words] = {"reboot": "reboot into {}"}
    reasons: ClassVar[Words] = {
        REPLACED: "modules that are loaded from files that are replaced",
        SAME_BOOT: "the boot from before",
        "module": "a module that is loaded from another file",
        "no-file": "a module without a file",
        "argument": "booted with other kernel arguments",
        "parameter": "a module's parameter with another value",
    }

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        return asdict(pending(desired.kernel_release, desired.modules, desired.arguments, desired.parameters))

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """A reboot, where one is needed now, or will be after the changes that are pending."""
        before, after = f"kernel {observed['running']}", f"kernel {desired.kernel_release}"
        first = causes(desired, observed, pending)[:1]
        return [Change("reboot", after, before, after, cause["id"], REBOOT) for cause in first]

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        """Note that the host needs a reboot; raises ApplyError where none is allowed, or where one changed nothing."""
        reasons = "; ".join(cause["text"] for cause in causes(desired, self.observe(host, desired), ()))
        if desired.after_boot:
            hint = "that host says why: journalctl -b -u systemd-modules-load, and dmesg"
            raise ApplyError(f"the reboot did not bring the locked stack: {reasons}", hint, "verify")
        if not desired.allowed:
            message = f"this host needs a reboot ({reasons}) and its profile does not allow one"
            raise ApplyError(message, 'reboot it yourself, or set "reboot: true" in its profile', "refused")
        host.notes.append(f"reboot this host: {reasons}")

    def report(self, desired: Desired, observed: Any) -> Mapping[str, Any]:
        keys = ("needed", "boot_id", "running", "reasons", "causes", "unloaded")
        return {**{key: observed[key] for key in keys}, "allowed": desired.allowed, "observed": observed}


def causes(desired: Desired, observed: Any, pending: Sequence[Change]) -> List[Dict[str, str]]:
    """``{"id", "subject", "text"}`` of each reason for a reboot.

    Those of now, except for modules that a pending change loads without one; where none is left, modules that are
    loaded from files which pending changes replace.
    """
    to_load = {change.subject for change in pending if change.kind == "load"}
    if desired.after_boot and observed["boot_id"] == desired.after_boot:
        return [{"id": SAME_BOOT, "subject": desired.after_boot, "text": "the host has not rebooted"}]
    now = [cause for cause in observed["causes"] if not (cause["id"] == UNLOADED and cause["subject"] in to_load)]
    loaded = [name for name in desired.modules if name not in observed["unloaded"]]
    if not now and loaded and any(map(_replaces, pending)):
        text = f"{', '.join(loaded)}: loaded from files that are replaced"
        return [{"id": REPLACED, "subject": loaded[0], "text": text}]
    return now


def _replaces(change: Change) -> bool:
    """Whether a change replaces module files, also by a package that brings them."""
    comes = change.kind in INSTALLS and change.subject.startswith(PREFIX)
    return comes or (change.resource == "modules" and change.kind in _REPLACES)
