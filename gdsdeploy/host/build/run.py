"""One run of the build: the wanted modules in their order, and what became of each."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

from ..errors import BuildError, HostError
from ..io import atomic
from . import known_failures
from .context import Bench, Built, Job
from .driver import build_driver
from .kbuild import Log
from .nvidia_fs import build_nvidia_fs, source_version
from .peermem import build_peermem

#: In the order in which they depend on each other.
MODULES = ("driver", "nvidia-peermem", "nvidia-fs")


@dataclass
class Outcome:
    """What became of one wanted module; ``error`` is None when its files are built, audited and in place."""

    module: str
    log: str
    built: List[Built] = field(default_factory=list)
    error: Optional[HostError] = None
    #: rules of compat.yml that explain the error
    rules: List[known_failures.Match] = field(default_factory=list)
    seconds: float = 0.0

    def as_dict(self) -> Dict[str, Any]:
        error = None
        if self.error is not None:
            rules = [rule.as_dict() for rule in self.rules]
            error = {"id": self.error.id, "message": self.error.message, "hint": self.error.hint, "rules": rules}
        return {
            "module": self.module,
            "ok": self.error is None,
            "files": [item.as_dict() for item in self.built],
            "log": self.log,
            "seconds": round(self.seconds, 2),
            "error": error,
        }


@dataclass
class Report:
    """``as_dict`` is what ``kmod build --json`` prints; docs/modules.md describes it."""

    job: Job
    outcomes: List[Outcome]
    versions_from: str
    ofed: Optional[Dict[str, str]]
    notes: List[str]

    @property
    def failures(self) -> List[Outcome]:
        return [item for item in self.outcomes if item.error is not None]

    def as_dict(self) -> Dict[str, Any]:
        return {
            "kernel_release": self.job.kernel.release,
            "driver": self.job.tree.as_dict(),
            "ofed": self.ofed,
            "versions_from": self.versions_from,
            "ok": not self.failures,
            "notes": self.notes,
            "modules": [item.as_dict() for item in self.outcomes],
        }


def build(job: Job, modules: Sequence[str], source: str, output: str, log: str = "") -> Report:
    """Build ``modules`` (of MODULES) and place them; a failure of one does not keep the others from being built.

    source: the source of nvidia-fs.  output: a file for one module, a folder for several or for the driver.
    log: file for everything that was run; by default ``<output>.log`` or ``<folder>/<module>.log``.
    Raises HostError when nothing can be begun.
    """
    wanted = [name for name in MODULES if name in modules]
    folder = os.path.isdir(output) or output.endswith("/") or len(wanted) > 1 or "driver" in wanted
    if folder:
        _make_folder(output)
    # A whole driver with its debug data takes more than a /tmp in memory may have.
    work = tempfile.mkdtemp(prefix=".gdsdeploy-build-", dir=os.path.abspath(output) if "driver" in wanted else None)
    bench = Bench(job, work)
    logs: Dict[str, Log] = {}
    outcomes: List[Outcome] = []
    try:
        for name in wanted:
            place = os.path.join(output, name + ("" if name == "driver" else ".ko")) if folder else output
            path = os.path.abspath(log or (place.rsplit(".ko", 1)[0] if folder else place) + ".log")
            if path not in logs:
                logs[path] = Log(path)
            outcomes.append(_one(bench, name, source, output if name == "driver" else place, logs[path]))
        tree = bench.ofed().tree if wanted != ["nvidia-fs"] else None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    ofed = tree.as_dict() if tree is not None else None
    return Report(job, outcomes, bench.known_versions, ofed, bench.notes)


def _one(bench: Bench, name: str, source: str, output: str, log: Log) -> Outcome:
    outcome = Outcome(name, log.path)
    begun = time.monotonic()
    try:
        if name == "driver":
            outcome.built = build_driver(bench, output, log)
        elif name == "nvidia-peermem":
            outcome.built = build_peermem(bench, output, log)
        else:
            outcome.built = build_nvidia_fs(bench, source, output, log)
    except BuildError as error:
        version = source_version(source) if name == "nvidia-fs" else ""
        outcome.rules = known_failures.matches(bench.job, version, source if name == "nvidia-fs" else "")
        hint = "; ".join([*(rule.words() for rule in outcome.rules), error.hint])
        outcome.error = type(error)(error.message, hint)
        log.failed(error.message, hint)
    except HostError as error:
        outcome.error = error
        log.failed(error.message, error.hint)
    outcome.seconds = time.monotonic() - begun
    return outcome


def _make_folder(path: str) -> None:
    try:
        atomic.make_folder(path)
    except OSError as error:
        raise BuildError(f"cannot make the folder {path}: {error.strerror}") from None
