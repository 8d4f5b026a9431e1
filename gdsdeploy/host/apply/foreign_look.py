"""A look at what others have installed of the stack, before anything is changed."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

from ..errors import HostError
from ..evidence.foreign import look
from ..evidence.recorder import Recorder
from ..facts.document import Document
from ..facts.foreign import foreign_facts
from ..facts.packages import Package
from ..foreign import ForeignInstall, Locked, findings, words
from ..kmod.kernel import Kernel
from .host import ManagedHost
from .model import Refusal
from .packages.managers import Installed

#: Beginning of the ids of refusals; the kind follows.
REFUSAL = "foreign."
#: Seconds for all programs that it asks.
_SECONDS = 60.0


def observe(host: ManagedHost, locked: Locked, installed: Mapping[str, Installed]) -> Dict[str, Any]:
    """``installs``: each a ForeignInstall, in the order of the table; ``unknown``: why some kinds aren't known.

    installed: what the package manager has, so that it isn't asked again.
    """
    installs, unknown = host.once(("foreign", locked.kernel_release), lambda: _findings(host, locked, installed))
    return {"installs": installs, "unknown": unknown}


def _findings(
    host: ManagedHost, locked: Locked, installed: Mapping[str, Installed]
) -> Tuple[Tuple[ForeignInstall, ...], Tuple[str, ...]]:
    recorder = Recorder(_SECONDS, host.root)
    release = locked.kernel_release

    def kernel() -> Kernel:
        walked: Kernel = host.once(("kernel", release), lambda: Kernel(release, host.root))
        return walked

    try:
        look(recorder, release, kernel)
    except (OSError, ValueError, HostError) as error:
        recorder.gap("foreign", str(error))
    facts = foreign_facts(Document(recorder.finish()), _packages(installed))
    return findings(facts, locked)


def _packages(installed: Mapping[str, Installed]) -> Dict[str, Tuple[Package, ...]]:
    return {
        name: tuple(Package(version, "", "hi" if package.is_held else "ii") for version in package.versions)
        for name, package in installed.items()
    }


def refusals(observed: Mapping[str, Any], release: str) -> List[Refusal]:
    """One for each kind that would break a provision; release: of the locked kernel."""
    return [
        Refusal(REFUSAL + install.kind, words.sentence(install), words.way_out(install, release))
        for install in observed["installs"]
        if install.breaks
    ]


def report(observed: Mapping[str, Any]) -> Dict[str, Any]:
    """As JSON: ``{"installs": [ForeignInstall.to_json()], "unknown": [text]}``."""
    return {"installs": [install.to_json() for install in observed["installs"]], "unknown": list(observed["unknown"])}
