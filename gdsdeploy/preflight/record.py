"""What preflights found, kept by what they were made of: the rollout asks here before it lets a kernel or driver out.

A record is found again only for exactly the packages (sha256) that were tried: a rebuilt kernel, another driver
package or another nvidia-fs is a stack that nobody has tried yet.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from gdsdeploy import atomic, paths
from gdsdeploy.host.kmod.findings import ERROR, UNKNOWN, outcome_of
from gdsdeploy.model.lock import Package, Target

Mode = Literal["quick", "full"]

#: Raised when a record's fields change meaning; records of another format are not read.
FORMAT: Final = 1
#: What the answer depends on.  Companions and userland do not take part in building or loading modules.
_PARTS: Final = ("kernel-image", "kernel-headers", "driver-source", "nvidia-fs-source", "doca")


@dataclass(frozen=True)
class Module:
    """One module of a stack; ``builds`` and ``loads`` are None where it was not tried or could not be told."""

    module: str
    builds: bool | None
    loads: bool | None
    #: findings of its audit, as in host/kmod/findings.py; those of older records have no outcome
    findings: tuple[dict[str, str], ...] = ()
    #: why it does not build: the compiler's first error line, with tree and kernel
    error: str = ""


@dataclass(frozen=True)
class Record:
    """The answer for one stack: whether it builds, and whether the kernel would load what was built."""

    kernel: str
    driver: str
    flavour: str
    #: empty in a mode without nvidia-fs
    nvidia_fs: str
    mode: Mode
    #: ``sha256:…`` over the packages that it depends on
    ingredients: str
    builds: bool
    #: None: could not be told
    loads: bool | None
    modules: tuple[Module, ...]
    #: of the whole run
    seconds: float
    #: RFC 3339, UTC
    time: str
    #: version that found it
    gdsdeploy: str
    #: build logs, kept
    logs: tuple[str, ...] = ()
    #: rules of compat.yml that know the failure: ``{"id", "says", "fixed", "source"}``
    rules: tuple[dict[str, str], ...] = ()
    format: int = field(default=FORMAT)

    @property
    def ok(self) -> bool:
        """Whether everything builds and loads."""
        return self.builds and self.loads is True

    @property
    def error(self) -> str:
        """The first reason why it does not; empty if there is none."""
        for module in self.modules:
            if module.error:
                return module.error
        for module in self.modules:
            for finding in module.findings:
                if module.loads is not True and outcome_of(finding) in (ERROR, UNKNOWN):
                    return f"{module.module}: [{finding['id']}] {finding['message']}"
        return ""


def ingredients(target: Target) -> str:
    """``sha256:…`` over what the answer for ``target`` depends on; equal for equal package files.  Pure."""
    lines = sorted(_line(package) for package in target.packages if package.part in _PARTS)
    lines += [f"{key}={target.pins.get(key, '')}" for key in ("flavour", "mode", "rdma")]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def find(target: Target, kernel: str = "", driver: str = "", folder: Path | None = None) -> Record | None:
    """The record for exactly the packages of ``target``, a full one before a quick one; None where there is none.

    kernel, driver: a release and an upstream version that ``target`` has to have, where given.
    folder: default: the user's state folder.  A record that cannot be read counts as none.
    """
    if kernel not in ("", target.kernel.release) or driver not in ("", target.driver.version):
        return None
    digest = ingredients(target)
    modes: tuple[Mode, Mode] = ("full", "quick")
    found = (_read(_path(digest, mode, folder)) for mode in modes)
    return next((record for record in found if record is not None and record.ingredients == digest), None)


def keep(record: Record, folder: Path | None = None) -> Path:
    """Write a record; raises OSError."""
    path = _path(record.ingredients, record.mode, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, json.dumps(asdict(record), indent=2, sort_keys=True) + "\n", mode=0o644)
    return path


def all_records(folder: Path | None = None) -> Iterator[Record]:
    """Every record that can be read."""
    for path in sorted((folder or _folder()).glob("*.json")):
        record = _read(path)
        if record is not None:
            yield record


def _folder() -> Path:
    return paths.state() / "preflight" / "records"


def _path(digest: str, mode: Mode, folder: Path | None) -> Path:
    return (folder or _folder()) / f"{digest.removeprefix('sha256:')[:32]}-{mode}.json"


def _line(package: Package) -> str:
    return f"{package.package} {package.version} {package.architecture} {package.sha256}"


def _read(path: Path) -> Record | None:
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        return None
    try:
        modules = tuple(Module(**{**each, "findings": tuple(each["findings"])}) for each in value.pop("modules"))
        return Record(**{**value, "modules": modules, "logs": tuple(value["logs"]), "rules": tuple(value["rules"])})
    except (KeyError, TypeError):
        return None
