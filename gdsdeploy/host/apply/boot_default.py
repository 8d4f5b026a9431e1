"""The locked kernel is the one that boots, once its modules are there and pass their audit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, List, Sequence

from ..boot import guard
from ..boot.loader import loader
from ..errors import CannotTellError, HostError
from ..model import expectation
from ..paths import EXPECTATION
from .host import ManagedHost
from .model import INSTALLS, Change, Resource, Words, with_kind

_HINT = "the boot default is as before; build or receive the modules first: gdsdeploy provision"


@dataclass(frozen=True)
class Desired:
    """The kernel that boots by default."""

    #: Release of the locked kernel, as ``uname -r`` prints it.
    release: str


class BootDefault(Resource[Desired]):
    """GRUB's default entry.  A host that is rebooted half-way comes back as it was."""

    name = "boot_default"
    desired_type = Desired
    removal_rank = 50
    kinds: ClassVar[Words] = {"boot": "make {} the kernel that boots"}

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        """What boots now, and where that isn't the locked kernel, why it must not become the default."""
        state = {"default": "", "changes": [], "reasons": [], "error": "", "hint": ""}
        try:
            state["changes"] = loader(host.root).default(desired.release, check=True)["changes"]
            state["default"] = loader(host.root).kernels()["default"]
        except HostError as error:
            state.update(error=error.message, hint=error.hint)
        if state["changes"]:
            # Its modules were audited when it became the default, and at every later installation.
            state["reasons"] = _objections(host, desired.release)
        return state

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        """One, if another kernel boots by default; raises CannotTellError if this one must not."""
        release = desired.release
        coming = any(change.resource == "packages.kernel" and change.kind in INSTALLS for change in pending)
        if observed["error"] and not coming:
            raise CannotTellError(f"the kernel that boots by default: {observed['error']}", observed["hint"], "failed")
        if not observed["error"] and not observed["changes"]:
            return []
        undecided = coming or any(change.resource in ("expectation", "modules") for change in pending)
        if observed["reasons"] and not undecided:
            message = f"kernel {release} is not admitted: {'; '.join(observed['reasons'])}"
            raise CannotTellError(message, _HINT, "modules")
        return [Change("boot", release, observed["default"], release, "default")]

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        host.forget()
        with with_kind("failed"):
            boots = loader(host.root)
            before = boots.kernels()["default"]
            is_ours = boots.undo_default(check=True)["changed"]
            back = partial(boots.default, before) if is_ours and before else boots.undo_default
            host.undo_by("the kernel that boots", back)
            boots.default(desired.release)

    def revert(self, host: ManagedHost) -> List[Change]:
        """Leave the choice of the kernel to the boot loader's own configuration."""
        with with_kind("failed"):
            result = loader(host.root).undo_default(check=host.check)
        host.forget()
        return [Change("boot", change, "", "", "restore") for change in result["changes"]]


def _objections(host: ManagedHost, release: str) -> List[str]:
    try:
        expected = expectation.from_json(host.text(EXPECTATION) or "null")
    except ValueError as error:
        return [f"{EXPECTATION}: {error}"]
    return guard.judge(release, expected, host.root).reasons
