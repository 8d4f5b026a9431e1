"""What tests of rollouts share: locks, copies of a host, and what a rollout's status says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.machine import Machine
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Lock
from gdslab.host import LabHost
from gdslab.state import Lab
from tests.lab.program import gdsdeploy

PROGRAM = ["sudo", "python3", "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"]
EXPECTATION = "/etc/gdsdeploy/expectation.json"
#: Takes what runs after the last test of a group.
AtEnd = Callable[[Callable[[], object]], object]


@dataclass(frozen=True)
class Spare:
    """A host of ``lab`` called ``name``, which is provisioned and takes part in nothing; its modules are DKMS's."""

    lab: Lab
    name: str


def upgraded_lock(path: Path) -> Lock:
    """The newest lock of a fleet file, which is then beside it."""
    gdsdeploy("lock", "--upgrade", path)
    return lockfile.read(lockfile.beside(path))


def name_copies(lab: Lab, lock: Lock, copies: Sequence[LabHost]) -> None:
    """Give copies of a provisioned host what names each of them, by the lab's fleet file; all else is the same."""
    fleet = load_fleet(lab.fleet_path)
    for host in copies:
        host.ssh(["sudo", "tee", EXPECTATION], input=expectation(Machine(fleet, lock, host.name)).to_json())


def healthy(host: LabHost, lock: Lock) -> None:
    """The host has ``lock``, and every check passes there, by its own judgement."""
    assert json.loads(host.ssh(["cat", EXPECTATION]).stdout)["lock_digest"] == lock.digest
    report = json.loads(host.ssh([*PROGRAM, "validate", "--json"], ok=(0, 30, 31)).stdout)
    fine = ("pass", "not-applicable")
    assert {entry["check"]: entry["found"] for entry in report["findings"] if entry["verdict"] not in fine} == {}


def outcome(document: Mapping[str, Any], name: str) -> str | None:
    result: str | None = document["hosts"][name]["outcome"]
    return result


def words(document: Mapping[str, Any], *names: str) -> str:
    """What happened on some hosts, or on all, for a test that fails."""
    return json.dumps({name: document["hosts"][name] for name in names or document["hosts"]}, indent=1)


def steps(document: Mapping[str, Any], name: str) -> list[str]:
    return [step["step"] for step in document["hosts"][name]["steps"]]
