"""Rollouts over real hosts on which things go wrong, each with the end that is safe.

Light hosts with real dpkg, apt, sshd and systemd, a signed repository of small packages, real Ansible and the real
driver.  Their kernel is this machine's, so nothing is loaded and nothing reboots; virtual machines show that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
import yaml

from gdsdeploy.converge.provision import provision
from gdsdeploy.errors import GdsError, HostUnfit, HostUnreachable, Interrupted
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import lockfile
from gdsdeploy.model.events import Event, Kind
from gdsdeploy.model.rollout import BACK, FORWARD, Outcome, Step, Task, Wave
from gdsdeploy.rollout import journal
from gdsdeploy.rollout.session import RealEffects
from tests.lab.cuttable import Way
from tests.lab.small_site import PATIENCE, Site, fleet_of, invariants, roll, roll_back, running
from tests.unit.host.kmod.kmod_root import RELEASE

pytestmark = pytest.mark.lab

PROGRAM = "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"
PLACED = f"/usr/lib/modules/{RELEASE}/updates/gdsdeploy"
#: Holds dpkg's lock like another package manager, until it is stopped.
HOLDER = (
    "import fcntl,os,time; f=open('/var/lib/dpkg/lock-frontend','w'); fcntl.lockf(f,fcntl.LOCK_EX);"
    "open('/run/held','w').close();"
    "[time.sleep(0.2) for _ in range(900) if not os.path.exists('/run/let-go')]"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three hosts, provisioned with the old lock."""
    with running(tmp_path_factory, lights=3) as site:
        run = provision(load_fleet(site.path), site.small.old, site.path, names=site.names, progress=lambda _: None)
        assert run.failures() == {}
        yield site


def is_old(site: Site, name: str) -> None:
    """It is what it was: packages, holds, records, modules, and nothing of the way back is left."""
    assert site.version(name) == "550.1 hi"
    assert "2" not in site.version(name, "small-extra")
    assert site.root(name, "dpkg --audit") == ""
    assert site.root(name, "cat /var/lib/gdsdeploy/installed").split() == [
        "small-cufile",
        "small-driver",
        "small-kernel",
    ]
    leftovers = (
        "ls -d /var/lib/gdsdeploy-restore /etc/apt/sources.list.d/gdsdeploy-restore* /etc/apt/keyrings/*restore*"
    )
    assert site.root(name, leftovers + " 2>/dev/null", ok=(2,)) == ""
    expectation = yaml.safe_load(site.root(name, "cat /etc/gdsdeploy/expectation.json"))
    assert expectation["lock_digest"] == site.small.old.digest
    assert site.root(name, f"python3 {PROGRAM} guard judge >/dev/null && echo good") == "good\n"


# -- before anything is changed


def fill(folder: str, size: str) -> str:
    """A script that lays a small file system over ``folder``, with what was there."""
    place = f"/run/full{folder.replace('/', '-')}"
    return (
        f"mkdir -p {place} && mount -t tmpfs -o size={size} full {place} && cp -a {folder}/. {place}/ &&"
        f" mount --bind {place} {folder}"
    )


def empty(folder: str) -> str:
    """A script that takes it away again."""
    return f"umount --lazy {folder} && umount --lazy /run/full{folder.replace('/', '-')}"


def test_hosts_without_room_are_refused_and_stay_untouched(site: Site) -> None:
    """In /boot, /lib/modules or /var."""
    one, two, three = site.names
    folders = {one: "/boot", two: "/usr/lib/modules", three: "/var"}
    for name, size in ((one, "8m"), (two, "8m"), (three, "300m")):
        site.root(name, fill(folders[name], size))
    try:
        ran = roll(site, site.plan(site.small.new, Wave("all", tuple(site.names), halt_at=9)))
    finally:
        for name, folder in folders.items():
            site.root(name, empty(folder))
    assert set(ran.outcomes().values()) == {Outcome.REFUSED}
    messages = {name: ran.failed(name)[1]["message"] for name in site.names}
    assert "/boot" in messages[one]
    assert "/lib/modules" in messages[two]
    assert "/var" in messages[three]
    assert all(ran.steps(name) == ["preflight"] for name in site.names)


def test_a_package_manager_at_work_is_waited_for_and_then_refused(site: Site) -> None:
    name = site.names[0]
    holder = threading.Thread(target=site.root, args=(name, f'python3 -c "{HOLDER}"'), daemon=True)
    holder.start()
    try:
        site.root(name, "while ! test -e /run/held; do sleep 0.1; done")
        ran = roll(site, site.plan(site.small.new, Wave("one", (name,))))
    finally:
        site.root(name, "touch /run/let-go")
        holder.join(60)
    assert ran.outcomes() == {name: Outcome.REFUSED}
    assert ran.steps(name) == ["preflight"]
    assert "python3 (process" in ran.failed(name)[1]["message"]
    assert "holds the lock of the package manager" in ran.failed(name)[1]["message"]


# -- the connection


