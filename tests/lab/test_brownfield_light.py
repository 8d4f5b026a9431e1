"""Hosts that others have set up come under the lock, and go back: what the plan names is what happens, once the
repositories and pins are there.

All receive their modules, which another lab of this run may have built (family_builds.py).  The tests build on each
other, in order: nothing is changed while a plan refuses; then each administrator goes the way out; a rollback, and
`remove` at the end, bring back what left.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

import gdslab as labs
from gdsdeploy.lock import lockfile
from gdslab import fleet
from gdslab.archive import controller_archive
from gdslab.state import Lab
from tests.lab import brownfield, family_builds, rollouts
from tests.lab.program import gdsdeploy
from tests.lab.test_family_story import EXPECTED, LEFT, SNAPSHOT
from tests.naming import unique

pytestmark = pytest.mark.lab

#: Marks and holds of packages, beside the packages and files.
MARKS = r"""
if command -v apt-mark >/dev/null; then
    apt-mark showhold | sed 's/^/held /'
    apt-mark showmanual | sed 's/^/manual /'
fi
"""
#: The stack that hosts get first: the older libcufile.
OLD = {"libcufile": "1.9.0"}
ROLLOUT = {"canary": {"hosts": ["node1"], "soak": "1s"}}


@dataclass
class Field:
    """The lab, and each host's snapshots: before gdsdeploy (``start``), and when its administrator is ready."""

    lab: Lab
    family: brownfield.Family
    start: dict[str, frozenset[str]] = field(default_factory=dict)
    ready: dict[str, frozenset[str]] = field(default_factory=dict)

    def root(self, name: str, script: str) -> str:
        return self.lab.host(name).ssh(["sudo", "sh", "-c", script]).stdout

    def snapshot(self, name: str) -> frozenset[str]:
        return frozenset(line for line in self.root(name, SNAPSHOT + MARKS).splitlines() if not LEFT.fullmatch(line))

    def snapshots(self) -> dict[str, frozenset[str]]:
        return {name: self.snapshot(name) for name in self.family.starts}

    def plans(self, *, status: int = 32) -> dict[str, Any]:
        argv = ("plan", self.lab.fleet_path, "--limit", "node*", "--json")
        document = json.loads(gdsdeploy(*argv, status=status).stdout)
        return {name: document["hosts"][name] for name in self.family.starts}

    def write(self, *, builder: bool = True, **profile: Any) -> None:
        """The fleet file, whose profile has these settings, and a builder, which is switched off, or none."""
        lab = self.lab
        value = yaml.safe_load(fleet.render(lab.name, lab.hosts(), lab.system, controller_archive(), lab.server))
        if builder:
            family_builds.name_builder(value, "nodes")
        value["profiles"]["nodes"].update(family_builds.PINS | profile)
        lab.fleet_path.write_text(yaml.safe_dump({**value, "rollout": ROLLOUT}, sort_keys=False))

    def lost(self, name: str) -> re.Pattern[str]:
        """Lines that differ from ``ready`` after `remove`."""
        return re.compile(f"{EXPECTED[self.lab.system.os].stays.pattern}|{self.family.starts[name].lost}")


