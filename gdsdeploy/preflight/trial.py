"""Try one stack in its root: the host program builds it there, and audits it against the kernel's real packages."""

from __future__ import annotations

import json
import platform as machine
import re
import shutil
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gdsdeploy import __version__, paths, run
from gdsdeploy.errors import GdsError
from gdsdeploy.host.errors import StubError
from gdsdeploy.model.lock import Target
from gdsdeploy.preflight import record
from gdsdeploy.preflight.choice import Candidate
from gdsdeploy.preflight.record import Mode, Module, Record
from gdsdeploy.preflight.root import Layer, Root, root
from gdsdeploy.zipapp import hostapp

_PROGRAM = "gdsdeploy-host.pyz"
#: of ``kmod build`` and ``kmod audit``: done, failed, could not tell
_ANSWERS = (0, 1, 3)


def require_machine(target: Target) -> None:
    """Raise GdsError unless this machine runs programs of the target's architecture."""
    if target.arch != machine.machine():
        raise GdsError(
            f"the profile is of {target.arch} and this machine of {machine.machine()}: it cannot run that compiler",
            hint=f"Run the preflight on an {target.arch} machine",
        )


def trial(candidate: Candidate, layers: Sequence[Layer], mode: Mode) -> Record:
    """Build and audit ``candidate`` in a root of ``layers``, and keep the build logs; raises what the root raises."""
    target = candidate.target
    assert target is not None
    begun = time.monotonic()
    with root(layers) as there:
        report = _build(there, target, mode)
        modules = [item for outcome in report["modules"] for item in modules_of(outcome)]
        if mode == "full" and all(item.builds for item in modules):
            modules = _audited(there, target, modules)
        logs = _keep_logs(there, candidate, mode)
    return Record(
        kernel=candidate.kernel,
        driver=candidate.driver,
        flavour=candidate.flavour,
        nvidia_fs=candidate.nvidia_fs,
        mode=mode,
        ingredients=record.ingredients(target),
        builds=all(item.builds is not False for item in modules),
        loads=all_load(modules, wants_peermem=target.pins.get("rdma") == "peermem"),
        modules=tuple(modules),
        seconds=round(time.monotonic() - begun, 1),
        time=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        gdsdeploy=__version__,
        logs=logs,
        rules=tuple({rule["id"]: rule for outcome in report["modules"] for rule in _rules(outcome)}.values()),
    )


def effective(mode: Mode, target: Target) -> Mode:
    """Without nvidia-fs and nvidia-peermem there is nothing that a quick preflight could look at."""
    return mode if target.nvidia_fs is not None or target.pins.get("rdma") == "peermem" else "full"


def _build(there: Root, target: Target, mode: Mode) -> dict[str, Any]:
    hostapp.build(there.build / _PROGRAM)
    modules = ["driver"] if mode == "full" else []
    options = ["--peermem", "stub"] if mode == "full" else ["--ahead"]
    if mode == "quick" and target.pins.get("rdma") == "peermem":
        modules.append("nvidia-peermem")
    if target.nvidia_fs is not None:
        modules.append("nvidia-fs")
        options += ["--source", target.nvidia_fs.source_tree]
    argv = [
        "python3",
        *hostapp.FLAGS,
        f"/build/{_PROGRAM}",
        "kmod",
        "build",
        *modules,
        *options,
        "--kernel",
        target.kernel.release,
    ]
    argv += ["--driver-version", target.driver.version, "--driver-flavour", target.driver.flavour]
    done = there.run([*argv, "--output", "/build/modules/", "--json"], doing="build", ok=range(256))
    if not done.stdout.lstrip().startswith("{"):
        raise _broken(done)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _broken(done: run.Completed) -> GdsError:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    text = lines[-1].removeprefix("error: ") if lines else f"status {done.status}"
    return GdsError(f"the preflight could not begin to build: {text}", hint="The line above is of the throwaway root")


def modules_of(outcome: dict[str, Any]) -> list[Module]:
    """What became of one wanted module, or of each of the driver's."""
    error = outcome["error"]
    # nvidia-peermem's symbols come from modules that OFED builds on the host; without them it is a stub.
    if error is not None and error["id"] == StubError.id:
        return [Module(outcome["module"], None, None, error=error["message"])]
    if error is not None:
        return [Module(outcome["module"], builds=False, loads=False, error=error["message"])]
    return [_module(item["name"], item["audit"]) for item in outcome["files"]]


def _module(name: str, audit: dict[str, Any]) -> Module:
    findings = tuple(audit["findings"])
    stub = any(finding["id"] == StubError.id for finding in findings)
    return Module(name, builds=True, loads=False if stub else audit["ok"], findings=findings)


def _rules(outcome: dict[str, Any]) -> list[dict[str, str]]:
    return outcome["error"]["rules"] if outcome["error"] else []


def _audited(there: Root, target: Target, modules: Sequence[Module]) -> list[Module]:
    """The audit of all together: each against the driver that would be loaded, not only against its sources."""
    files = sorted(path.name for path in (there.build / "modules").glob("*.ko"))
    argv = [
        "python3",
        *hostapp.FLAGS,
        f"/build/{_PROGRAM}",
        "kmod",
        "audit",
        *(f"/build/modules/{name}" for name in files),
    ]
    argv += ["--kernel", target.kernel.release, "--driver-version", target.driver.version]
    argv += ["--driver-flavour", target.driver.flavour, "--json"]
    done = there.run(argv, doing="audit what was built", ok=_ANSWERS)
    results = {result["module"]: result for result in json.loads(done.stdout)}
    return [_module(item.module, results[item.module]) if item.module in results else item for item in modules]


def all_load(modules: Sequence[Module], *, wants_peermem: bool) -> bool | None:
    """Whether all load; a stub of nvidia-peermem matters only where it is wanted, and then the host has to tell."""
    answers: list[bool | None] = []
    for item in modules:
        stub = item.builds is None or any(finding["id"] == StubError.id for finding in item.findings)
        if not stub:
            answers.append(item.loads)
        elif wants_peermem:
            answers.append(None)
    return False if False in answers else None if None in answers else True


def _keep_logs(there: Root, candidate: Candidate, mode: Mode) -> tuple[str, ...]:
    folder = paths.state() / "preflight" / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9.+~-]+", "-", f"{candidate.kernel}-{candidate.driver_package}")
    kept = []
    for path in sorted((there.build / "modules").glob("*.log")):
        place: Path = folder / f"{stem}-{mode}-{path.name}"
        shutil.copyfile(path, place)
        kept.append(str(place))
    return tuple(kept)
