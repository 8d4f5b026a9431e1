"""A fleet of a light host and a VM host with the older of two stacks, and the lock of the newer one beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import gdslab as labs
from gdsdeploy.model.lock import Lock
from gdslab import standin
from gdslab.host import LabHost
from gdslab.state import Lab
from tests.lab import builder_key, image as images, mirrored, own_builds, two_stacks
from tests.lab.program import gdsdeploy
from tests.lab.rollouts import AtEnd
from tests.naming import unique
from tests.repos.archive import Key

NODES, MACHINES = ["node1"], ["gpu1"]
#: How the fleet is rolled out.
ROLLOUT: dict[str, Any] = {"canary": {"hosts": NODES, "soak": "5s"}, "reboot_timeout": "15m"}


@dataclass(frozen=True)
class Fleet:
    """The lab's fleet and both of its locks."""

    lab: Lab
    old: Lock
    new: Lock
    #: what a rollout to the new stack would do, once the builder has built its modules
    preview: Mapping[str, Any]

    @property
    def path(self) -> Path:
        return self.lab.fleet_path

    def host(self, name: str) -> LabHost:
        return self.lab.host(name)

    def driver_of(self, name: str) -> str:
        return self.host(name).ssh(["dpkg-query", "--show", "--showformat=${Version}", "libcuda1"]).stdout

    def boot_of(self, name: str) -> str:
        return self.host(name).ssh(["cat", "/proc/sys/kernel/random/boot_id"]).stdout.strip()

    def start(self, *, status: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Roll out; every event, and what ``status`` says afterwards."""
        done = gdsdeploy("rollout", "start", self.path, "--yes", "--json", status=status)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        return events, json.loads(gdsdeploy("rollout", "status", self.path, "--json").stdout)


def begin(folder: Path, at_end: AtEnd) -> Fleet:
    """All hosts with the old stack, proven; the fleet file and the lock of the new one, which the builder has built.

    folder: for files.  at_end: takes what ends the lab.
    """
    lab, patch = Lab(unique("rollout")), pytest.MonkeyPatch()
    stack = ExitStack()
    at_end(stack.close)
    at_end(patch.undo)
    at_end(lambda: labs.down(lab))
    labs.up(lab.name, vms=0, lights=1, nodes=1)
    builder_key.give(lab)
    key = stack.enter_context(mirrored.mirrors(lab, folder / "key"))
    old, users = provisioned(lab, key, folder), own_builds.separate(folder / "cache", patch)
    new = two_stacks.lock(lab, "new", key, ROLLOUT)
    for kernel in standin.locked_kernels(lab):
        standin.plug_all(lab, [lab.host(name) for name in MACHINES], kernel)
    own_builds.build(lab, new.targets["vm"], users, folder)
    preview = gdsdeploy("rollout", "start", lab.fleet_path, "--dry-run", "--json").stdout
    return Fleet(lab, old, new, json.loads(preview))


def provisioned(lab: Lab, key: Key, folder: Path) -> Lock:
    """The old stack on the light hosts, and on the VM host as an image; its lock.  key: of the mirrors."""
    images.add_host(lab, folder)
    old = two_stacks.lock(lab, "old", key)
    mirrored.use([*lab.group("light"), *lab.group("node")])
    # The VM host gets the same modules; one look at what it hasn't yet takes a minute.
    argv = ["plan", lab.fleet_path, "--json", "--limit", "node1"]
    planned = json.loads(gdsdeploy(*argv, status=32).stdout)["hosts"]
    # A builder builds, whatever is kept; hosts do without it where they find what they need in the cache.
    from_cache = planned["node1"]["modules"]["from"] == "cache"
    light = "node1" if from_cache else "build1,node1"
    gdsdeploy("provision", lab.fleet_path, "--limit", light)
    image = images.make(lab, old.targets["vm"], folder)
    image.provision()
    image.boot()
    gdsdeploy("plan", lab.fleet_path, "--limit", f"gpu1,{light}")
    return old