@dataclass
class Cutter:
    """Breaks the connection to a host for some seconds, at once or at a step's first message."""

    way: Way
    done: bool = False
    #: the step waited until the host answered again
    waited: bool = False

    def tell(self, text: str) -> None:
        self.waited |= "waits for it as long as a boot may take" in text
        # Ansible's first task is under way by then.
        if "▸" in text or "changed" in text:
            self.cut()

    def cut(self) -> None:
        if not self.done:
            self.done = True
            self.way.cut()
            threading.Timer(5.0, self.way.mend).start()


def failed_with(effects: RealEffects, task: Task, tell: Callable[[str], None]) -> GdsError | None:
    try:
        effects.perform(task, tell)
    except GdsError as error:
        return error
    return None


def test_the_connection_breaks_in_every_step_and_each_is_taken_up_again(site: Site) -> None:
    """Forward and back on one host: cut for a while in every step, which waits for it; done again, it ends the same."""
    name = site.names[0]
    plan = site.plan(site.small.new, Wave("one", (name,)))
    effects = RealEffects(plan, patience=PATIENCE)
    results: dict[str, Any] = {}
    before: dict[str, Any] = {}
    failed, waited = set(), set()
    for step in (*FORWARD[:-1], *BACK):
        way = site.ways[name]
        cutter = Cutter(way)
        if step not in (Step.APPLY, Step.MODULES, Step.UNDO):
            cutter.cut()
        failure = failed_with(effects, Task(name, step, 1, dict(results)), cutter.tell)
        way.mend()
        if failure is not None:
            assert isinstance(failure, HostUnreachable), (step, failure)
            assert name in failure.message
            failed.add(step)
        elif cutter.waited:
            waited.add(step)
        outcome = effects.perform(Task(name, step, 2, dict(results)), lambda _: None)
        results |= outcome
        if step is Step.SNAPSHOT:
            before = outcome["snapshot"]
        if step is Step.VALIDATE:
            assert site.version(name) == "550.2 hi"
    # A host that nothing was changed on is refused.  BOOT waits anyway; without a scheduler, there is nothing to drain.
    assert failed == {Step.PREFLIGHT}
    assert waited == {*FORWARD, *BACK} - {Step.PREFLIGHT, Step.DRAIN, Step.BOOT, Step.UNDO_BOOT}
    assert results["returned"] is True
    assert results["validated_boot"] == before["boot_id"]
    is_old(site, name)


def test_what_is_under_way_ends_soon_when_it_is_told_to_stop(site: Site) -> None:
    """As with a second Ctrl-C: Ansible ends, nothing is left on the host, and the next driver takes it up."""
    name = site.names[1]
    plan = site.plan(site.small.new, Wave("one", (name,)))
    effects = RealEffects(plan, patience=PATIENCE)
    results: dict[str, Any] = dict(effects.perform(Task(name, Step.PREFLIGHT), lambda _: None))
    results |= effects.perform(Task(name, Step.SNAPSHOT, 1, results), lambda _: None)

    def tell(text: str) -> None:
        if "▸" in text:
            effects.stop()

    with pytest.raises(Interrupted):
        effects.perform(Task(name, Step.APPLY, 1, results), tell)
    with pytest.raises(Interrupted):
        effects.perform(Task(name, Step.APPLY, 2, results), tell)
    assert site.version(name) == "550.1 hi"


# -- while it is changed


def test_faults_on_hosts_end_with_what_was_there_before(site: Site) -> None:
    """In one wave: dpkg killed while it unpacks, an audit that refuses, and a build that fails."""
    killed, tampered, builds = site.names
    value = fleet_of(site)
    value["hosts"][builds]["modules"] = "build"
    site.path.write_text(yaml.safe_dump(value))
    site.root(killed, "echo kill > /small-driver.preinst")

    def when(event: Event) -> None:
        if (event.kind, event.host, event.data.get("step")) == (Kind.END, tampered, "modules"):
            site.root(tampered, f"truncate --size=100 {PLACED}/nvidia.ko")

    try:
        ran = roll(site, site.plan(site.small.new, Wave("all", tuple(site.names), halt_at=9)), when)
    finally:
        site.path.write_text(yaml.safe_dump(fleet_of(site)))
    assert {name: ran.failed(name)[0] for name in site.names} == {
        killed: "apply", tampered: "audit", builds: "modules",
    }  # fmt: skip
    assert ran.failed(tampered)[1]["kind"] == ran.failed(builds)[1]["kind"] == "ModuleBuildFailed"
    assert ran.outcomes() == dict.fromkeys(site.names, Outcome.ROLLED_BACK)
    for name in site.names:
        assert name in ran.failed(name)[1]["message"]
        is_old(site, name)


def test_a_host_that_cannot_be_taken_back_stays_out_of_work_until_somebody_helps(site: Site) -> None:
    """/var fills up while packages are installed, and stays full."""
    name = site.names[2]

    def when(event: Event) -> None:
        if (event.kind, event.data.get("step")) == (Kind.END, "snapshot"):
            site.root(name, fill("/var", "600m") + " && cat /dev/zero > /var/zero || true")

    ran = roll(site, site.plan(site.small.new, Wave("one", (name,))), when)
    assert ran.outcomes() == {name: Outcome.KEPT}
    assert ran.failed(name)[0] == "apply"
    site.root(name, empty("/var"))
    is_old(site, name)


