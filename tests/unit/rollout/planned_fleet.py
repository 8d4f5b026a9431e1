"""A fleet between two locks, whose hosts answer as they are told to: real ones would take minutes and reboots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.machine import RunFiles
from gdsdeploy.converge.plan_fleet import FleetPlan
from gdsdeploy.errors import GdsError
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply.model import Change
from gdsdeploy.lock import compat, lockfile, releases
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock, Package
from gdsdeploy.model.rollout import Standing
from gdsdeploy.preflight import record
from gdsdeploy.preflight.record import Answer, ModuleResult, PreflightRecord
from gdsdeploy.rollout import preconditions
from gdsdeploy.rollout.drain import State, rollout_of
from gdsdeploy.rollout.steps.answers import Status
from tests.loopback.loopback_fleet import target
from tests.unit.rollout.asked import status

CHANGE = (
    Change("upgrade", "nvidia-driver", "550.1", "550.2", "version", resource="packages.driver"),
    Change("write", "/etc/cufile.json", "sha256:1", "sha256:2", "content", resource="cufile"),
    Change("reboot", "kernel 2", "kernel 1", "kernel 2", "kernel", "reboot", "reboot"),
)
DEVICES = "10de2330"
PATIENT = {"canary": {"soak": 0}, "max_unavailable": 2, "batches": {"size": 2, "strategy": "fixed", "largest": 2}}


class PlannedFleet:
    """``fleet.yml`` with the lock of kernel 2 beside it; its hosts were provisioned with that of kernel 1."""

    def __init__(self, folder: Path, hosts: Sequence[str] = "abc", **changed: Any) -> None:
        self.path = folder / "fleet.yml"
        self.value: dict[str, Any] = {
            "version": 1,
            "profiles": {"gds": {"os": "debian-13", "repositories": []}},
            "hosts": dict.fromkeys(hosts, "gds"),
            "rollout": PATIENT,
            **changed,
        }
        self.path.write_text(yaml.safe_dump(self.value))
        self.old, self.new = lock(self.fleet, "1"), lock(self.fleet, "2")
        releases.store(self.path, self.old)
        lockfile.write(lockfile.beside(self.path), self.new)
        self._hosts()

    @classmethod
    def existing(cls, folder: Path) -> PlannedFleet:
        """The one that another process has made in ``folder``."""
        fleet = cls.__new__(cls)
        fleet.path = folder / "fleet.yml"
        fleet.old, fleet.new = lock(fleet.fleet, "1"), lock(fleet.fleet, "2")
        fleet._hosts()
        return fleet

    def _hosts(self) -> None:
        hosts = list(self.fleet.hosts)
        self.plans: dict[str, HostPlan | GdsError] = {name: HostPlan(name, CHANGE) for name in hosts}
        self.locks: dict[str, str] = dict.fromkeys(hosts, self.old.digest)
        self.kernels: dict[str, str] = {}
        self.supplies: dict[str, Supply] = {}
        self.asked: list[str] = []
        self.drains = Drains()

    @property
    def fleet(self) -> Fleet:
        return load_fleet(self.path)

    def tried(self, **changed: Any) -> None:
        """Have a preflight of the new lock's stack."""
        record.keep(trial(self.new, **changed))

    def untried(self) -> None:
        """Have no preflight of the new lock's stack."""
        record.keep(trial(self.new)).unlink()

    def answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the planning ask these hosts instead of real ones."""
        monkeypatch.setattr(preconditions, "plan_fleet", self._plan_fleet)
        monkeypatch.setattr(preconditions, "present_states", self.present_states)
        monkeypatch.setattr(preconditions, "silent", lambda *_: {})
        monkeypatch.setattr(preconditions, "drainer", lambda *_: self.drains)

    def _plan_fleet(self, _fleet: Fleet, _lock: Lock, _path: Path, names: Sequence[str], **_: Any) -> FleetPlan:
        self.asked += names
        plans = {name: self.plans.get(name, HostPlan(name)) for name in names}
        return FleetPlan(plans, dict.fromkeys(names, 0.1), RunFiles(supplies=self.supplies))

    def present_states(self, _fleet: Fleet, _path: Path, names: Sequence[str], **_: Any) -> dict[str, Status]:
        """What hosts say of themselves."""
        own = {name: {"lock_digest": self.locks.get(name, ""), "devices": DEVICES} for name in names}
        return {name: Status(**status("b", self.kernels.get(name, "1"), **own[name])) for name in names}


class Drains:
    """A scheduler as it is told to be."""

    def __init__(self) -> None:
        self.against: list[str] = []
        self.out: dict[str, str] = {}

    def check(self, _hosts: Sequence[str]) -> list[str]:
        return self.against

    def states(self, hosts: Sequence[str]) -> Mapping[str, State]:
        return {host: State(host in self.out, self.out.get(host, "")) for host in hosts}

    def look(self, host: str, reason: str) -> Standing:
        """As Drainer.look."""
        return self.states([host])[host].standing(rollout_of(reason))


def lock(fleet: Fleet, kernel: str) -> Lock:
    package = Package(
        package=f"linux-image-{kernel}", version=kernel, architecture="amd64", part="kernel-image", needed_by="both",
        file=f"pool/linux-image-{kernel}.deb", size=1, sha256=kernel * 64, repository="debian", suite="trixie",
        component="main",
    )  # fmt: skip
    targets = {name: target(fleet, name, kernel).model_copy(update={"packages": (package,)}) for name in fleet.profiles}
    return lockfile.build(targets)


def trial(fleet_lock: Lock, **changed: Any) -> PreflightRecord:
    (stack,) = {entry.kernel.release: entry for entry in fleet_lock.targets.values()}.values()
    values: dict[str, Any] = {
        "kernel": stack.kernel.release, "driver": stack.driver.version, "flavour": "open", "nvidia_fs": "2.19.7",
        "ingredients": compat.ingredients(stack), "builds": Answer.YES, "loads": Answer.YES,
        "modules": (ModuleResult("nvidia", Answer.YES, Answer.YES),), "seconds": 90.0,
        "time": "2026-11-20T10:00:00Z", "gdsdeploy": "1",
    }  # fmt: skip
    return PreflightRecord(**{**values, **changed})
