"""Records of preflights, which a rollout reads before it starts; each is valid only for the packages it tried."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from gdsdeploy import atomic, paths
from gdsdeploy.host.kmod.findings import ERROR, UNKNOWN, outcome_of
from gdsdeploy.model.lock import Target

Mode = Literal["quick", "full"]

#: Incremented when a field changes meaning; other formats aren't read.
FORMAT: Final = 1
#: The packages that modules are built from.
_PARTS: Final = ("kernel-image", "kernel-headers", "driver-source", "nvidia-fs-source", "doca")


@dataclass(frozen=True)
class ModuleResult:
    """One module of a stack; ``builds`` and ``loads`` are None where the trial can't tell."""

    module: str
    builds: bool | None
    loads: bool | None
    #: findings of its audit (host/kmod/findings.py); older records have no outcome
    findings: tuple[dict[str, str], ...] = ()
    #: the compiler's first error line, with tree and kernel
    error: str = ""


@dataclass(frozen=True)
class PreflightRecord:
    """The result for one stack: whether its modules build, and whether the kernel would load them."""

    kernel: str
    driver: str
    flavour: str
    #: empty in a mode without nvidia-fs
    nvidia_fs: str
    mode: Mode
    #: ``sha256:…`` over the packages that it depends on
    ingredients: str
    builds: bool
    #: None: the trial can't tell
    loads: bool | None
    modules: tuple[ModuleResult, ...]
    #: of the whole run
    seconds: float
    #: RFC 3339, UTC
    time: str
    #: version of gdsdeploy
    gdsdeploy: str
    #: paths of build logs
    logs: tuple[str, ...] = ()
    #: rules of compat.yml about the failure: ``{"id", "says", "fixed", "source"}``
    rules: tuple[dict[str, str], ...] = ()
    format: int = field(default=FORMAT)

    @property
    def ok(self) -> bool:
        """Whether all modules build and load."""
        return self.builds and self.loads is True

    @property
    def error(self) -> str:
        """The first problem; empty without one."""
        errors = [module.error for module in self.modules if module.error]
        errors += [
            f"{module.module}: [{finding['id']}] {finding['message']}"
            for module in self.modules
            for finding in module.findings
            if module.loads is not True and outcome_of(finding) in (ERROR, UNKNOWN)
        ]
        return errors[0] if errors else ""


def ingredients(target: Target) -> str:
    """``sha256:…`` over the packages and pins that the modules of ``target`` depend on.  Pure."""
    lines = sorted(
        f"{package.package} {package.version} {package.architecture} {package.sha256}"
        for package in target.packages
        if package.part in _PARTS
    )
    lines += [f"{key}={target.pins.get(key, '')}" for key in ("flavour", "mode", "rdma")]
    return "sha256:" + hashlib.sha256("\n".join(lines).encode()).hexdigest()


def find(target: Target, kernel: str = "", driver: str = "", folder: Path | None = None) -> PreflightRecord | None:
    """The record for exactly the packages of ``target``, preferably a full one; None without a readable one.

    kernel, driver: release and upstream version that ``target`` must have; empty: any.
    folder: default: the user's state folder.
    """
    if kernel not in ("", target.kernel.release) or driver not in ("", target.driver.version):
        return None
    digest = ingredients(target)
    modes: tuple[Mode, Mode] = ("full", "quick")
    records = (_read(_path(digest, mode, folder)) for mode in modes)
    return next((record for record in records if record is not None and record.ingredients == digest), None)


def keep(record: PreflightRecord, folder: Path | None = None) -> Path:
    """Write a record; raises OSError."""
    path = _path(record.ingredients, record.mode, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(path, json.dumps(asdict(record), indent=2, sort_keys=True) + "\n", mode=0o644)
    return path


def _path(digest: str, mode: Mode, folder: Path | None) -> Path:
    return (folder or paths.state() / "preflight" / "records") / f"{digest.removeprefix('sha256:')[:32]}-{mode}.json"


def _read(path: Path) -> PreflightRecord | None:
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            return None
        modules = tuple(
            ModuleResult(**{**module, "findings": tuple(module["findings"])}) for module in value.pop("modules")
        )
        return PreflightRecord(
            **{**value, "modules": modules, "logs": tuple(value["logs"]), "rules": tuple(value["rules"])}
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
