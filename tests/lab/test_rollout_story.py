"""A fleet of a light host and a VM host goes from one driver and kernel to the next, for real, with a real reboot.

The tests build on each other, in order.  Faults are in test_family_story.py and test_rollout_light.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab import mirrored
from tests.lab.program import PATIENCE, gdsdeploy
from tests.lab.rollouts import healthy, outcome, steps, words
from tests.lab.upgrade import MACHINES, NODES, Fleet

pytestmark = pytest.mark.lab


def outcomes(document: Mapping[str, Any]) -> dict[str, str | None]:
    """Of the hosts that have work to drain, which the builder doesn't."""
    return {name: outcome(document, name) for name in (*NODES, *MACHINES)}


def test_all_have_the_old_stack(upgraded: Fleet) -> None:
    drivers = {name: upgraded.driver_of(name).split("-")[0] for name in (*NODES, *MACHINES)}
    assert set(drivers.values()) == {"535.261.03"}
    for name in MACHINES:
        assert upgraded.host(name).ssh(["uname", "-r"]).stdout.strip() == upgraded.old.targets["vm"].kernel.release
        healthy(upgraded.host(name), upgraded.old)
    healthy(upgraded.host("node1"), upgraded.old)
    new, old = upgraded.new.targets["vm"], upgraded.old.targets["vm"]
    assert (new.driver.version, old.driver.version) == ("550.163.01", "535.261.03")
    assert new.kernel.release != old.kernel.release


def test_modules_that_the_builder_has_built_stand_in_for_a_preflight(upgraded: Fleet) -> None:
    """The builder compiles the real driver and nvidia-fs once, before any host is out of work."""
    assert upgraded.preview["refused"] == []
    stacks = {stack["profile"]: stack for stack in upgraded.preview["preflights"]}
    assert set(stacks) == {"vm", "node"}
    for stack in stacks.values():
        assert (stack["kernel"], stack["driver"]) == (upgraded.new.targets["vm"].kernel.release, "550.163.01")
        assert (stack["builders"], stack["ok"]) == (["build1"], True)


def test_all_of_it_comes_to_its_end(upgraded: Fleet, tmp_path: Path) -> None:
    booted = {name: upgraded.boot_of(name) for name in MACHINES}
    begin = time.time()
    events, document = upgraded.start(status=0)

    assert document["phase"] == "finished"
    assert set(outcomes(document).values()) == {"done"}, words(document)
    assert [wave["hosts"] for wave in document["waves"]] == [["build1"], NODES, MACHINES]
    assert document["away"] == []
    for name in MACHINES:
        assert steps(document, name).count("reboot") == 1
        assert upgraded.host(name).ssh(["uname", "-r"]).stdout.strip() == upgraded.new.targets["vm"].kernel.release
        assert upgraded.boot_of(name) != booted[name]
        validated = next(
            i for i in events if i["host"] == name and i["kind"] == "end" and i["data"]["step"] == "validate"
        )
        assert validated["data"]["data"]["validated_boot"] == upgraded.boot_of(name)
    for name in (*NODES, *MACHINES):
        healthy(upgraded.host(name), upgraded.new)
        assert upgraded.driver_of(name).startswith("550.163.01")

    # The canary soaked before anybody else was begun.
    soaked = next(i["number"] for i in events if i["kind"] == "closed" and i["data"]["wave"] == "canary")
    others = [i["number"] for i in events if i["kind"] == "begin" and i["host"] in MACHINES]
    assert soaked < min(others)
    soaking = next(i for i in events if i["kind"] == "soaking")
    assert soaking["data"]["until"] >= begin + 5

    gdsdeploy("rollout", "status", upgraded.path, "--html", tmp_path / "rollout.html")
    page = (tmp_path / "rollout.html").read_text()
    assert all(name in page for name in (*NODES, *MACHINES))
    assert "<script src" not in page
    gdsdeploy("plan", upgraded.path)
    listed = gdsdeploy("rollout", "history", upgraded.path, "--json")
    assert len(json.loads(listed.stdout)) == 1


def test_no_other_source_moves_the_driver(upgraded: Fleet) -> None:
    """Where apt knows all of Debian's packages: on a light host, which reads them faster."""
    host, sources = upgraded.host("node1"), "/etc/apt/sources.list.d/debian.sources"
    host.ssh(["sudo", "sh", "-c", f"cp {mirrored.SOURCES} {sources} && apt-get -qq update"], timeout=PATIENCE)
    assert "Candidate: (none)" in host.ssh(["apt-cache", "policy", "nvidia-driver"]).stdout
    upgrade = host.ssh(["sudo", "apt-get", "--simulate", "dist-upgrade"]).stdout
    assert not [line for line in upgrade.splitlines() if line.startswith("Inst") and "nvidia" in line]
    refused = host.ssh(["sudo", "apt-get", "--simulate", "install", "nvidia-driver"], ok=(100,))
    assert "no installation candidate" in refused.stdout + refused.stderr
