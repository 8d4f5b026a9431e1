"""A site of light hosts with small packages, and rollouts over it, driven as the command drives them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

import gdslab as labs
from gdsdeploy.lock import lockfile, releases
from gdsdeploy.model.events import Event, Kind, RollbackBegun
from gdsdeploy.model.lock import Lock
from gdsdeploy.model.rollout import Outcome, Plan, Wave
from gdsdeploy.model.rollout_settings import Rollout
from gdsdeploy.rollout import control, journal
from gdsdeploy.rollout.driver import Hooks, drive
from gdsdeploy.rollout.machine import StateMachine
from gdsdeploy.rollout.session import RealEffects
from gdsdeploy.rollout.steps.work import Patience
from gdslab.host import LabHost
from gdslab.state import Lab
from tests.lab import small_stack
from tests.lab.cuttable import Way
from tests.lab.small_stack import Small
from tests.naming import unique
from tests.repos.archive import Key, serve

PATIENCE = Patience(packages=3, poll=0.3, knock=15, settle=5)


@dataclass
class Site:
    """The lab's hosts, their fleet file, and the ways to them."""

    lab: Lab
    path: Path
    small: Small
    ways: dict[str, Way]
    uri: str
    number: int = 0
    #: host → what it was before the first rollout
    before: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return list(self.ways)

    def host(self, name: str) -> LabHost:
        return self.lab.host(name)

    def root(self, name: str, script: str, ok: tuple[int, ...] = (0,)) -> str:
        return self.host(name).ssh(["sudo", "sh", "-c", script], ok=ok, timeout=120).stdout

    def version(self, name: str, package: str = "small-driver") -> str:
        return self.root(name, f"dpkg-query -W -f '${{Version}} ${{db:Status-Abbrev}}' {package}", ok=(0, 1)).strip()

    def plan(self, lock: Lock, *waves: Wave, **settings: Any) -> Plan:
        """A plan to bring the hosts of ``waves`` to ``lock``."""
        lockfile.write(lockfile.beside(self.path), lock)
        release = releases.store(self.path, lock)
        self.number += 1
        return Plan(
            id=f"test-{self.number}", fleet=str(self.path), lock_digest=lock.digest, fleet_digest=release.fleet_digest,
            waves=waves, settings=Rollout(**settings).model_dump(mode="json"), max_unavailable=len(self.ways),
        )  # fmt: skip


@dataclass
class Ran:
    """A rollout that came to its end."""

    machine: StateMachine
    events: list[Event]

    def outcomes(self) -> dict[str, Outcome | None]:
        return {name: host.outcome for name, host in self.machine.hosts.items()}

    def failed(self, name: str) -> tuple[str, Mapping[str, Any]]:
        """Where a host failed first, and why."""
        failure = next(event for event in self.events if event.kind is Kind.FAIL and event.host == name)
        return str(failure.data["step"]), failure.data["error"]

    def steps(self, name: str) -> list[str]:
        return [str(e.data["step"]) for e in self.events if e.kind is Kind.BEGIN and e.host == name]


def roll(site: Site, plan: Plan, when: Callable[[Event], None] = lambda _: None, **hooks: Any) -> Ran:
    """Drive a rollout as the command does; ``when`` is told every event and may break something.  Checks invariants."""
    effects = RealEffects(plan, patience=PATIENCE)
    book = journal.path_of(site.path)
    with journal.writing(book, doing="test") as writer:
        writer.begin(plan)
        machine = drive(writer, plan.id, effects, hooks=Hooks(observe=when, **hooks))
    with journal.reading(book) as read:
        events = list(read.events(plan.id))
    invariants(plan, events)
    return Ran(machine, events)


def roll_back(site: Site, plan: Plan, reason: str) -> StateMachine:
    """Take back what a rollout has done, as the command does."""
    book = journal.path_of(site.path)
    control.tell(book, RollbackBegun(reason))
    with journal.writing(book, doing="test") as writer:
        return drive(writer, plan.id, RealEffects(plan, patience=PATIENCE))


def invariants(plan: Plan, events: list[Event]) -> None:
    """In every case: no host returned unvalidated, no host forgotten, the budget kept."""
    passed: dict[str, str] = {}
    away: set[str] = set()
    ended: dict[str, str] = {}
    for number, event in enumerate(events, 1):
        assert event.number == number
        step, host = event.data.get("step"), event.host
        if event.kind is Kind.BEGIN and step not in ("return", "soak"):
            passed.pop(host, None)
        if event.kind is Kind.BEGIN and step == "drain":
            away.add(host)
        assert len(away) <= plan.max_unavailable
        if event.kind is Kind.END and step in ("validate", "undo-validate"):
            passed[host] = event.data["data"]["validated_boot"]
        if event.kind is Kind.BEGIN and step == "return":
            assert passed.get(host), f"{host} returns without having passed"
        if event.kind is Kind.END and step == "return":
            away.discard(host)
        if event.kind is Kind.OUTCOME:
            ended[host] = str(event.data["outcome"])
    assert all(ended.get(host) in ("kept", "lost") for host in away), f"forgotten: {away} of {ended}"


@contextmanager
def running(tmp_path_factory: pytest.TempPathFactory, lights: int) -> Iterator[Site]:
    """A site with this number of hosts, on which nothing is installed; the old lock is beside its fleet file."""
    folder = tmp_path_factory.mktemp("site")
    key = Key.generate(tmp_path_factory.mktemp("key") / "home", "small")
    name = unique("roll")
    # Separate folders for the journal and the releases; sockets need short names.
    state = tempfile.TemporaryDirectory(prefix="gds-")
    with state, pytest.MonkeyPatch.context() as patch, serve(folder / "repository") as server:
        patch.setenv("GDSDEPLOY_STATE_DIR", state.name)
        try:
            lab = labs.up(name, vms=0, lights=lights)
            patch.setenv("GDSDEPLOY_CACHE_DIR", str(folder / "cache"))
            small = small_stack.make(folder / "repository", server.uri, key)
            ways = {host.name: Way(host.port) for host in lab.hosts()}
            site = Site(lab, folder / "fleet.yml", small, ways, server.uri)
            small_stack.write(site.path, fleet_of(site), small.old)
            small_stack.stock(folder / "modules", site.path, small.old, small.new)
            for host in lab.hosts():
                host.wait_ssh()
                # Each apt would read all of Debian's packages.
                host.ssh(["sudo", "sh", "-c", "rm /etc/apt/sources.list.d/*"])
            yield site
        finally:
            labs.down(Lab(name))
            key.forget()


def fleet_of(site: Site, **more: Any) -> dict[str, Any]:
    """The fleet file, whose hosts are reached by ways that can be cut."""
    folder = site.lab.fleet_path.parent
    keys = (folder / "known_hosts").read_text()
    for name, way in site.ways.items():
        keys = keys.replace(f"]:{site.host(name).port} ", f"]:{way.port} ")
    (site.path.parent / "known_hosts").write_text(keys)
    lab = yaml.safe_load(site.lab.fleet_path.read_text())
    ssh = {"user": lab["ssh"]["user"], "address": "127.0.0.1", "identity_file": str(folder / "id_ed25519")}
    hosts = {name: {"profile": "gds", "port": way.port} for name, way in site.ways.items()}
    return small_stack.fleet(site.small, site.uri, hosts, {**ssh, "known_hosts": "known_hosts"}, **more)