@pytest.fixture(scope="module", params=list(brownfield.OF))
def fields(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    lab, family = Lab(unique("brownfield")), brownfield.OF[request.param]
    site = tmp_path_factory.mktemp("administrator") / "site"
    begin = brownfield.publish(request.param, site)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(site, brownfield.SITE.lstrip("/"))
    try:
        count = str(len(family.starts))
        gdsdeploy(
            "lab", "up", "--lab", lab.name, "--os", request.param, "--vm", "0", "--light", "0", "--node", count, "--yes"
        )
        value = Field(lab, family)
        value.write(**OLD)
        target = rollouts.upgraded_lock(lab.fleet_path).targets["nodes"]
        for name, start in family.starts.items():
            lab.host(name).ssh(["sudo", "tar", "-C", "/", "--no-same-owner", "-xf", "-"], input=archive.getvalue())
            value.root(name, f"{begin}\n{start.script}")
        value.start = value.snapshots()
        family_builds.supply(lab.fleet_path, target)
        yield value
    finally:
        labs.down(lab)


def packages(snapshot: frozenset[str]) -> dict[str, str]:
    """Packages that are there, if only in parts → version; not the keys that rpm lists as packages."""
    words = [line.split(" ") for line in snapshot if line.startswith("package ")]
    if any(len(line) == 4 for line in words):
        return {name: version for _, state, name, version in words if state[1] not in "nc"}
    return {name: version for _, name, version in words if name != "gpg-pubkey"}


#: Refusals that name packages, which are known when the repositories and pins are written.
PACKAGES = frozenset({"removals", "held"})
#: What the first roles leave on a host before it is refused: nothing that is installed.
WRITTEN = re.compile(
    r".*(gdsdeploy|/etc/apt/(preferences|apt\.conf|keyrings)|/etc/dnf/(modules\.d|plugins)|versionlock|gpg-pubkey).*"
)


def test_the_plan_names_what_others_have_installed(fields: Field) -> None:
    for name, plan in fields.plans().items():
        start = fields.family.starts[name]
        assert {install["kind"] for install in plan["foreign"]["installs"]} >= start.foreign, name
        assert {refusal["id"] for refusal in plan["refusals"]} == start.refusals - PACKAGES, name
        assert not plan["removals"]["known"], name


def test_a_host_that_would_lose_packages_is_refused_before_anything_is_installed(fields: Field) -> None:
    """What would leave is named word by word, and by the next plan too, and `remove` takes back what was written.

    Others are refused before anything changes.
    """
    refused = [name for name, start in fields.family.starts.items() if start.refusals]
    done = gdsdeploy("provision", fields.lab.fleet_path, "--limit", ",".join(refused), "--json", status=22)
    hosts, plans = json.loads(done.stdout)["hosts"], fields.plans()
    for name in refused:
        start = fields.family.starts[name]
        differing = sorted(fields.snapshot(name) ^ fields.start[name])
        if start.refusals - PACKAGES:
            assert (hosts[name]["changed"], differing) == ([], []), name
            continue
        assert [line for line in differing if not WRITTEN.fullmatch(line)] == [], name
        assert {refusal["id"] for refusal in plans[name]["refusals"]} == start.refusals, name
        for words in (hosts[name]["error"], " ".join(refusal["message"] for refusal in plans[name]["refusals"])):
            assert start.leaving <= set(re.findall(r"[\w.+-]+", words)), name
    gdsdeploy("remove", fields.lab.fleet_path, "--limit", ",".join(refused))
    for name in refused:
        lost = fields.lost(name)
        differing = sorted(line for line in fields.snapshot(name) ^ fields.start[name] if not lost.fullmatch(line))
        assert differing == [], name


@pytest.fixture(scope="module")
def ready(fields: Field) -> Field:
    """Every administrator has gone the way out that the plan named."""
    done = json.loads(gdsdeploy("lock", "--adopt", "node1", fields.lab.fleet_path, "--json").stdout)
    assert set(done["adopted"]["nodes"]) == fields.family.adopted
    fields.write(removes=list(fields.family.removes), **OLD)
    gdsdeploy("lock", fields.lab.fleet_path)
    for name, start in fields.family.starts.items():
        fields.root(name, start.way_out or "true")
    fields.ready = fields.snapshots()
    return fields


@dataclass(frozen=True)
class Planned:
    """Plans of hosts that have the repositories and pins, and what was installed there."""

    plans: dict[str, Any]
    packages: dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def provisioned(ready: Field) -> Planned:
    """All hosts are provisioned after these plans."""
    gdsdeploy("provision", ready.lab.fleet_path, "--limit", "node*", "--tags", "gds_preflight,gds_repo")
    planned = Planned(ready.plans(), {name: packages(ready.snapshot(name)) for name in ready.family.starts})
    gdsdeploy("provision", ready.lab.fleet_path, "--limit", "node*")
    return planned


def test_provision_does_what_the_plan_named(ready: Field, provisioned: Planned) -> None:
    for name, plan in provisioned.plans.items():
        assert plan["refusals"] == [], name
        before, after = provisioned.packages[name], packages(ready.snapshot(name))
        named: dict[str, set[str]] = {}
        for action in plan["actions"]:
            named.setdefault(action["kind"], set()).add(action["subject"])
        assert named.get("remove", set()) == before.keys() - after.keys(), name
        assert named.get("install", set()) == after.keys() - before.keys(), name
        moved = {package for package in before.keys() & after.keys() if before[package] != after[package]}
        assert named.get("upgrade", set()) | named.get("downgrade", set()) == moved, name


def test_nothing_is_left_to_do_and_all_hosts_pass(ready: Field, provisioned: Planned) -> None:
    assert {plan["state"] for plan in ready.plans(status=0).values()} == {"nothing to do"}
    gdsdeploy("validate", ready.lab.fleet_path)


def test_a_rollback_brings_back_what_left(ready: Field, provisioned: Planned) -> None:
    """The newer libcufile takes a package away, which the profile allows; then the canary's validation fails."""
    lab = ready.lab
    ready.root("node1", f"{ready.family.install} {brownfield.TOOL}")
    before = ready.snapshot("node1")
    removes, lock = list(ready.family.removes), lockfile.beside(lab.fleet_path).read_bytes()
    # A rollout asks builders, too.  Without one, hosts keep what they have received.
    ready.write(builder=False, removes=removes, storage=[{"mount": "/scratch", "path": "compat"}])
    rollouts.upgraded_lock(lab.fleet_path)
    gdsdeploy("rollout", "start", lab.fleet_path, "--yes", status=51)
    document = json.loads(gdsdeploy("rollout", "status", lab.fleet_path, "--json").stdout)
    assert rollouts.outcome(document, "node1") == "rolled-back", rollouts.words(document, "node1")
    assert "undo-validate" in rollouts.steps(document, "node1"), rollouts.words(document, "node1")
    gdsdeploy("rollout", "abort", lab.fleet_path)
    # The archive of the modules before stays until the next rollout.
    differing = [line for line in ready.snapshot("node1") ^ before if "/var/lib/gdsdeploy/rollout/" not in line]
    assert sorted(differing) == []
    ready.write(removes=removes, **OLD)
    lockfile.beside(lab.fleet_path).write_bytes(lock)
    ready.root("node1", f"{ready.family.install.replace(' install', ' remove')} {brownfield.TOOL}")


def test_remove_brings_back_what_left(ready: Field, provisioned: Planned) -> None:
    gdsdeploy("remove", ready.lab.fleet_path, "--limit", ",".join(ready.family.starts), "--json")
    for name in ready.family.starts:
        # What came along for the stack stays until the administrator removes what nothing needs.
        if ready.lab.system.family == "ubuntu":
            ready.root(name, "apt-get -qq autoremove --purge")
        after, lost = ready.snapshot(name), ready.lost(name)
        assert sorted(line for line in ready.ready[name] ^ after if not lost.fullmatch(line)) == [], name