# -- a host whose root is hostile

#: Of the hostile host's root: every answer of the host's programs passes through it.
LIAR = """#!/bin/sh
/usr/bin/python3 "$@" | /usr/bin/python3 -c '
import sys
word = open("/root/word", "rb").read()
sys.stdout.buffer.write(sys.stdin.buffer.read().replace(b"small-driver", word))
'
"""


def lies(site: Site, name: str, canary: Path) -> None:
    """Have a host name its packages by a template, which once ran on the controller when the host was taken back."""
    word = f"{{{{ lookup('pipe', 'touch {canary}') }}}}"
    liar = "/usr/local/bin/python3"
    site.root(name, f"printf %s {quote(word)} >/root/word; printf %s {quote(LIAR)} >{liar}; chmod 0755 {liar}")


def test_a_host_that_lies_is_named_and_the_others_are_taken_back(site: Site, tmp_path: Path) -> None:
    """One lies from the beginning, one as soon as it is to be taken back, and the third one is honest."""
    early, late, honest = site.names
    canary = tmp_path / "canary"

    def when(event: Event) -> None:
        if (event.kind, event.data.get("step")) == (Kind.END, "modules"):
            site.root(event.host, f"truncate --size=100 {PLACED}/nvidia.ko")
        if (event.kind, event.host, event.data.get("step")) == (Kind.FAIL, late, "audit"):
            lies(site, late, canary)

    lies(site, early, canary)
    plan = site.plan(site.small.new, Wave("all", tuple(site.names), halt_at=9))
    try:
        ran = roll(site, plan, when)
    finally:
        for name in (early, late):
            site.root(name, "rm /usr/local/bin/python3")
    assert not canary.exists()
    # Nothing is known of the first two, so they stay out of work.
    assert ran.outcomes() == {early: Outcome.KEPT, late: Outcome.KEPT, honest: Outcome.ROLLED_BACK}
    for name in (early, late):
        failures = [event.data["error"] for event in ran.events if event.kind is Kind.FAIL and event.host == name]
        assert "HostUnfit" in [error["kind"] for error in failures], failures
        assert all(error["message"].startswith(f"{name}: ") for error in failures)
    machine = roll_back(site, plan, "it is honest again")
    for name in site.names:
        assert machine.hosts[name].outcome is Outcome.ROLLED_BACK, machine.hosts[name].reason
        is_old(site, name)


# -- around it


def test_what_is_edited_meanwhile_changes_nothing_of_what_was_planned(site: Site) -> None:
    """The lock and the fleet file are edited while the first wave works; then all is taken back by command.

    The archive has dropped the old packages by then.
    """
    one, two, *_ = site.names

    def when(event: Event) -> None:
        if (event.kind, event.host, event.data.get("step")) == (Kind.BEGIN, one, "apply"):
            lockfile.write(lockfile.beside(site.path), site.small.old)
            value = fleet_of(site)
            del value["hosts"][two]
            site.path.write_text(yaml.safe_dump(value))

    def removed() -> set[str]:
        return set(site.names) - load_fleet(site.path).hosts.keys()

    plan = site.plan(site.small.new, Wave("first", (one,)), Wave("second", (two,)))
    try:
        ran = roll(site, plan, when, removed=removed)
        assert ran.outcomes() == {one: Outcome.DONE, two: Outcome.SKIPPED}
        assert site.version(one) == "550.2 hi"
        assert site.version(two) == "550.1 hi"
        old = {package.package: package for package in site.small.old.targets["gds"].packages}
        site.small.drop(old["small-driver"])
        site.root(one, "rm -f /var/cache/apt/archives/*.deb")
        machine = roll_back(site, plan, "a test wants it back")
        with journal.reading(journal.path_of(site.path)) as read:
            invariants(plan, list(read.events(plan.id)))
    finally:
        site.path.write_text(yaml.safe_dump(fleet_of(site)))
    assert machine.hosts[one].outcome is Outcome.ROLLED_BACK, machine.hosts[one].reason
    is_old(site, one)


def test_a_lock_that_nobody_has_kept_is_refused(site: Site) -> None:
    name = site.names[2]
    site.root(
        name, 'sed -i \'s/"lock_digest": "sha256:..../"lock_digest": "sha256:0000/\' /etc/gdsdeploy/expectation.json'
    )
    plan = site.plan(site.small.new, Wave("one", (name,)))
    effects = RealEffects(plan, patience=PATIENCE)
    with pytest.raises(GdsError, match="which is not kept on this machine") as caught:
        effects.perform(Task(name, Step.PREFLIGHT), lambda _: None)
    assert "--from LOCK" in str(caught.value.hint)
    assert not isinstance(caught.value, HostUnfit)
