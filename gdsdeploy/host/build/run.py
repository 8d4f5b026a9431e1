"""One run of the build: the requested modules in their order, and the outcome of each."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

from ..errors import BuildError, HostError
from ..io import atomic
from ..model.compat import Rule
from . import known_failures
from .context import BuildContext, BuildRequest, Built
from .driver import build_driver
from .kbuild import Log
from .nvidia_fs import build_nvidia_fs, source_version
from .peermem import build_peermem

#: In the order in which they depend on each other.
MODULES = ("driver", "nvidia-peermem", "nvidia-fs")


@dataclass
class Outcome:
    """The outcome for one requested module; ``error`` is None when its files are built, audited and in place."""

    module: str
    log: str
    built: List[Built] = field(default_factory=list)
    error: Optional[HostError] = None
    #: rules of compat.yml that explain the error
    rules: List[Rule] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> Dict[str, Any]:
        error = None
        if self.error is not None:
            keys = ("id", "says", "fixed", "source")
            rules = [{key: getattr(rule, key) for key in keys} for rule in self.rules]
            error = {"id": self.error.id, "message": self.error.message, "hint": self.error.hint, "rules": rules}
        return {
            "module": self.module,
            "ok": self.error is None,
            "files": [built.as_dict() for built in self.built],
            "log": self.log,
            "seconds": round(self.seconds, 2),
            "error": error,
        }


@dataclass
class Report:
    """``as_dict`` is what ``kmod build --json`` prints; docs/modules.md describes it."""

    request: BuildRequest
    outcomes: List[Outcome]
    versions_from: str
    ofed: Optional[Dict[str, str]]
    notes: List[str]

    @property
    def failures(self) -> List[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    def as_dict(self) -> Dict[str, Any]:
        return {
            "kernel_release": self.request.kernel.release,
            "driver": self.request.tree.as_dict(),
            "driver_modules": self.request.tree.modules(),
            "ofed": self.ofed,
            "versions_from": self.versions_from,
            "ok": not self.failures,
            "notes": self.notes,
            "modules": [outcome.as_dict() for outcome in self.outcomes],
        }


def build(request: BuildRequest, modules: Sequence[str], source: str, output: str, log: str = "") -> Report:
    """Build ``modules`` (of MODULES) and place them; if one fails, the others are still built.

    source: of nvidia-fs.  output: a file for one module, a folder for several or for the driver.  log: one file for
    all commands; default: ``<output>.log`` or ``<folder>/<module>.log``.  Raises HostError if no build can start.
    """
    names = [name for name in MODULES if name in modules]
    folder = os.path.isdir(output) or output.endswith("/") or len(names) > 1 or "driver" in names
    if folder:
        try:
            atomic.make_folder(output)
        except OSError as error:
            raise BuildError(f"cannot make the folder {output}: {error.strerror}") from None
    # A driver with its debug data may be too large for a /tmp in memory.
    work = tempfile.mkdtemp(prefix=".gdsdeploy-build-", dir=os.path.abspath(output) if "driver" in names else None)
    context = BuildContext(request, work)
    logs: Dict[str, Log] = {}
    outcomes: List[Outcome] = []
    try:
        for name in names:
            place = os.path.join(output, name + ("" if name == "driver" else ".ko")) if folder else output
            path = os.path.abspath(log or (place.rsplit(".ko", 1)[0] if folder else place) + ".log")
            if path not in logs:
                logs[path] = Log(path)
            outcomes.append(_build_one(context, name, source, output if name == "driver" else place, logs[path]))
        tree = context.ofed().tree if names != ["nvidia-fs"] else None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    ofed = tree.as_dict() if tree is not None else None
    return Report(request, outcomes, context.versions_origin, ofed, context.notes)


def _build_one(context: BuildContext, name: str, source: str, output: str, log: Log) -> Outcome:
    outcome = Outcome(name, log.path)
    begun = time.monotonic()
    try:
        if name == "driver":
            outcome.built = build_driver(context, output, log)
        elif name == "nvidia-peermem":
            outcome.built = build_peermem(context, output, log)
        else:
            outcome.built = build_nvidia_fs(context, source, output, log)
    except HostError as error:
        hint = error.hint
        if isinstance(error, BuildError):
            version = source_version(source) if name == "nvidia-fs" else ""
            outcome.rules = known_failures.matches(context.request, version, source if name == "nvidia-fs" else "")
            hint = "; ".join([*map(known_failures.words, outcome.rules), error.hint])
        outcome.error = type(error)(error.message, hint) if hint != error.hint else error
        log.end_with_failure(error.message, hint)
    outcome.seconds = time.monotonic() - begun
    return outcome
