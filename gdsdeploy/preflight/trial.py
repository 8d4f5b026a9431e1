"""Try one stack in its root: the host program builds the modules there and audits them against the kernel."""

from __future__ import annotations

import json
import platform as machine
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gdsdeploy import __version__, paths, run
from gdsdeploy.errors import GdsError
from gdsdeploy.host.errors import StubError
from gdsdeploy.lock import compat
from gdsdeploy.model.lock import Target
from gdsdeploy.preflight.choice import StackCandidate
from gdsdeploy.preflight.record import Answer, ModuleResult, PreflightRecord
from gdsdeploy.preflight.root import Root, root
from gdsdeploy.zipapp import hostapp

#: All of the driver's modules, where their common build fails.
DRIVER = "driver"
PEERMEM = "nvidia_peermem"
_PROGRAM = "gdsdeploy-host.pyz"


def require_machine(target: Target) -> None:
    """Raise GdsError unless this machine has the target's architecture."""
    if target.arch != machine.machine():
        raise GdsError(
            f"the profile is for {target.arch}, and this machine is {machine.machine()}: it can't run the compiler",
            hint=f"Run the preflight on an {target.arch} machine",
        )


def trial(candidate: StackCandidate, layers: Sequence[str]) -> PreflightRecord:
    """Build and audit ``candidate`` in a root of ``layers``; keep the build logs.  Raises what the root raises."""
    target = candidate.target
    assert target is not None
    begun = time.monotonic()
    with root(layers) as throwaway:
        report = _build(throwaway, target)
        modules = [module for outcome in report["modules"] for module in modules_of(outcome)]
        if all(module.builds is Answer.YES for module in modules):
            modules = _audit(throwaway, target, modules)
        modules = [*untried(report, modules), *modules]
        logs = _keep_logs(throwaway, candidate)
    needed = required(modules, wants_peermem=target.pins.get("rdma") == "peermem")
    errors = [outcome["error"] for outcome in report["modules"] if outcome["error"]]
    return PreflightRecord(
        kernel=candidate.kernel,
        driver=candidate.driver,
        flavour=candidate.flavour,
        nvidia_fs=candidate.nvidia_fs,
        ingredients=compat.ingredients(target),
        builds=Answer.worst(module.builds for module in needed),
        loads=Answer.worst(module.loads for module in needed),
        modules=tuple(modules),
        seconds=round(time.monotonic() - begun, 1),
        time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        gdsdeploy=__version__,
        logs=logs,
        rules=tuple({rule["id"]: rule for error in errors for rule in error["rules"]}.values()),
    )


def _build(throwaway: Root, target: Target) -> dict[str, Any]:
    hostapp.build(throwaway.build / _PROGRAM)
    modules, options = ["driver"], ["--peermem", "stub"]
    if target.nvidia_fs is not None:
        modules.append("nvidia-fs")
        options += ["--source", target.nvidia_fs.source_tree]
    words = ["build", *modules, *options, "--output", "/build/modules/"]
    done = _kmod(throwaway, target, words, doing="build", ok=range(256))
    if not done.stdout.lstrip().startswith("{"):
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        text = lines[-1].removeprefix("error: ") if lines else f"status {done.status}"
        raise GdsError(f"the preflight could not start the build: {text}", hint="The text is from the throwaway root")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _kmod(throwaway: Root, target: Target, words: Sequence[str], *, doing: str, ok: Sequence[int]) -> run.Completed:
    """Run the host program's ``kmod`` in the root, with the kernel and the driver of ``target``."""
    driver = ["--driver-version", target.driver.version, "--driver-flavour", target.driver.flavour]
    options = ["--kernel", target.kernel.release, *driver, "--json"]
    argv = ["python3", *hostapp.FLAGS, f"/build/{_PROGRAM}", "kmod", *words, *options]
    return throwaway.run(argv, doing=doing, ok=ok)


def modules_of(outcome: dict[str, Any]) -> list[ModuleResult]:
    """The results of one module, or of each of the driver's."""
    error = outcome["error"]
    # nvidia-peermem needs symbols of modules that OFED builds on the host; without them it is a stub.
    if error is not None and error["id"] == StubError.id:
        return [ModuleResult(PEERMEM, Answer.NOT_TRIED, Answer.UNKNOWN, error=error["message"])]
    if error is not None:
        return [ModuleResult(_name(outcome["module"]), Answer.NO, Answer.NO, error=error["message"])]
    return [_module(file["name"], file["audit"]) for file in outcome["files"]]


def _module(name: str, audit: dict[str, Any]) -> ModuleResult:
    result = ModuleResult(name, Answer.YES, Answer.of(audit["ok"]), findings=tuple(audit["findings"]))
    return replace(result, loads=Answer.UNKNOWN) if _is_stub(result) else result


def untried(report: dict[str, Any], modules: Sequence[ModuleResult]) -> list[ModuleResult]:
    """The modules of the driver's tree that this build left out.  report: of ``kmod build``."""
    tried = {module.module for module in modules}
    if DRIVER in tried:
        return []
    names = [_name(name) for name in report["driver_modules"]]
    return [ModuleResult(name, Answer.NOT_TRIED, Answer.NOT_TRIED) for name in names if name not in tried]


def _name(text: str) -> str:
    """A module's name as the kernel has it."""
    return text.replace("-", "_")


def _audit(throwaway: Root, target: Target, modules: Sequence[ModuleResult]) -> list[ModuleResult]:
    """Audit all modules together: each against the driver that would be loaded, not only its sources."""
    files = sorted(f"/build/modules/{path.name}" for path in (throwaway.build / "modules").glob("*.ko"))
    # Its exit statuses are done, failed and unknown.
    done = _kmod(throwaway, target, ["audit", *files], doing="audit the modules", ok=(0, 1, 3))
    audits = {audit["module"]: audit for audit in json.loads(done.stdout)}
    return [_module(module.module, audits[module.module]) if module.module in audits else module for module in modules]


def required(modules: Sequence[ModuleResult], *, wants_peermem: bool) -> list[ModuleResult]:
    """The modules that decide about a stack; an untried nvidia-peermem or a stub does only with ``wants_peermem``."""
    return [module for module in modules if wants_peermem or not _is_idle_peermem(module)]


def _is_idle_peermem(module: ModuleResult) -> bool:
    return _is_stub(module) or (module.module == PEERMEM and module.builds is Answer.NOT_TRIED)


def _is_stub(module: ModuleResult) -> bool:
    return any(finding["id"] == StubError.id for finding in module.findings)


def _keep_logs(throwaway: Root, candidate: StackCandidate) -> tuple[str, ...]:
    folder = paths.state() / "preflight" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9.+~-]+", "-", f"{candidate.kernel}-{candidate.driver_package}")
    logs = sorted((throwaway.build / "modules").glob("*.log"))
    return tuple(str(shutil.copyfile(path, folder / f"{stem}-{path.name}")) for path in logs)
